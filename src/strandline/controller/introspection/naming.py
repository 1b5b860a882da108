"""How a text names an introspection relation, ``strandline.steps``: found for a query, refused where it has no place.

A relation that Spark is given has a name of one part.  So a query is asked with a *stand-in* for each of ours, a
reserved name.  The text keeps its length and its lines: every position that Spark names is one of the author's text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from strandline.algebra.notation import within
from strandline.algebra.schema import RESERVED
from strandline.compute.plan.sql import Word, parse, position, relations, words
from strandline.controller.introspection.relations import RELATIONS
from strandline.controller.location.catalog import unknown
from strandline.errors import DefinitionError

SCHEMA: Final = "strandline"
_PARTS: Final = 3  # the schema, a dot, and a relation's own name
_WITHOUT_ALIAS: Final = frozenset({"this", "db", "joins", "laterals", "pivots"})
"""What of a relation may be there where an alias may still be written directly behind its name."""


@dataclass(frozen=True, slots=True)
class _Named:
    """A relation of ours in a text: where its schema and its own name begin, and where the word behind it does.

    ``alias``: its own name may stay there, as its alias, by which the text can name its columns.
    """

    name: str
    start: int
    own: int
    after: int
    alias: bool = False


def substituted(sql: str) -> tuple[str, dict[str, str]]:
    """Return ``sql`` with stand-ins for our relations, and these, each with the name of its relation.

    Raises `DefinitionError` if there is no such relation.

    >>> print(*substituted("SELECT steps.ms FROM strandline.steps WHERE strandline.steps.ms > 5"), sep=chr(10))
    SELECT steps.ms FROM __1        steps WHERE            steps.ms > 5
    {'__1': 'steps'}
    """
    found, text, stand_ins = _relations(sql), sql, {}
    for each in found:
        stand_in = f"{RESERVED}{[*RELATIONS].index(each.name)}"
        stand_ins[stand_in] = each.name
        text = blank(text, each.start, each.own if each.alias else each.after)
        text = text[: each.start] + stand_in + text[each.start + len(stand_in) :]
    starts = {each.start for each in found}
    for column in _names(sql) if found else ():
        if column.start not in starts and sql[column.after : column.after + 1] == ".":
            text = blank(text, column.start, column.own)
    return text, stand_ins


def refuse(sql: str, who: str) -> None:
    """Raise `DefinitionError` if ``sql`` is the name of a relation of ours, or a query that names one.

    ``who``: who cannot read it, the beginning of a sentence.
    """
    alone = len(words(sql)) == _PARTS
    for each in [each for each in _names(sql) if each.name in RELATIONS] if alone else _relations(sql):
        raise DefinitionError(
            f"{who} '{SCHEMA}.{each.name}', which is computed at the moment of a query and keeps no history",
            position(sql, each.start),
        )


def _relations(sql: str) -> list[_Named]:
    """Return the relations of ours that ``sql`` reads; where only Spark can read it, each that seems to be one."""
    names = list(_names(sql))
    if not names or (tree := parse(sql)) is None:
        return [each for each in names if each.name in RELATIONS]
    tables = {table.this.meta.get("start"): table for table in relations(tree) if table.db and not table.catalog}
    found = [
        _Named(each.name, each.start, each.own, each.after, alias=_unnamed(tables[each.own]))
        for each in names
        if each.own in tables
    ]
    for each in found:
        if each.name not in RELATIONS:
            with within(position(sql, each.start)):
                raise unknown("relation", f"{SCHEMA}.{each.name}", (f"{SCHEMA}.{known}" for known in RELATIONS))
    return found


def _unnamed(table: exp.Table) -> bool:
    """Tell whether a relation has no alias, and nothing that would have to stand before one."""
    return {key for key, value in table.args.items() if value} <= _WITHOUT_ALIAS


def _names(sql: str) -> Iterator[_Named]:
    """Yield what looks like a relation of ours: the schema, a dot, a name; that of a column begins so, too."""
    end = Word("", len(sql), literal=False)
    found = [end, *words(sql), end]
    for n in range(1, len(found) - _PARTS):
        before, (schema, dot, own), after = found[n - 1], found[n : n + _PARTS], found[n + _PARTS]
        named = schema.text.lower() == SCHEMA and dot.text == "." and before.text != "."
        if named and not (schema.literal or dot.literal or own.literal):
            yield _Named(own.text.lower(), schema.start, own.start, after.start)


def blank(text: str, start: int, end: int) -> str:
    """Return ``text`` with spaces from ``start`` to ``end``; its lines stay."""
    spaces = "".join(sign if sign == "\n" else " " for sign in text[start:end])
    return text[:start] + spaces + text[end:]
