"""Reading SQL: sqlglot's Spark dialect, changed so that what it writes is what was read.

sqlglot translates between dialects: it knows functions by meaning and may write another one (`to_date(x)` as a cast,
`datediff` with conversions added).  We want none of it, because Spark alone says what a function means.  So here a
function is its name and its arguments, and comes out as it went in; only special syntax (`CAST(x AS t)`, `EXTRACT(u
FROM x)`, …) is understood.

Trap: a datetime unit (`timestampdiff(HOUR, a, b)`) looks like a column.  `parse` makes it a keyword, so that no
column of that name is ever meant.

Source: design page "the map" (decision 10: SQL is parsed with sqlglot, Spark stays the authority).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.parsers.spark import SparkParser

from strandline.errors import DefinitionError, Position

_SPECIAL: Final = ("CAST", "EXTRACT", "LISTAGG", "OVERLAY", "POSITION", "STRING_AGG", "SUBSTRING", "TRIM", "TRY_CAST")
_MISREAD: Final = ("|>", "TABLE")
"""sqlglot reads some of the pipe syntax, and not all of that as Spark does; and `TABLE t` as a column with an alias."""
_UNREADABLE: Final = (ParseError, TokenError, AttributeError, IndexError, KeyError, TypeError, ValueError)
"""What sqlglot raises for text that it cannot read; the latter ones are its own mistakes."""
_WITH_UNIT: Final = ("date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff")


class Faithful(Spark):
    """Spark SQL in which functions are kept as they were written."""

    class Parser(SparkParser):
        """Knows no function by meaning."""

        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: how for name, how in SparkParser.FUNCTION_PARSERS.items() if name in _SPECIAL
        }

        def _warn_unsupported(self) -> None:
            """Refuse what is no query: sqlglot would take it as some command, and log that it did."""
            self.raise_error("this is no query")


def parse(sql: str) -> exp.Expr | None:
    """Return the one statement that ``sql`` is, or None if sqlglot cannot read it (which says nothing about Spark).

    Raises `DefinitionError` if it is several statements.
    """
    if any(word.text.upper() in _MISREAD and not word.literal for word in words(sql)):
        return None
    try:
        statements = [s for s in Faithful().parse(sql) if s is not None]
    except _UNREADABLE:
        return None
    if len(statements) != 1:
        raise DefinitionError(f"a view is defined by one query, not by {len(statements)} statements")
    for call in statements[0].find_all(exp.Anonymous):
        arguments = call.expressions
        if call.name.lower() in _WITH_UNIT and len(arguments) == 3 and isinstance(arguments[0], exp.Column):
            arguments[0].replace(exp.Var(this=arguments[0].name))
    return statements[0]


def text(expression: exp.Expr) -> str:
    """Return the SQL text of ``expression``."""
    return expression.sql(dialect=Faithful, comments=False)


@dataclass(frozen=True, slots=True)
class Word:
    """A token of a text: what it says, where it starts, whether it is a string literal."""

    text: str
    start: int
    literal: bool


def words(sql: str) -> list[Word]:
    """Return the tokens of ``sql``; none if it cannot even be cut into tokens."""
    try:
        return [Word(t.text, t.start, t.token_type is TokenType.STRING) for t in Faithful().tokenize(sql)]
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
