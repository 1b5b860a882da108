"""Expressions of the author's turned into expressions over the plan's columns.

Both are sqlglot trees; in an expression over the plan's columns each `exp.Column` is a quoted name alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from strandline.algebra.scalar import column
from strandline.compute.plan.scalars.functions import AGGREGATES
from strandline.compute.plan.scalars.scope import Scope, Unplanned, parts_of


def resolve(
    expression: exp.Expr,
    scope: Scope,
    aliases: Mapping[str, exp.Expr],
    *,
    aliases_first: bool = False,
    outside: Scope | None = None,
) -> exp.Expr:
    """Return ``expression`` over the plan's columns.

    A name that the FROM clause does not offer may be an alias (lower-case in ``aliases``), which is replaced by what
    it stands for; or, in a subquery, a name of ``outside``. Subqueries are `Unplanned`.
    """
    if expression.find(exp.Query) is not None:
        raise Unplanned("a subquery in an expression")
    if any(not counts_rows(star.parent) for star in expression.find_all(exp.Star)):
        raise Unplanned("a * inside an expression")  # the plan's columns are others, and called otherwise

    def name(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        parts = parts_of(node)
        if aliases_first and len(parts) == 1 and parts[0].lower() in aliases:
            return exp.Paren(this=aliases[parts[0].lower()].copy())
        found = scope.resolve(parts)
        if found is None:
            if len(parts) == 1 and parts[0].lower() in aliases:
                return exp.Paren(this=aliases[parts[0].lower()].copy())
            found = None if outside is None else outside.resolve(parts)
        if found is None:
            raise Unplanned(f"the name {'.'.join(parts)} is unknown here")
        result: exp.Expr = column(found[0].column)
        for field in found[1]:
            result = exp.Dot(this=result, expression=exp.Identifier(this=field, quoted=True))
        return result

    return replaced(expression, name)


def refuse_ambiguous(expression: exp.Expr, scope: Scope, aliases: Mapping[str, exp.Expr]) -> None:
    """Raise `Unplanned` if a name may be an alias or another column of the FROM clause: which one is Spark's to say."""
    for node in expression.find_all(exp.Column):
        alias = aliases.get(node.name.lower()) if not node.table else None
        found = None if alias is None else scope.resolve([node.name])
        if alias is not None and found is not None and alias != column(found[0].column):
            raise Unplanned(f"the name {node.name} is an alias and a column")


def replaced(expression: exp.Expr, change: Callable[[exp.Expr], exp.Expr]) -> exp.Expr:
    """Return a copy in which each topmost node that ``change`` changes is replaced; what it put there is left alone."""

    def go(node: exp.Expr) -> exp.Expr:
        new = change(node)
        if new is not node:
            return new
        for key, value in list(node.args.items()):
            if isinstance(value, exp.Expr):
                node.set(key, go(value))
            elif isinstance(value, list):
                node.set(key, [go(item) if isinstance(item, exp.Expr) else item for item in value])
        return node

    return go(expression.copy())


def counts_rows(node: exp.Expr | None) -> bool:
    """Tell whether ``node`` is ``count(*)``; any other ``*`` stands for columns.

    >>> from strandline.algebra.scalar import scalar
    >>> [counts_rows(scalar(each).tree) for each in ("COUNT(*)", "COUNT(DISTINCT *)", "COUNT(*, a)", "COUNT(t.*)")]
    [True, False, False, False]
    """
    if not isinstance(node, exp.Anonymous) or node.name.lower() != "count" or len(node.expressions) != 1:
        return False
    return isinstance(node.expressions[0], exp.Star) and not any(node.expressions[0].args.values())


def is_aggregate(node: exp.Expr) -> bool:
    """Tell whether ``node`` itself is a call of an aggregate function (its FILTER and the like included)."""
    match node:
        case exp.Filter() | exp.WithinGroup() | exp.IgnoreNulls() | exp.RespectNulls():
            return is_aggregate(node.this)
        case exp.Anonymous():
            return node.name.lower() in AGGREGATES
        case _:
            return isinstance(node, exp.AggFunc)


def has_aggregate(expression: exp.Expr) -> bool:
    """Tell whether ``expression`` calls an aggregate function, other than over a window or in a subquery."""
    if isinstance(expression, exp.Query):
        return False
    if isinstance(expression, exp.Window):
        return any(has_aggregate(e) for key, e in _parts(expression) if key != "this") or any(
            has_aggregate(argument) for argument in expression.this.iter_expressions()
        )
    return is_aggregate(expression) or any(has_aggregate(e) for e in expression.iter_expressions())


def _parts(node: exp.Expr) -> list[tuple[str, exp.Expr]]:
    found: list[tuple[str, exp.Expr]] = []
    for key, value in node.args.items():
        values = value if isinstance(value, list) else [value]
        found.extend((key, v) for v in values if isinstance(v, exp.Expr))
    return found


def conjuncts(expression: exp.Expr) -> list[exp.Expr]:
    """Return the terms of a conjunction.

    >>> from strandline.algebra.scalar import text
    >>> from strandline.compute.plan.scalars.dialect import parse
    >>> [text(c) for c in conjuncts(parse("SELECT (a AND b) AND c OR d").expressions[0])]
    ['(a AND b) AND c OR d']
    >>> [text(c) for c in conjuncts(parse("SELECT (a AND b) AND c").expressions[0])]
    ['a', 'b', 'c']
    """
    if isinstance(expression, exp.And):
        return conjuncts(expression.this) + conjuncts(expression.expression)
    if isinstance(expression, exp.Paren) and isinstance(expression.this, exp.And):
        return conjuncts(expression.this)
    return [expression]
