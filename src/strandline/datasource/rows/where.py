"""The option ``where``: a condition in SQL, read here and checked against the columns, so that Spark need not push it.

Only what has one meaning whatever Spark's settings are is understood: columns compared with literals of their own kind,
combined with AND, OR and NOT.  All else is refused with what to do: the frame's own ``where`` takes any condition.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Final

import sqlglot
from sqlglot import TokenType, exp

from strandline.algebra import types
from strandline.algebra.scalar import Faithful, text
from strandline.algebra.schema import Schema
from strandline.algebra.types import Atom
from strandline.compute.plan.sql import MISTAKES
from strandline.datasource.rows.conditions import (
    Among,
    Compared,
    Comparison,
    Condition,
    Every,
    Missing,
    Some,
    Value,
    negated,
)
from strandline.errors import DefinitionError, InvalidUsage

BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_WHOLE: Final = re.compile(r"[0-9]+")
_DECIMAL: Final = re.compile(r"[0-9]*\.?[0-9]+|[0-9]+\.")
_REAL: Final = re.compile(r"([0-9]*\.?[0-9]+|[0-9]+\.)([eE][-+]?[0-9]+)?")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_MOMENT: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]{1,6})?")
_ZONE: Final = re.compile(r"(Z|[+-][0-9]{2}:[0-9]{2})$")
_ELSE: Final = "; the frame's own .where(…) takes any condition"

_OPERATORS: Final[Mapping[type[exp.Expr], tuple[Comparison, Comparison]]] = {
    exp.EQ: (Comparison.EQUAL, Comparison.EQUAL),
    exp.NEQ: (Comparison.OTHER, Comparison.OTHER),
    exp.LT: (Comparison.LESS, Comparison.MORE),
    exp.LTE: (Comparison.AT_MOST, Comparison.AT_LEAST),
    exp.GT: (Comparison.MORE, Comparison.LESS),
    exp.GTE: (Comparison.AT_LEAST, Comparison.AT_MOST),
}
"""By operator: what it says of a column to its left, and of one to its right."""


def condition(sql: str, schema: Schema) -> Condition:
    """Return the condition that ``sql`` is, on the columns of ``schema``.

    Raises:
        DefinitionError: there is no such column.
        InvalidUsage: it is no such condition; the message names what is not understood.

    >>> from strandline.algebra.schema import Column
    >>> condition("k > 3 AND name IS NOT NULL", Schema((Column("K", "int"), Column("name", "string"))))
    ... # doctest: +NORMALIZE_WHITESPACE
    Every(parts=(Compared(column='K', how=<Comparison.MORE: 'greater'>, value=3),
                 Missing(column='name', wanted=False)))
    """
    reader = _Reader({name.lower(): (name, kind) for name, kind in types.columns(schema)}, schema.names)
    try:
        for token in Faithful().tokenize(sql):
            written = sql[token.start : token.end + 1]
            if token.token_type is TokenType.STRING and (written[0] != "'" or "\\" in written):
                raise InvalidUsage(f"where: {written} is not understood{_forms(Atom('string'))}{_ELSE}")
        return reader.of(sqlglot.parse_one(sql, dialect=Faithful))
    except MISTAKES as error:
        why = (str(error).splitlines() or [""])[0]
        raise InvalidUsage(f"where: {sql!r} cannot be read as a condition: {why or type(error).__name__}") from error


class _Reader:
    """Reads one condition."""

    def __init__(self, columns: Mapping[str, tuple[str, types.Type]], names: tuple[str, ...]) -> None:
        self._columns = columns
        self._names = names

    def of(self, tree: exp.Expr) -> Condition:
        """Return the condition that ``tree`` is.  Raises as `condition`."""
        match tree:
            case exp.Paren():
                return self.of(tree.this)
            case exp.And():
                return Every(tuple(map(self.of, tree.flatten())))
            case exp.Or():
                return Some(tuple(map(self.of, tree.flatten())))
            case exp.Not():
                return negated(self.of(tree.this))
            case exp.Is(expression=exp.Null()):
                return Missing(self._column(tree.this)[0])
            case exp.Between() if not tree.args.get("symmetric"):
                low = self._compared(tree.this, Comparison.AT_LEAST, tree.args["low"])
                return Every((low, self._compared(tree.this, Comparison.AT_MOST, tree.args["high"])))
            case exp.In() if tree.expressions and not tree.args.get("query"):
                column, kind = self._column(tree.this)
                return Among(column, tuple(self._value(column, kind, each) for each in tree.expressions))
            case exp.NullSafeEQ():
                column = self._column(tree.this)[0]
                return Every(
                    (Missing(column, wanted=False), self._compared(tree.this, Comparison.EQUAL, tree.expression))
                )
            case exp.Column():
                column, kind = self._column(tree)
                if kind != Atom("boolean"):
                    raise self._refusal(f"column {column!r} is {_called(kind)} and no condition")
                return Compared(column, Comparison.EQUAL, value=True)
        if type(tree) in _OPERATORS:
            forward, backward = _OPERATORS[type(tree)]
            if isinstance(tree.expression.unnest(), exp.Column):
                return self._compared(tree.expression, backward, tree.this)
            return self._compared(tree.this, forward, tree.expression)
        raise self._refusal(f"{text(tree)} is not understood: it takes columns compared with literals, AND, OR and NOT")

    def _compared(self, left: exp.Expr, how: Comparison, right: exp.Expr) -> Condition:
        column, kind = self._column(left)
        return Compared(column, how, self._value(column, kind, right))

    def _column(self, tree: exp.Expr) -> tuple[str, types.Type]:
        own = tree.unnest()
        if not isinstance(own, exp.Column) or not isinstance(own.this, exp.Identifier):
            raise self._refusal(f"{text(tree)} is no column, and only columns are compared, with literals")
        known = None if own.args.get("table") else self._columns.get(own.name.lower())
        if known is None:
            raise DefinitionError(f"where: there is no column {text(own)}; there are {', '.join(self._names)}")
        return known

    def _value(self, column: str, kind: types.Type, tree: exp.Expr) -> Value:
        own = tree.unnest()
        if isinstance(own, exp.Null):
            raise self._refusal(f"nothing compares with NULL: write {column} IS NULL")
        found = _literal(kind, own)
        if found is None:
            raise self._refusal(
                f"column {column!r} is {_called(kind)}, and {text(tree)} is no literal of this type{_forms(kind)}"
            )
        return found

    def _refusal(self, why: str) -> InvalidUsage:
        return InvalidUsage(f"where: {why}{_ELSE}")


def _literal(kind: types.Type, tree: exp.Expr) -> Value | None:
    """Return the value of ``kind`` that a literal is, exactly; None: it is none."""
    match kind:
        case Atom("boolean"):
            return bool(tree.this) if isinstance(tree, exp.Boolean) else None
        case Atom(name) if name in BITS:
            written = _number(tree, _WHOLE)
            whole = None if written is None else int(written)
            return whole if whole is not None and -(1 << BITS[name] - 1) <= whole < 1 << BITS[name] - 1 else None
        case Atom("float" | "double"):
            return _real(_number(tree, _REAL))
        case types.Decimal(precision, scale):
            written = _number(tree, _DECIMAL)
            return None if written is None else _exactly(Decimal(written), precision, scale)
        case Atom("string"):
            return tree.this if isinstance(tree, exp.Literal) and tree.is_string else None
        case Atom("date"):
            return _temporal(tree, exp.DataType.Type.DATE, _DATE, dt.date.fromisoformat)
        case Atom("timestamp"):
            return _temporal(tree, exp.DataType.Type.TIMESTAMPTZ, _MOMENT, _in_utc, zone=True)
        case Atom("timestamp_ntz"):
            return _temporal(tree, exp.DataType.Type.TIMESTAMPNTZ, _MOMENT, dt.datetime.fromisoformat)
    return None


def _number(tree: exp.Expr, form: re.Pattern[str]) -> str | None:
    """Return a number as it is written, with its sign."""
    negative = isinstance(tree, exp.Neg)
    inner = tree.this.unnest() if negative else tree
    if not isinstance(inner, exp.Literal) or inner.is_string or not form.fullmatch(inner.this):
        return None
    return f"{'-' if negative else ''}{inner.this}"


def _real(written: str | None) -> float | None:
    if written is None:
        return None
    value = float(written)
    exact = not _WHOLE.fullmatch(written.lstrip("-")) or int(written) == value
    return value + 0.0 if math.isfinite(value) and exact else None


def _exactly(value: Decimal, precision: int, scale: int) -> Decimal | None:
    _, digits, exponent = value.as_tuple()
    places = max(0, -int(exponent))
    return value if places <= scale and len(digits) - places <= precision - scale else None


def _temporal(
    tree: exp.Expr, kind: object, form: re.Pattern[str], read: Callable[[str], Value], *, zone: bool = False
) -> Value | None:
    """Return the value of ``KIND 'text'``, or of the text alone."""
    said = tree.this if isinstance(tree, exp.Cast) and tree.is_type(kind) else tree  # type: ignore[arg-type]
    if not isinstance(said, exp.Literal) or not said.is_string:
        return None
    bare = _ZONE.sub("", said.this) if zone else said.this
    if not form.fullmatch(bare) or (zone and bare == said.this):
        return None
    try:
        return read(said.this)
    except (ValueError, OverflowError):
        return None


def _in_utc(said: str) -> dt.datetime:
    return dt.datetime.fromisoformat(said).astimezone(dt.UTC)


def _called(kind: types.Type) -> str:
    match kind:
        case Atom(name):
            return name
        case types.Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case types.Array():
            return "an array"
        case types.Struct():
            return "a struct"


def _forms(kind: types.Type) -> str:
    """Say how a literal of ``kind`` is written, where that is not plain."""
    match kind:
        case Atom("timestamp"):
            return ": TIMESTAMP '2024-01-31 23:59:59Z', with its zone"
        case Atom("timestamp_ntz"):
            return ": TIMESTAMP_NTZ '2024-01-31 23:59:59'"
        case Atom("date"):
            return ": DATE '2024-01-31'"
        case Atom("string"):
            return ": a text in single quotes, with no quote and no backslash in it"
    return ""
