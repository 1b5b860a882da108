"""Subqueries in expressions, joined to the rows that ask for them.

EXISTS and IN as terms of WHERE are semi joins, NOT EXISTS and NOT IN anti joins; EXISTS inside an expression is a
column that says whether there is a match.  A scalar subquery is a column too: of the one row that it has, or of the
group that has the row's keys, if it is an aggregate of rows whose keys equal the row's.  A row without such a group
has the aggregates of nothing: NULL, and 0 for a count.

`x NOT IN (S)` is true if S is empty, or if x and S hold no NULL and x is not in S.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import Equal, Join, Node, Project, Reduce, UnionAll, joined
from strandline.algebra.scalar import Scalar, binary, call, cast, column, columns, conjunction, is_null, number, text
from strandline.algebra.schema import RESERVED
from strandline.compute.plan.aggregate import Reduction
from strandline.compute.plan.matching import anti, filtered, key, marked, matching, outer
from strandline.compute.plan.relations import Relations
from strandline.compute.plan.scalars.context import Context, Field, Unplanned, alike, project
from strandline.compute.plan.scalars.expressions import sides
from strandline.compute.plan.scalars.order import is_limited
from strandline.compute.plan.sql import has_aggregate, replaced


def bound_of(tree: exp.Expr, name: str) -> exp.Expr | None:
    """Return the value of the column ``name`` that ``tree`` compares a column with; None if that is not all it does.

    If a column is only compared with the value of a scalar subquery, the value is its *bound*.  It is kept in a
    collection of its own, so that its old value and its new one are known before rows are looked up
    (`compute.lookups`).

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


