"""Bounds: the value of a scalar subquery that a column is only compared with.

Such a value is kept in a collection of its own, so that its old value and its new one are known before rows are looked
up (`compute.lookups`).
"""

from __future__ import annotations

import itertools

from sqlglot import exp

from strandline.compute.plan.sql.trees import replaced


def bound_of(tree: exp.Expr, name: str) -> exp.Expr | None:
    """Return the value of the column ``name`` that ``tree`` compares a column with; None if that is not all it does.

    >>> from strandline.algebra.scalar import scalar, text
    >>> several = ("`b` < `a`", "(`a` - INTERVAL '1' DAY >= `b`)", "`b` = `a`", "`b` < `a` / INTERVAL '1' DAY")
    >>> [None if (found := bound_of(scalar(each).tree, "a")) is None else text(found) for each in several]
    ['`a`', "`a` - INTERVAL '1' DAY", None, None]
    """
    compared: exp.Expr = tree.unnest()
    if not isinstance(compared, exp.LT | exp.LTE | exp.GT | exp.GTE):
        return None
    sides: list[exp.Expr] = [compared.this.unnest(), compared.expression.unnest()]
    for value, other in itertools.permutations(sides):
        moved = isinstance(value, exp.Add | exp.Sub) and isinstance(value.expression, exp.Interval)
        own: exp.Expr = value.this.unnest() if moved else value
        if isinstance(own, exp.Column) and own.name == name and isinstance(other, exp.Column):
            return value
    return None


def with_bound(tree: exp.Expr, bound: exp.Expr, kept: exp.Column) -> exp.Expr:
    """Return ``tree`` with the column ``kept`` in the place of ``bound``."""
    return replaced(tree, lambda each: kept.copy() if each == bound else each)
