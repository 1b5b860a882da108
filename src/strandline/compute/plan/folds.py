"""Queries that are recomputed, made definite: floats fold sorted values, 64-bit integers add exactly.

A `Reduce` needs none of this, its rules see to it.  Here are the aggregates that stay Spark's, inside an `Opaque`.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import Node, Project
from strandline.algebra.scalar import Scalar, call, cast, operand
from strandline.compute.plan.scalars.compose import filled, parsed
from strandline.compute.plan.scalars.context import Context
from strandline.compute.plan.scalars.scope import Unplanned
from strandline.compute.plan.sql.functions import FOLDED, VARIANCES
from strandline.compute.plan.sql.trees import replaced

_ROUNDED: Final = ("float", "double", "string")
"""Argument types that Spark adds up as doubles, with a rounding at each step."""
_WIDE: Final = "bigint"
"""The argument type whose sum may overflow in one order of rows and not in another, and whose average is of doubles."""


def definite_folds(context: Context, node: Node, expression: exp.Expr) -> exp.Expr:
    """Return ``expression`` (over ``node``'s columns) with aggregates that no order of rows changes."""

    def definite(found: exp.Expr) -> exp.Expr:
        fold, over = (found.this, found) if isinstance(found, exp.Window) else (found, None)
        fold, condition = (fold.this, fold) if isinstance(fold, exp.Filter) else (fold, None)
        if not isinstance(fold, exp.Anonymous) or fold.name.lower() not in FOLDED or len(fold.expressions) != 1:
            return found
        argument, name = fold.expressions[0], fold.name.lower()
        if distinct := isinstance(argument, exp.Distinct):
            argument = argument.expressions[0]
        type_ = "double" if name in VARIANCES else _type(context, node, argument)
        if type_ == _WIDE:
            total, counted = (_placed(each, condition, over) for each in _exact(argument, distinct=distinct))
            template = _EXACT_MEAN if name in _MEANS else _EXACT_TRIED if name == "try_sum" else _EXACT_TOTAL
            return operand(filled(template, {"total": total, "counted": counted}))
        if type_ not in _ROUNDED:
            return found
        gathered = call("collect_set" if distinct else "collect_list", cast(argument, "double"))
        template = _variance(name) if name in VARIANCES else _MEAN if name in _MEANS else _TOTAL
        return operand(filled(template, {"summed": call("sort_array", _placed(gathered, condition, over))}))

    return replaced(expression, definite)


def _exact(argument: exp.Expr, *, distinct: bool) -> tuple[exp.Expr, exp.Expr]:
    """Return the exact sum of 64-bit integers, and how many there are."""
    terms, counted = cast(argument, "decimal(20,0)"), argument.copy()
    if distinct:
        terms, counted = exp.Distinct(expressions=[terms]), exp.Distinct(expressions=[counted])
    return call("sum", terms), call("count", counted)


def _placed(aggregate: exp.Expr, *around: exp.Expr | None) -> exp.Expr:
    """Return ``aggregate`` under the condition and over the window of another one."""
    for each in around:
        if each is not None:
            outer = each.copy()
            outer.set("this", aggregate)
            aggregate = outer
    return aggregate


def _type(context: Context, node: Node, argument: exp.Expr) -> str:
    if argument.find(exp.Window, exp.AggFunc) is not None:
        raise Unplanned("an aggregate of an aggregate")
    return context.schema(Project(node, (("argument", Scalar(argument)),))).columns[0].type


_MEANS: Final = ("avg", "mean", "try_avg")
_SUM: Final = (
    "aggregate(summed, named_struct('t', 0D, 'v', 0D, 'n', 0D),"
    " (a, v) -> IF(v = a.v, named_struct('t', a.t, 'v', v, 'n', a.n + 1),"
    " named_struct('t', a.t + a.v * a.n, 'v', v, 'n', 1D)), a -> a.t + a.v * a.n)"
)
"""Each value once, times how often it is there: as `engine.sql.grouping` adds them, which keeps counts."""
_TOTAL: Final = parsed(f"CASE WHEN size(summed) > 0 THEN {_SUM} END")
_EXACT_TOTAL: Final = parsed("CAST(total AS BIGINT)")
_EXACT_TRIED: Final = parsed("TRY_CAST(total AS BIGINT)")
_EXACT_MEAN: Final = parsed("CAST(total AS DOUBLE) / NULLIF(counted, 0L)")
_MEAN: Final = parsed(f"CASE WHEN size(summed) > 0 THEN {_SUM} / size(summed) END")


def _variance(name: str) -> exp.Expr:
    """Return Welford's recurrence over the sorted values (B. P. Welford, Technometrics 4(3), 1962)."""
    divisor, root = VARIANCES[name]
    least, by = (1, "a.n - 1") if divisor == "sample" else (0, "a.n")
    mean = "a.m + (v - a.m) / (a.n + 1)"
    step = f"named_struct('n', a.n + 1, 'm', {mean}, 's', a.s + (v - a.m) * (v - ({mean})))"
    value = f"sqrt(a.s / ({by}))" if root else f"a.s / ({by})"
    start = "named_struct('n', 0D, 'm', 0D, 's', 0D)"
    return parsed(f"aggregate(summed, {start}, (a, v) -> {step}, a -> CASE WHEN a.n > {least} THEN {value} END)")