_SIMPLE: Final = ("expressions", "from_", "joins", "where", "kind", "hint", "distinct", "order")
"""The clauses of a subquery that reads what is outside of it, and is one for each row there."""
_WITH_NULLS: Final = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
"""Operators whose result is NULL if an operand is."""
_SUBQUERY: Final = f"{RESERVED}subquery"


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a subquery: its outputs are expressions over them; ``correlated`` also reads what is outside."""

    node: Node
    outputs: tuple[exp.Expr, ...]
    correlated: tuple[Scalar, ...] = ()


@dataclass(slots=True)
class Subqueries:
    """Takes the subqueries out of the expressions of one SELECT.

    ``grouped``: its outputs are over groups, so that the rows they ask for are joined to these: ``after`` them.
    """

    relations: Relations
    grouped: bool = False
    after: list[Node] = field(default_factory=list)

    def read(self, select: exp.Select) -> None:
        """Take FROM and WHERE of ``select``."""
        for term in self.relations.read(select):
            self._term(term)

    def taken(self, expression: exp.Expr, *, filters: bool = False) -> exp.Expr:
        """Return ``expression`` with a column in the place of each subquery.

        ``filters``: it is a term of WHERE, so that rows for which it is NULL are not wanted.
        """
        found: list[tuple[str, exp.Expr]] = []

        def take(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.In) and node.args.get("query") is not None:
                raise Unplanned("IN (SELECT …) inside an expression is three-valued; write EXISTS, or a term of WHERE")
            if not (isinstance(node, exp.Query) or _is_exists(node)):
                return node
            if not isinstance(node, exp.Subquery | exp.Exists) or isinstance(node.parent, exp.Any | exp.All):
                raise Unplanned(f"{text(node)} inside an expression")
            name = self.relations.context.names.fresh("subquery")
            found.append((name, node))
            return _column(name)

        over = replaced(expression, take)
        for name, node in found:
            if _is_exists(node):
                self._mark(node, name, grouped=self.grouped and not filters)
            else:
                needed = filters and _null(over, {name})
                bound = bound_of(over, name) if filters else None
                if bound is not None:
                    over = with_bound(over, bound, _column(name))
                self._scalar(node, name, needed=needed, grouped=self.grouped and not filters, bound=bound)
            scope = self.relations.scope
            self.relations.scope = replace(scope, qualified=(*scope.qualified, Field(_SUBQUERY, name, name)))
        return over

    # ---- whether there are rows --------------------------------------------------------------------------------------

    def _term(self, term: exp.Expr) -> None:
        """Take one term of WHERE."""
        negated, inner = False, term
        while isinstance(inner, exp.Paren | exp.Not):
            negated, inner = negated is not isinstance(inner, exp.Not), inner.this
        if _is_exists(inner):
            rows = self._rows(inner.this, outputs=False)
            self._matched(rows.node, rows.correlated, negated=negated)
        elif isinstance(inner, exp.In) and inner.args.get("query") is not None:
            self._membership(inner, negated=negated)
        else:
            self.relations.condition(self.relations.resolved(self.taken(term, filters=True)))

    def _matched(self, right: Node, conditions: Iterable[Scalar], *, negated: bool) -> None:
        """Keep the rows that find a match in ``right``; or those that find none."""
        relations, on = self.relations, tuple(conditions)
        position = relations.place(_read(on) - frozenset(right.names))
        matches = matching(relations.context, relations.inputs[position], right, on)
        if negated:
            relations.inputs[position] = anti(matches)
            return
        relations.inputs[position] = matches.left
        relations.inputs.append(matches.node)
        for condition in matches.conditions:
            relations.condition(condition)

    def _mark(self, exists: exp.Expr, name: str, *, grouped: bool) -> None:
        if grouped:
            raise Unplanned("EXISTS beside an aggregate; write it in a query around this one")
        relations, rows = self.relations, self._rows(exists.this, outputs=False)
        position = relations.place(_read(rows.correlated) - frozenset(rows.node.names))
        matches = matching(relations.context, relations.inputs[position], rows.node, rows.correlated)
        relations.inputs[position] = marked(matches, name)

    def _membership(self, test: exp.In, *, negated: bool) -> None:
        asked = test.this.unnest()
        wanted = [self.relations.resolved(e) for e in (asked.expressions if isinstance(asked, exp.Tuple) else [asked])]
        rows = self._rows(test.args["query"])
        if len(wanted) != len(rows.outputs) or any(isinstance(each.tree, exp.Tuple) for each in wanted):
            raise Unplanned("IN compares a structure; write NOT EXISTS or EXISTS")
        type_ = self._common_type(wanted, rows)
        same = [binary(exp.EQ, value.tree, own) for value, own in zip(wanted, rows.outputs, strict=True)]
        if not negated:
            self._matched(rows.node, (*rows.correlated, *map(Scalar, same)), negated=False)
        elif rows.correlated or len(same) > 1:
            possible = Scalar(call("coalesce", conjunction(same), exp.Boolean(this=True)))
            self._matched(rows.node, (*rows.correlated, possible), negated=True)
        else:
            self._not_in(wanted[0], rows, type_)

    def _not_in(self, value: Scalar, rows: _Rows, type_: str) -> None:
        """Keep the rows whose value is surely not among those of ``rows``.

        NULL stands among the values as soon as there is a row, so that it takes the rows whose own value is NULL.
        """
        name = self.relations.context.names.fresh("among")
        among = Project(rows.node, ((name, Scalar(rows.outputs[0])),))
        there = Project(rows.node, ((name, Scalar(cast(exp.Null(), type_))),))
        same = Scalar(binary(exp.NullSafeEQ, value.tree, column(name)))
        self._matched(UnionAll((among, there)), (same,), negated=True)
        self._matched(filtered(among, [Scalar(is_null(column(name)))]), (), negated=True)

    def _common_type(self, wanted: list[Scalar], rows: _Rows) -> str:
        """Return the type of the last value; all must have that of their output, where equality means the same."""
        context, relations = self.relations.context, self.relations
        left = relations.inputs[relations.place(_read(wanted))]
        ours = context.schema(Project(left, tuple((f"c{n}", value) for n, value in enumerate(wanted))))
        theirs = context.schema(Project(rows.node, tuple((f"c{n}", Scalar(v)) for n, v in enumerate(rows.outputs))))
        if not all(alike(a.type, b.type) for a, b in zip(ours, theirs, strict=True)):
            raise Unplanned(f"IN compares values of several types ({ours.ddl} with {theirs.ddl}); write a CAST")
        return theirs.columns[-1].type

    def _rows(self, query: exp.Expr, *, outputs: bool = True) -> _Rows:
        """Return the rows of a subquery; without ``outputs`` nothing but whether there are any is asked."""
        query = query.unnest()
        if is_limited(query):
            raise Unplanned("LIMIT in a subquery")
        correlated = self._correlated(query)
        if correlated is not None:
            inside, select = correlated
            if any(_is_more(each) for each in select.expressions):
                raise Unplanned("a subquery that reads what is outside, and computes more than values of its rows")
            items = [_unaliased(each) for each in select.expressions] if outputs else []
            given = tuple(inside.resolved(each).tree for each in items)
            return _Rows(inside.node(), given, tuple(inside.correlated))
        planned = self.relations.plan_query(query, self.relations.ctes)
        return _Rows(planned.node, tuple(map(column, planned.columns)))

    def _correlated(self, query: exp.Expr) -> tuple[Relations, exp.Select] | None:
        """Return the relations of a subquery that reads what is outside of it; None if it does not."""
        if not isinstance(query, exp.Select) or query.args.get("where") is None:
            return None
        inside = self.relations.inside()
        try:
            Subqueries(inside).read(query)
        except Unplanned:
            return None
        if not inside.correlated:
            return None
        if any(value and clause not in _SIMPLE for clause, value in query.args.items()):
            raise Unplanned("a subquery that reads what is outside, with a GROUP BY or the like")
        return inside, query

    # ---- what the row is ---------------------------------------------------------------------------------------------

    def _scalar(self, subquery: exp.Expr, name: str, *, needed: bool, grouped: bool, bound: exp.Expr | None) -> None:
        """Add the column ``name``; ``needed``: rows for which it is NULL are not wanted.

        ``bound``: a column is only compared with this value of it.  It is kept, so that its old value and its new one
        are known before rows are looked up (`lookups`).
        """
        query, relations = subquery.unnest(), self.relations
        if is_limited(query):
            raise Unplanned("LIMIT in a subquery")
        correlated = self._correlated(query)
        if correlated is not None:
            if grouped:
                raise Unplanned("a subquery that reads what is outside, beside an aggregate")
            self._of_group(*correlated, name, needed=needed)
            return
        planned = relations.plan_query(query, relations.ctes)
        if len(planned.columns) != 1 or key(planned.node) != ():
            raise Unplanned("a scalar subquery that may have several rows; write an aggregate, as max(…)")
        node = project(planned.node, [(name, column(planned.columns[0]))])
        if grouped and _is_one(node):
            self.after.append(node)
        elif grouped:
            raise Unplanned("a scalar subquery that may have no row beside an aggregate")
        elif needed or _is_one(node):
            relations.inputs.append(node if bound is None else self._kept(node, bound))
        else:
            relations.inputs[0] = outer(relations.context, relations.inputs[0], node, ())

    def _kept(self, node: Node, bound: exp.Expr) -> Node:
        """Return the value ``bound`` of the one row of ``node``, stored."""
        (name,) = node.names
        value = replaced(bound, lambda each: column(name) if isinstance(each, exp.Column) else each)
        made = Reduce(Project(node, ((name, Scalar(value)),)), tuple(columns([name])), ())
        self.relations.context.learn(made)
        return made

    def _of_group(self, inside: Relations, select: exp.Select, name: str, *, needed: bool) -> None:
        """Add the value of an aggregate over the rows whose keys equal those of the row outside."""
        relations, node = self.relations, inside.node()
        (item,) = map(_unaliased, select.expressions)
        if not has_aggregate(item):
            raise Unplanned("a scalar subquery that may have several rows; write an aggregate, as max(…)")
        position = relations.place(_read(inside.correlated) - frozenset(node.names))
        left = relations.inputs[position]
        equal = _keys(relations.context, joined((left, node), inside.correlated))
        reduction = Reduction(relations.context, node, [each.right.tree for each in equal])
        value = reduction.over(inside.resolved(item).tree)
        conditions = [replace(each, right=Scalar(reduction.over(each.right.tree))).condition for each in equal]
        groups = reduction.reduce()
        counts = {each.name for each in groups.aggregates if each.function == "count"}
        if needed and _null(value, {each.name for each in groups.aggregates} - counts):
            keys = columns(each for each, _ in groups.keys)
            relations.inputs.append(Project(groups, (*keys, (name, Scalar(value)))))
            for condition in conditions:
                relations.condition(condition)
            return

        def of_nothing(each: exp.Expr) -> exp.Expr:
            counted = isinstance(each, exp.Column) and each.name in counts
            return call("coalesce", each, cast(number(0), "bigint")) if counted else each

        beside = outer(relations.context, left, groups, conditions)
        computed = (name, Scalar(replaced(value, of_nothing)))
        relations.inputs[position] = Project(beside, (*columns(left.names), computed))


def _keys(context: Context, join: Join) -> tuple[Equal, ...]:
    """Return the keys of a join of the rows outside with those of the subquery."""
    if join.on or any(each.nulls for each in join.equal):
        raise Unplanned("an aggregate of rows that are chosen by more than equalities with the row outside")
    return sides(context, join, grouped=True)


def _null(tree: exp.Expr, nulls: set[str]) -> bool:
    """Tell whether ``tree`` is NULL if the columns ``nulls`` are.

    >>> from strandline.algebra.scalar import scalar
    >>> [_null(scalar(each).tree, {"a"}) for each in ("(`a` * 2) > `b`", "`b` IS NULL", "COALESCE(`a`, 1) = 1")]
    [True, False, False]
    """
    match tree:
        case exp.Column():
            return tree.name in nulls
        case exp.Paren() | exp.Neg() | exp.Cast():
            return _null(tree.this, nulls)
        case exp.Binary() if isinstance(tree, _WITH_NULLS):
            return _null(tree.this, nulls) or _null(tree.expression, nulls)
        case _:
            return False


def _column(name: str) -> exp.Column:
    """Return the column that stands in the place of a subquery."""
    return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(_SUBQUERY, quoted=True))


def _is_one(node: Node) -> bool:
    """Tell whether ``node`` has one row at every time.

    >>> from strandline.algebra.nodes import Get
    >>> from strandline.algebra.scalar import scalar
    >>> one, other = (Reduce(Get(frame, ((frame, frame),)), (), ()) for frame in "tu")
    >>> [_is_one(each) for each in (Join((one, other)), Join((one, other), on=(scalar("`t` > `u`"),)))]
    [True, False]
    """
    match node:
        case Reduce():
            return not node.keys
        case Project():
            return _is_one(node.input) and not any(value.generates for _, value in node.columns)
        case Join():
            return not node.conditions and all(map(_is_one, node.inputs))
        case _:
            return False


def _is_exists(node: exp.Expr) -> bool:
    return isinstance(node, exp.Exists) and isinstance(node.this, exp.Query)


def _is_more(item: exp.Expr) -> bool:
    """Tell whether an item of a SELECT is more than one value of each row."""
    return has_aggregate(item) or item.find(exp.Window, exp.Query) is not None or Scalar(item).generates


def _unaliased(item: exp.Expr) -> exp.Expr:
    return item.this if isinstance(item, exp.Alias) else item


def _read(conditions: Iterable[Scalar]) -> frozenset[str]:
    return frozenset(name for each in conditions for name in each.columns)
