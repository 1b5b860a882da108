"""Conditions on single columns that a predicate implies: by them rows can be left out that it would not let through.

Only comparisons of a column with literals count, of types for which every engine says the same: whole numbers, dates,
and text (`types` refuses collations).  All else that a predicate says is left out, so more rows may remain than it lets
through, and never fewer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from enum import Enum
from typing import Final, TypeAlias

from sqlglot import exp

from strandline.algebra.scalar import Scalar

Value: TypeAlias = str | int | date


class Comparison(Enum):
    """What is said of a column's value; each is false or NULL of NULL."""

    IN = "in"
    LESS = "<"
    AT_MOST = "<="
    MORE = ">"
    AT_LEAST = ">="
    STARTS = "starts with"
    ENDS = "ends with"
    HOLDS = "contains"


@dataclass(frozen=True, slots=True)
class Condition:
    """The value of ``column`` compares with the one of ``values``; for `Comparison.IN`, is one of them."""

    column: str
    comparison: Comparison
    values: tuple[Value, ...]


_ORDERS: Final = {
    exp.LT: (Comparison.LESS, Comparison.MORE),
    exp.LTE: (Comparison.AT_MOST, Comparison.AT_LEAST),
    exp.GT: (Comparison.MORE, Comparison.LESS),
    exp.GTE: (Comparison.AT_LEAST, Comparison.AT_MOST),
    exp.EQ: (Comparison.IN, Comparison.IN),
}
"""By operator: what it says of a column to its left, and of one to its right."""
_MEANS_MORE: Final = frozenset("\\'\"")
"""A literal with these may mean other text than it shows."""


def implied(predicate: Scalar) -> tuple[Condition, ...]:
    """Return conditions that hold wherever ``predicate`` is true.

    >>> from strandline.algebra.scalar import scalar
    >>> [(c.column, c.comparison.value, c.values) for c in implied(scalar("`a` = 3 AND (`b` = 'x' OR `b` IN ('y'))"))]
    [('a', 'in', (3,)), ('b', 'in', ('x', 'y'))]
    >>> implied(scalar("`a` + 1 = 3 OR `b` = 'x'"))
    ()
    """
    return tuple(_of(predicate.tree))


def _of(tree: exp.Expr) -> Iterator[Condition]:
    if tree.args.get("negate") or tree.args.get("symmetric"):
        return
    match tree:
        case exp.Paren():
            yield from _of(tree.this)
        case exp.And():
            yield from _of(tree.this)
            yield from _of(tree.expression)
        case exp.Or():
            one, other = _listed(tree.this), _listed(tree.expression)
            for column in sorted(one.keys() & other.keys()):
                yield Condition(column, Comparison.IN, (*one[column], *other[column]))
        case exp.Between():
            yield from _compared(tree.this, tree.args["low"], Comparison.AT_LEAST)
            yield from _compared(tree.this, tree.args["high"], Comparison.AT_MOST)
        case exp.In() if tree.expressions:
            values = [_value(each) for each in tree.expressions]
            kept = tuple(value for value in values if value is not None)
            if _is_column(tree.this) and len(kept) == len(values) and len({type(value) for value in kept}) == 1:
                yield Condition(tree.this.name, Comparison.IN, kept)
        case exp.Like():
            yield from _like(tree.this, _value(tree.expression))
        case exp.EQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE():
            forward, backward = _ORDERS[type(tree)]
            yield from _compared(tree.this, tree.expression, forward)
            yield from _compared(tree.expression, tree.this, backward)


def _listed(tree: exp.Expr) -> dict[str, tuple[Value, ...]]:
    """Return for each column that ``tree`` gives a list of values the first such list."""
    lists = [each for each in _of(tree) if each.comparison is Comparison.IN]
    return {each.column: each.values for each in reversed(lists)}


def _compared(one: exp.Expr, other: exp.Expr, comparison: Comparison) -> Iterator[Condition]:
    value = _value(other)
    if _is_column(one) and value is not None:
        yield Condition(one.name, comparison, (value,))


def _like(one: exp.Expr, pattern: Value | None) -> Iterator[Condition]:
    if not (_is_column(one) and isinstance(pattern, str)):
        return
    inner = pattern.strip("%")
    if not inner or "%" in inner or "_" in inner:
        return
    match pattern.startswith("%"), pattern.endswith("%"):
        case True, True:
            yield Condition(one.name, Comparison.HOLDS, (inner,))
        case False, True:
            yield Condition(one.name, Comparison.STARTS, (inner,))
        case True, False:
            yield Condition(one.name, Comparison.ENDS, (inner,))
        case _:
            yield Condition(one.name, Comparison.IN, (inner,))


def _is_column(tree: exp.Expr) -> bool:
    return isinstance(tree, exp.Column) and not tree.table


def _value(tree: exp.Expr) -> Value | None:
    """Return the value of a literal; None if it is none, or not surely the same everywhere."""
    match tree:
        case exp.Literal(is_string=True):
            return None if _MEANS_MORE & set(tree.this) else str(tree.this)
        case exp.Literal():
            return int(tree.this) if tree.this.isdecimal() and tree.this.isascii() else None
        case exp.Neg():
            value = _value(tree.this)
            return -value if isinstance(value, int) else None
        case exp.Cast() if not isinstance(tree, exp.TryCast) and tree.to.sql() == "DATE":
            return _date(tree.this)
    return None


def _date(tree: exp.Expr) -> date | None:
    text = tree.this if isinstance(tree, exp.Literal) and tree.is_string else ""
    digits = text.replace("-", "")
    if not (len(text) == len("2026-01-01") and digits.isdecimal() and digits.isascii()):
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None
