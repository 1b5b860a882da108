"""Parameters: the values of a prepared statement, put where its question marks are.

A value becomes a literal of SQL, written by sqlglot for Spark; a question mark is found by its tokens.  So what is in a
value can never be read as SQL.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from sqlglot import exp
from sqlglot.tokenizer_core import TokenType

from strandline.controller.language.cursor import tokens_of
from strandline.errors import InvalidUsage

DIALECT: Final = "spark"


def count(text: str) -> int:
    """Return how many parameters a statement has.

    >>> count("SELECT '?', ? FROM t -- ?")
    1
    """
    return len(_places(text))


def bound(text: str, values: Sequence[Any]) -> str:
    r"""Return the statement with a value in the place of each question mark.

    >>> bound("SELECT * FROM t WHERE a = ? AND b = ?", [1, "it's \\ '?"])
    "SELECT * FROM t WHERE a = 1 AND b = 'it\\'s \\\\ \\'?'"

    Raises `InvalidUsage` if there are more or fewer values, or one that SQL has no literal for.
    """
    places = _places(text)
    if len(places) != len(values):
        raise InvalidUsage(f"the statement has {len(places)} parameters, and {len(values)} values were given")
    parts, at = [], 0
    for number, (place, value) in enumerate(zip(places, values, strict=True), start=1):
        parts += [text[at:place], literal(value, f"parameter {number}")]
        at = place + 1
    return "".join([*parts, text[at:]])


def literal(value: Any, what: str = "the value") -> str:
    """Return a value as SQL.

    >>> literal(None), literal(True), literal(float("nan")), literal(Decimal("-1.50")), literal(b"ab")
    ('NULL', 'TRUE', "CAST('nan' AS DOUBLE)", "CAST('-1.50' AS DECIMAL(3, 2))", "X'6162'")
    >>> literal(dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC))
    "CAST('2026-01-02 03:04:05.000006' AS TIMESTAMP)"
    """
    match value:
        case None | bool():
            made = exp.convert(value)
        case int():
            made = exp.Literal.number(value) if value >= 0 else exp.Neg(this=exp.Literal.number(-value))
        case float():
            made = _cast(repr(value) if math.isfinite(value) else str(value), "DOUBLE")
        case Decimal() if value.is_finite():
            _, digits, exponent = value.as_tuple()
            scale = max(0, -int(exponent))
            precision = max(len(digits) + max(0, int(exponent)), scale, 1)
            made = _cast(f"{value:f}", f"DECIMAL({precision}, {scale})")
        case str():
            made = exp.Literal.string(value)
        case bytes():
            return f"X'{value.hex().upper()}'"
        case dt.datetime():
            at = value if value.tzinfo is None else value.astimezone(dt.UTC).replace(tzinfo=None)
            made = _cast(at.isoformat(sep=" ", timespec="microseconds"), "TIMESTAMP")
        case dt.date():
            made = _cast(value.isoformat(), "DATE")
        case _:
            raise InvalidUsage(f"{what} is a {type(value).__name__}, which no literal of SQL stands for")
    return made.sql(dialect=DIALECT)


def identifier(name: str) -> str:
    """Return a name as SQL has it, in quotes.

    >>> identifier("a`b c")
    '`a``b c`'
    """
    return exp.to_identifier(name, quoted=True).sql(dialect=DIALECT)


def _cast(text: str, kind: str) -> exp.Expression:
    return exp.Cast(this=exp.Literal.string(text), to=exp.DataType.build(kind, dialect=DIALECT))


def _places(text: str) -> list[int]:
    return [token.start for token in tokens_of(text) if token.token_type is TokenType.PLACEHOLDER]
