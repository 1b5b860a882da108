"""Queries that are recomputed, made definite: float aggregates fold sorted values, windows order whole rows.

A `Reduce` needs none of this, its rules see to it.  Here are the aggregates and windows that stay Spark's, inside an
`Opaque`.

Source: design page "the map" (decision 7, law D).
"""

from __future__ import annotations

from collections.abc import Iterable

import sqlglot
from sqlglot import exp

from strandline.algebra.nodes import Node, Project
from strandline.compute.plan.context import Context
from strandline.compute.plan.definite import is_positional
from strandline.compute.plan.dialect import Faithful, text
from strandline.compute.plan.expressions import column, replaced
from strandline.compute.plan.functions import FOLDED, VARIANCES
from strandline.compute.plan.scope import Unplanned

_ROUNDED = ("float", "double", "string")
"""Argument types that Spark adds up as doubles, with a rounding at each step."""


def complete_windows(expression: exp.Expr, columns: Iterable[str]) -> exp.Expr:
    """Return ``expression`` with all ``columns`` added to the ORDER BY of windows that look at positions."""
    names = list(columns)

    def complete(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Window):
            return node
        if node.args.get("alias") is not None:
            raise Unplanned("a named window")
        if not is_positional(node):
            return node
        window = node.copy()
        order = window.args.get("order")
        if order is None:
            raise Unplanned("a window over positions without ORDER BY")
        ties = [exp.Ordered(this=column(name), nulls_first=True) for name in names]
        window.set("order", exp.Order(expressions=[*order.expressions, *ties]))
        return window

    return replaced(expression, complete)


def definite_folds(context: Context, node: Node, expression: exp.Expr) -> exp.Expr:
    """Return ``expression`` (over ``node``'s columns) with its float aggregates as folds over sorted values."""

    def fold(found: exp.Expr) -> exp.Expr:
        call, over = (found.this, found) if isinstance(found, exp.Window) else (found, None)
        call, condition = (call.this, call) if isinstance(call, exp.Filter) else (call, None)
        if not isinstance(call, exp.Anonymous) or call.name.lower() not in FOLDED or len(call.expressions) != 1:
            return found
        argument, gather = call.expressions[0], "collect_list"
        if isinstance(argument, exp.Distinct):
            argument, gather = argument.expressions[0], "collect_set"
        name = call.name.lower()
        if name not in VARIANCES and _type(context, node, argument) not in _ROUNDED:
            return found
        gathered: exp.Expr = _parsed(f"{gather}(CAST({text(argument)} AS DOUBLE))")
        for around in (condition, over):
            if around is not None:
                outer = around.copy()
                outer.set("this", gathered)
                gathered = outer
        values = f"sort_array({text(gathered)})"
        return _parsed(f"({_variance(name, values) if name in VARIANCES else _total(name, values)})")

    return replaced(expression, fold)


def _type(context: Context, node: Node, argument: exp.Expr) -> str:
    if argument.find(exp.Window, exp.AggFunc) is not None:
        raise Unplanned("an aggregate of an aggregate")
    return context.schema(Project(node, (("argument", text(argument)),))).columns[0].type


def _total(name: str, values: str) -> str:
    total = f"aggregate({values}, 0D, (total, value) -> total + value)"
    value = f"{total} / size({values})" if name in ("avg", "mean", "try_avg") else total
    return f"CASE WHEN size({values}) > 0 THEN {value} END"


def _variance(name: str, values: str) -> str:
    """Return Welford's recurrence over the sorted values (B. P. Welford, Technometrics 4(3), 1962)."""
    divisor, root = VARIANCES[name]
    least, by = (1, "a.n - 1") if divisor == "sample" else (0, "a.n")
    mean = "a.m + (v - a.m) / (a.n + 1)"
    step = f"named_struct('n', a.n + 1, 'm', {mean}, 's', a.s + (v - a.m) * (v - ({mean})))"
    value = f"sqrt(a.s / ({by}))" if root else f"a.s / ({by})"
    start = "named_struct('n', 0D, 'm', 0D, 's', 0D)"
    return f"aggregate({values}, {start}, (a, v) -> {step}, a -> CASE WHEN a.n > {least} THEN {value} END)"


def _parsed(sql: str) -> exp.Expr:
    return sqlglot.parse_one(sql, dialect=Faithful)
