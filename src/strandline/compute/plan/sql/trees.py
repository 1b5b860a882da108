"""What the tree of a text shows by itself: terms, aggregates, names; no catalog and no scope is asked."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from strandline.compute.plan.sql.functions import AGGREGATES


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


def mentioned(query: exp.Expr) -> frozenset[str] | None:
    """Return the identifiers of a whole text, lower-case: no other column can matter to it; None if all may.

    >>> from strandline.compute.plan.sql.dialect import parse
    >>> texts = ("SELECT count(*) AS n FROM T", "SELECT hash(*) FROM t", "SELECT a FROM t NATURAL JOIN u")
    >>> [(names := mentioned(parse(each))) and sorted(names) for each in texts]
    [['n', 't'], None, None]
    """
    if any(not counts_rows(star.parent) for star in query.find_all(exp.Star)):
        return None
    if query.find(exp.Pivot) is not None or any(join.args.get("method") for join in query.find_all(exp.Join)):
        return None  # PIVOT groups by the columns that it does not name, NATURAL joins by those that both sides have
    return frozenset(name.name.lower() for name in query.find_all(exp.Identifier))


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
    >>> from strandline.compute.plan.sql.dialect import parse
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
