"""SELECT: items, GROUP BY, HAVING, windows, DISTINCT, over a planned FROM clause.

Every name is resolved first (`scope`), aliases and ordinals replaced by what they stand for; then there are only
expressions over the plan's columns.  What has no rule (windows, other aggregates) becomes an `Opaque`
over the planned rows below it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import Filter, Node, Reduce, joined
from strandline.algebra.scalar import Scalar, column, columns, conjunction, text
from strandline.compute.plan.aggregate import AFTER_KEYS, Reduction, definite_folds, grouping_sets
from strandline.compute.plan.relations import Relations
from strandline.compute.plan.scalars.context import ROWS, Context, Planned, Scope, Unplanned, project
from strandline.compute.plan.scalars.context import select as composed
from strandline.compute.plan.scalars.expressions import refuse_ambiguous, resolve, starred
from strandline.compute.plan.scalars.order import (
    complete_lists,
    complete_windows,
    first_of_each,
    is_limited,
    ordering,
    output_of,
    refuse_order_within,
    top,
)
from strandline.compute.plan.sql import MERGING, conjuncts, has_aggregate
from strandline.compute.plan.subqueries import Subqueries

_KNOWN = frozenset(
    [
        "expressions",
        "from_",
        "joins",
        "laterals",
        "where",
        "group",
        "having",
        "distinct",
        "order",
        "limit",
        "offset",
        "with_",
        "hint",
        "sort",
        "cluster",
        "distribute",
        "qualify",
        "kind",
    ]
)


@dataclass(frozen=True, slots=True)
class _Item:
    """One output: the author's name, the plan's column, the expression; not ``shown`` if only ORDER BY needs it."""

    name: str | None
    column: str
    expression: exp.Expr
    shown: bool = True


def plan_select(context: Context, select: exp.Select, relations: Relations) -> Planned:
    """Return the plan of ``select``, or raise `Unplanned`."""
    unknown = [key for key, value in select.args.items() if value and key not in _KNOWN]
    if unknown:
        raise Unplanned(f"{', '.join(sorted(unknown)).upper()} in a SELECT")
    subqueries = Subqueries(relations, grouped=_is_grouped(select))
    subqueries.read(select)
    items = _items(context, select, subqueries)
    aliases = _aliases(items)
    keys, hidden = _order(context, select, items, relations.scope, aliases)
    items += hidden
    node = _rows(context, select, subqueries, items, aliases)
    shown = [item for item in items if item.shown]
    planned = Planned(node, tuple((item.name, item.column) for item in shown))
    distinct = select.args.get("distinct")
    if distinct is not None:
        if hidden or distinct.args.get("on") is not None:
            raise Unplanned("DISTINCT with an ORDER BY of what is not selected")
        planned = plan_distinct(context, planned)
    return top(context, planned, keys, select) if is_limited(select) else planned


def plan_distinct(context: Context, planned: Planned) -> Planned:
    """Return the distinct rows of ``planned``."""
    node = Reduce(planned.node, columns(dict.fromkeys(planned.columns)), ())
    context.learn(node)
    return Planned(node, planned.outputs)


def _is_grouped(select: exp.Select) -> bool:
    """Tell whether the outputs of ``select`` are of groups."""
    clauses = (select.args.get("having"), select.args.get("qualify"))
    expressions = [*select.expressions, *(clause.this for clause in clauses if clause is not None)]
    return select.args.get("group") is not None or any(map(has_aggregate, expressions))


def _items(context: Context, select: exp.Select, subqueries: Subqueries) -> list[_Item]:
    items: list[_Item] = []
    for written in select.expressions:
        every = starred(written, subqueries.relations.scope)
        if every is not None:
            items += [_Item(each.name, context.names.fresh(each.name), column(each.column)) for each in every]
            continue
        expression = written.this if isinstance(written, exp.Alias) else written
        if isinstance(expression, exp.Aliases) or expression.find(exp.Lateral) is not None:
            raise Unplanned(f"{text(expression)} in a SELECT")
        name = written.alias if isinstance(written, exp.Alias) else _own_name(expression)
        taken = subqueries.taken(expression)
        resolved = resolve(taken, subqueries.relations.scope, _aliases(items))
        items.append(_Item(name, context.names.fresh(name), resolved))
    return items


def _own_name(expression: exp.Expr) -> str | None:
    return expression.name if isinstance(expression, exp.Column | exp.Dot) else None


def _aliases(items: Sequence[_Item]) -> dict[str, exp.Expr]:
    return {item.name.lower(): item.expression for item in items if item.name is not None}


def _order(
    context: Context, select: exp.Select, items: Sequence[_Item], scope: Scope, aliases: dict[str, exp.Expr]
) -> tuple[list[exp.Ordered], list[_Item]]:
    """Return the keys of ORDER BY over output columns, and items for those that are no output."""
    order = select.args.get("order")
    if order is None and is_limited(select):
        refuse_order_within(select.args.get("from_"))
    if order is None or not is_limited(select):
        return [], []
    outputs = [(item.name, item.column) for item in items]
    keys: list[exp.Ordered] = []
    hidden: list[_Item] = []
    for key in order.expressions:
        if not isinstance(key, exp.Ordered):
            raise Unplanned(f"ORDER BY {text(key)}")
        output = output_of(key.this, outputs)
        if output is None:
            aggregates = has_aggregate(key.this)
            if aggregates:
                refuse_ambiguous(key.this, scope, aliases)
            output = context.names.fresh("ordering")
            ordered = resolve(key.this, scope, aliases, aliases_first=not aggregates)
            hidden.append(_Item(None, output, ordered, shown=False))
        keys.append(ordering(key, output))
    return keys, hidden


def _rows(
    context: Context, select: exp.Select, subqueries: Subqueries, items: Sequence[_Item], aliases: dict[str, exp.Expr]
) -> Node:
    """Return the node whose columns are the items."""
    relations = subqueries.relations
    conditions: list[exp.Expr | None] = []
    for clause in (select.args.get("having"), select.args.get("qualify")):
        taken = None if clause is None else subqueries.taken(clause.this)
        if taken is not None:
            refuse_ambiguous(taken, relations.scope, aliases)
        conditions.append(None if taken is None else resolve(taken, relations.scope, aliases))
    kept, filtered = conditions
    scope, node = relations.scope, relations.node()
    group = select.args.get("group")
    expressions = [*(item.expression for item in items), *(e for e in (kept, filtered) if e is not None)]
    if group is None and not any(has_aggregate(e) for e in expressions):
        if kept is not None:
            raise Unplanned("HAVING without a GROUP BY")
        return _output(context, node, items, filtered)
    try:
        after = frozenset(name for each in subqueries.after for name in each.names)
        keys, sets = _keys(group, items, scope, aliases)
        reduction = Reduction(context, node, keys, after, sets)
        lifted = [replace(item, expression=reduction.over(item.expression)) for item in items]
        having_over = None if kept is None else reduction.over(kept)
        qualify_over = None if filtered is None else reduction.over(filtered)
        reduced = reduction.rows()
        if subqueries.after:
            reduced = joined((reduced, *subqueries.after), ())
    except Unplanned as why:
        return _grouped(context, node, select, items, (kept, filtered), scope, aliases, str(why))
    if having_over is not None:
        reduced = Filter(reduced, Scalar(conjunction(conjuncts(having_over))))
    return _output(context, reduced, lifted, qualify_over)


def _keys(
    group: exp.Group | None, items: Sequence[_Item], scope: Scope, aliases: dict[str, exp.Expr]
) -> tuple[list[exp.Expr], list[frozenset[Scalar]]]:
    """Return the expressions that are grouped by, and those of each grouping set if there are any."""
    if group is None:
        return [], []
    if group.args.get("all"):
        return _all_keys(items), []
    several = grouping_sets(group)
    written, sets = several or (group.expressions, [])
    if any(isinstance(key, exp.Tuple) for key in written):
        raise Unplanned("GROUP BY a structure")
    found = [_key(key, items, scope, aliases) for key in written]
    if any(has_aggregate(key) or key.find(exp.Window) is not None for key in found):
        raise Unplanned("GROUP BY an aggregate")
    if any(call.name.lower() in MERGING for key in found for call in key.find_all(exp.Anonymous)):
        raise Unplanned("a row may join two groups into one, so that groups have no maintenance rule")
    if sets:
        own = {Scalar(key).column for key in found}
        if any(Scalar(key).columns <= own for key in found if not isinstance(key, exp.Column)):
            raise Unplanned("a key of grouping sets that is computed from others")  # in other words, it is them
    return found, [frozenset(Scalar(_key(key, items, scope, aliases)) for key in each) for each in sets]


def _all_keys(items: Sequence[_Item]) -> list[exp.Expr]:
    """Return the keys of GROUP BY ALL."""
    keys = [item.expression for item in items if item.shown and not has_aggregate(item.expression)]
    if any(key.find(exp.Column) is None for key in keys):
        raise Unplanned("GROUP BY ALL with a constant")
    return keys


def _key(key: exp.Expr, items: Sequence[_Item], scope: Scope, aliases: dict[str, exp.Expr]) -> exp.Expr:
    """Return what one element of GROUP BY means: a position, or an expression."""
    if isinstance(key, exp.Literal) and not key.is_string:
        return items[int(key.name) - 1].expression
    return resolve(key, scope, aliases).unnest()


def _output(context: Context, node: Node, items: Sequence[_Item], qualify: exp.Expr | None) -> Node:
    """Return the items over ``node``: a projection, or a recomputed query where there are windows."""
    if qualify is None and not any(item.expression.find(exp.Window) for item in items):
        return project(node, [(item.column, item.expression) for item in items])
    return _recomputed(context, node, items, {"qualify": qualify}, "no column of PARTITION BY is common to its windows")


def _grouped(
    context: Context,
    node: Node,
    select: exp.Select,
    items: Sequence[_Item],
    conditions: tuple[exp.Expr | None, exp.Expr | None],
    scope: Scope,
    aliases: dict[str, exp.Expr],
    reason: str,
) -> Node:
    """Return a GROUP BY that has no rule as a recomputed query over the planned rows."""
    group = select.args.get("group")
    clauses: dict[str, exp.Expr] = {}
    if group is not None:
        if any(group.args.get(key) for key in AFTER_KEYS):
            raise Unplanned("grouping sets that follow the keys")  # their names would stay the author's
        resolved = group.copy()
        if group.args.get("all"):
            resolved.set("all", None)
            resolved.set("expressions", _all_keys(items))
        else:
            resolved.set("expressions", [_key(key, items, scope, aliases) for key in group.expressions])
            _refuse_constants(group, scope, aliases)
        if resolved.expressions:
            clauses["group"] = resolved
    having, qualify = conditions
    return _recomputed(context, node, items, {"having": having, "qualify": qualify}, reason, clauses)


def _refuse_constants(group: exp.Group, scope: Scope, aliases: dict[str, exp.Expr]) -> None:
    """Raise `Unplanned` if a name in ``group`` stands for a constant, which in its place would be a position."""
    for name in group.find_all(exp.Column):
        if resolve(name, scope, aliases).find(exp.Column) is None:
            raise Unplanned(f"GROUP BY {name.name}, which is a constant")


_CONDITIONS: Final[dict[str, type[exp.Expr]]] = {"having": exp.Having, "qualify": exp.Qualify}


def _recomputed(
    context: Context,
    node: Node,
    items: Sequence[_Item],
    conditions: Mapping[str, exp.Expr | None],
    reason: str,
    clauses: Mapping[str, exp.Expr] | None = None,
) -> Node:
    """Return a SELECT over the rows of ``node`` that runs as it is, made definite."""
    shown = [(_definite(context, node, item.expression), item.column) for item in items]
    kept = {
        name: _CONDITIONS[name](this=_definite(context, node, condition))
        for name, condition in conditions.items()
        if condition is not None
    }
    sql = text(composed(shown, ROWS, **(clauses or {}), **kept))
    qualify = conditions.get("qualify")
    first, partition = None, frozenset[str]()
    if qualify is not None and not clauses and conditions.get("having") is None:
        first, partition = first_of_each(qualify, [item.expression for item in items])
    columns = [item.column for item in items]
    return context.opaque((node,), (ROWS,), sql, columns, reason, first=first, partition=partition)


def _definite(context: Context, node: Node, expression: exp.Expr) -> exp.Expr:
    return definite_folds(context, node, complete_windows(complete_lists(expression), node.names))
