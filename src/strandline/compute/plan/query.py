"""Queries: set operations, common table expressions, and the last resort for each.

A query that is not understood is recomputed, but only it: the relations in its FROM clause are planned all the same,
and its text runs over them (`_substituted`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import Constant, Node, UnionAll
from strandline.algebra.scalar import Scalar, cast, column, text
from strandline.algebra.schema import RESERVED, Schema
from strandline.compute.plan.keys import clauses_of
from strandline.compute.plan.relations import Ctes, Relations
from strandline.compute.plan.scalars.context import Context, Planned, Unplanned, project, renamed, select
from strandline.compute.plan.scalars.context import names as items
from strandline.compute.plan.scalars.definite import inexact, refuse_unordered
from strandline.compute.plan.scalars.order import (
    complete_cuts,
    complete_lists,
    is_limited,
    ordering,
    output_of,
    refuse_order_within,
    top,
)
from strandline.compute.plan.select import plan_distinct, plan_select

_A: Final = f"{RESERVED}a_side"
_B: Final = f"{RESERVED}b_side"
_REPLACED: Final = frozenset({"this", "alias", "joins", "db", "catalog"})
"""What a relation may have whose plan takes its place in a text; all else (PIVOT, a sample) would be lost."""


@dataclass(slots=True)
class Queries:
    """Plans the queries of one view; ``sql`` is its text."""

    context: Context
    sql: str

    def plan(self, query: exp.Expr, ctes: Ctes) -> Planned:
        """Return the plan of ``query``, or raise `Unplanned`."""
        ctes = self._defined(query, ctes)
        try:
            return self._understood(query, ctes)
        except Unplanned as why:
            return self._substituted(query, ctes, str(why))

    def _defined(self, query: exp.Expr, ctes: Ctes) -> Ctes:
        """Return the common table expressions in sight inside ``query``; each is planned once."""
        defined = query.args.get("with_")
        if defined is None:
            return ctes
        if defined.args.get("recursive"):
            raise Unplanned("a recursive query")
        found = dict(ctes)
        for cte in defined.expressions:
            planned = self.plan(cte.this, found)
            names = [c.name for c in cte.args["alias"].args.get("columns") or []]
            if names:
                if len(names) != len(planned.outputs):
                    raise Unplanned("a common table expression with other columns than its query")
                planned = Planned(planned.node, tuple(zip(names, planned.columns, strict=True)))
            found[cte.alias.lower()] = planned
        return found

    def _understood(self, query: exp.Expr, ctes: Ctes) -> Planned:
        match query:
            case exp.Select():
                return plan_select(self.context, query, Relations(self.context, self.plan, ctes))
            case exp.Subquery():
                return self._ordered(self.plan(query.this, ctes), query)
            case exp.SetOperation():
                return self._ordered(self._set_operation(query, ctes), query)
            case exp.Values():
                return self._values(query)
            case _:
                raise Unplanned(f"the query {text(query)}")

    def _ordered(self, planned: Planned, query: exp.Expr) -> Planned:
        """Apply ORDER BY and LIMIT of a query whose outputs are all there is to order by."""
        if not is_limited(query):
            return planned
        keys = []
        order = query.args.get("order")
        if order is None:
            refuse_order_within(query.this)
        for key in order.expressions if order is not None else ():
            output = output_of(key.this, planned.outputs)
            if output is None:
                raise Unplanned("ORDER BY an expression over the outputs of a query")
            keys.append(ordering(key, output))
        return top(self.context, planned, keys, query)

    def _set_operation(self, query: exp.SetOperation, ctes: Ctes) -> Planned:
        if query.args.get("by_name") or query.side or query.kind:
            raise Unplanned("a set operation by name")
        sides = [self.plan(query.this, ctes), self.plan(query.expression, ctes)]
        schemas = [self._positional(side) for side in sides]
        if len(schemas[0].columns) != len(schemas[1].columns):
            raise Unplanned("a set operation over different numbers of columns")
        word = "UNION" if isinstance(query, exp.Union) else "EXCEPT" if isinstance(query, exp.Except) else "INTERSECT"
        both = {_A: schemas[0], _B: schemas[1]}
        stars = [select([], side) for side in both]
        for star in stars:
            star.set("expressions", [exp.Star()])
        common = self.context.analysed(text(exp.Union(this=stars[0], expression=stars[1], distinct=False)), (), both)
        left, right = (self._widened(side, own, common) for side, own in zip(sides, schemas, strict=True))
        outputs = tuple((name, own) for (name, _), own in zip(sides[0].outputs, left.names, strict=True))
        if word != "UNION":
            kind, distinct = type(query), bool(query.args.get("distinct"))
            a_side, b_side = select(items(left.names), _A), select(items(right.names), _B)
            sql = text(kind(this=a_side, expression=b_side, distinct=distinct))
            reason = f"{word} has no maintenance rule"
            return Planned(self.context.opaque((left, right), both, sql, left.names, reason), outputs)
        union = Planned(UnionAll((left, right)), outputs)
        return plan_distinct(self.context, union) if query.args.get("distinct") else union

    def _positional(self, side: Planned) -> Schema:
        """Return the types of a query's outputs in order (an output may be there twice)."""
        schema = {c.name: c for c in self.context.schema(side.node)}
        names = side.columns
        if len(set(names)) != len(names):
            raise Unplanned("a set operation over the same column twice")
        return Schema(tuple(schema[name] for name in names))

    def _widened(self, side: Planned, own: Schema, common: Schema) -> Node:
        """Return ``side`` with its outputs in order, in the types that both sides have in common.

        Each side alone must have them, since a step may see the updates of one side only.  A widened output has a name
        of its own: below it the column may be stored, in its own type.
        """
        outputs: list[tuple[str, exp.Expr]] = []
        for mine, wanted in zip(own, common, strict=True):
            if mine.type == wanted.type:
                outputs.append((mine.name, column(mine.name)))
            else:
                outputs.append((self.context.names.fresh(mine.name), cast(column(mine.name), wanted.type)))
        return project(side.node, outputs)

    def _values(self, query: exp.Values) -> Planned:
        rows = [row.expressions if isinstance(row, exp.Tuple) else [row] for row in query.expressions]
        if any(row.find(exp.Query) is not None for row in query.expressions):
            raise Unplanned("a subquery in VALUES")
        alias = query.args.get("alias")
        names = [c.name for c in alias.args.get("columns") or []] if alias is not None else []
        names = names or [f"col{n + 1}" for n in range(len(rows[0]))]
        outputs = tuple((name, self.context.names.fresh(name)) for name in names)
        node = Constant(tuple(c for _, c in outputs), tuple(tuple(map(Scalar, row)) for row in rows))
        return Planned(node, outputs)

    def _substituted(self, query: exp.Expr, ctes: Ctes, reason: str) -> Planned:
        """Return ``query`` as it is written, recomputed over the plans of the relations it reads."""
        if is_limited(query):
            plain = query.copy()
            for key in ("limit", "offset", "order", "with_"):
                plain.set(key, None)
            return self._ordered(self._substituted(plain, ctes, reason), query)
        copy = complete_lists(query)
        copy.set("with_", None)
        inner = {cte.alias.lower() for cte in copy.find_all(exp.CTE)}
        inputs: dict[str, Node] = {}
        for relation in list(copy.find_all(exp.Table, exp.Subquery)):
            if relation.find_ancestor(exp.Query) is None and relation is not copy:
                continue
            planned = self._readable(relation, copy, ctes, inner)
            if planned is None:
                continue
            if lost := sorted(clauses_of(relation) - _REPLACED):
                raise Unplanned(f"a relation with {', '.join(lost).upper()}")
            name = f"{RESERVED}relation_{len(inputs)}"
            inputs[name] = renamed(planned.node, [(str(visible), own) for visible, own in planned.outputs])
            alias = relation.args.get("alias") or exp.TableAlias(this=exp.to_identifier(relation.name, quoted=True))
            relation.replace(exp.Table(this=exp.to_identifier(name), alias=alias, joins=relation.args.get("joins")))
        complete_cuts(copy)
        refuse_unordered(copy, self.sql)
        self.context.notes += inexact(copy)
        schemas = {name: self.context.schema(node) for name, node in inputs.items()}
        written = text(copy)
        found = self.context.analysed(written, (), schemas)
        outputs = tuple((c.name, self.context.names.fresh(c.name)) for c in found)
        around = select([(column(name), own) for name, own in outputs], exp.Subquery(this=copy))
        node = self.context.opaque(inputs.values(), inputs, text(around), (own for _, own in outputs), reason)
        return Planned(node, outputs)

    def _readable(self, relation: exp.Expr, query: exp.Expr, ctes: Ctes, inner: set[str]) -> Planned | None:
        """Return the plan of a relation that ``query`` reads, or None if it stays in the text."""
        correlated = isinstance(relation, exp.Subquery) and relation.find_ancestor(exp.Lateral) is not None
        if relation is query or correlated:
            return None
        planned: Planned | None = None
        if isinstance(relation, exp.Subquery):
            if not isinstance(relation.this, exp.Query) or not _in_from(relation, query):
                return None
            try:
                planned = self.plan(relation.this, ctes)
            except Unplanned:
                return None
        elif isinstance(relation, exp.Table) and isinstance(relation.this, exp.Identifier):
            name = relation.name.lower()
            own = self.context.relation(relation.name)
            if name in inner and not relation.db:
                return None
            planned = ctes.get(name) or (None if own is None else self.context.get(own))
        visible = [name for name, _ in planned.outputs] if planned is not None else []
        if any(name is None for name in visible) or len({str(name).lower() for name in visible}) != len(visible):
            raise Unplanned("a relation with columns that have no name of their own")
        return planned


def _in_from(relation: exp.Expr, query: exp.Expr) -> bool:
    """Tell whether ``relation`` stands in the FROM clause of ``query`` itself."""
    parent = relation.parent
    if isinstance(parent, exp.From | exp.Join):
        return parent.parent is query
    return False
