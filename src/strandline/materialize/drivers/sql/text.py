"""SQL text that is composed, never formatted: an `Sql` value is trusted, a string is not.

A template is a literal of this program; only `Sql` values fill its ``{name}`` holes, and `identifier` is the only way
to turn a foreign name into `Sql`.  Values never become text: they are bound as parameters or arrive as Arrow tables.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import Formatter
from typing import LiteralString

from strandline.errors import DefinitionError


@dataclass(frozen=True, slots=True)
class Sql:
    """Text that is SQL and nothing else."""

    text: str


def compose(template: LiteralString, **holes: Sql) -> Sql:
    """Return the template with its holes filled in.

    >>> compose("SELECT * FROM {t}", t=identifier('a"; --')).text
    'SELECT * FROM "a""; --"'
    """
    parts: list[str] = []
    for literal, name, _, _ in Formatter().parse(template):
        parts.append(literal)
        if name is not None:
            parts.append(holes[name].text)
    return Sql("".join(parts))


def joined(separator: LiteralString, parts: Iterable[Sql]) -> Sql:
    """Return the parts with ``separator`` between them.

    >>> joined(", ", [identifier("a"), identifier("b")]).text
    '"a", "b"'
    """
    return Sql(separator.join(part.text for part in parts))


def identifier(name: str) -> Sql:
    """Return any ``name`` as a quoted identifier of standard SQL.

    >>> identifier('a"b').text
    '"a""b"'

    Raises:
        DefinitionError: the name is empty, or is no text that can be encoded.
    """
    if not name:
        raise DefinitionError("a name is empty: SQL has no empty identifiers")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise DefinitionError(f"the name {name!r} is not text: it holds half of a surrogate pair") from error
    return Sql('"' + name.replace('"', '""') + '"')
