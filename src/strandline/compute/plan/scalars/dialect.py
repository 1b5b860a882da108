"""Reading SQL in the dialect that writes what it read (`algebra.scalar.Faithful`), with places in the text.

Trap: a datetime unit (`timestampdiff(HOUR, a, b)`) looks like a column.  `parse` makes it a keyword, so that no
column of that name is ever meant.

Source: design page "the map" (decision 10: SQL is parsed with sqlglot, Spark stays the authority).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError, TokenError

from strandline.algebra.scalar import Faithful
from strandline.errors import DefinitionError, Position

_STRINGS: Final = (TokenType.STRING, TokenType.RAW_STRING)
_MISREAD: Final = ("|>", "TABLE")
"""sqlglot reads some of the pipe syntax, and not all of that as Spark does; and `TABLE t` as a column with an alias."""
MISTAKES: Final = (
    SqlglotError,
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What sqlglot raises for text that it cannot read; the latter ones are its own mistakes, or ours."""
_WITH_UNIT: Final = ("date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff")


def parse(sql: str) -> exp.Expr | None:
    """Return the one statement that ``sql`` is, or None if sqlglot cannot read it (which says nothing about Spark).

    Raises `DefinitionError` if it is several statements.
    """
    if any(word.text.upper() in _MISREAD and not word.literal for word in words(sql)):
        return None
    try:
        statements = [s for s in Faithful().parse(sql) if s is not None]
    except MISTAKES:
        return None
    if len(statements) != 1:
        raise DefinitionError(f"a view is defined by one query, not by {len(statements)} statements")
    for call in statements[0].find_all(exp.Anonymous):
        arguments = call.expressions
        if call.name.lower() in _WITH_UNIT and len(arguments) == 3 and isinstance(arguments[0], exp.Column):
            arguments[0].replace(exp.Var(this=arguments[0].name))
    return statements[0]


@dataclass(frozen=True, slots=True)
class Word:
    """A token of a text: what it says, where it starts, whether it is a string literal."""

    text: str
    start: int
    literal: bool


def words(sql: str) -> list[Word]:
    """Return the tokens of ``sql``; none if it cannot even be cut into tokens."""
    try:
        return [Word(t.text, t.start, t.token_type in _STRINGS) for t in Faithful().tokenize(sql)]
    except TokenError:
        return []


def position(sql: str, offset: int) -> Position:
    r"""Return where the character ``offset`` of ``sql`` is.

    >>> position("a\nbc", 3)
    Position(line=2, column=2)
    """
    before = sql[:offset]
    return Position(before.count("\n") + 1, offset - (before.rfind("\n") + 1) + 1)


def position_of(node: exp.Expr, sql: str) -> Position | None:
    """Return where ``node`` was read from, if it (or the first name in it) remembers."""
    for found in node.walk():
        if "start" in found.meta:
            return position(sql, int(found.meta["start"]))
    return None
