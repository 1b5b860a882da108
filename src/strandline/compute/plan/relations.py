"""FROM and WHERE: relations, inner joins as one n-ary `Join`, other joins as an `Opaque` over their two sides.

A condition goes as far down as it can: to the one input that it speaks of, else to the join.  (Spark would do the
same; here it keeps the updates and old sides of every term small.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from sqlglot import exp

from strandline.algebra.nodes import Constant, Filter, Join, Node
from strandline.algebra.schema import quote
from strandline.compute.plan.context import Context, Planned, project
from strandline.compute.plan.dialect import text
from strandline.compute.plan.expressions import conjuncts, resolve
from strandline.compute.plan.scope import Field, Scope, Unplanned
from strandline.engine.sql import columns_of

Ctes = Mapping[str, Planned]
"""Common table expressions in sight, by lower-case name."""

PlanQuery = Callable[[exp.Expr, Ctes], Planned]

_OUTER = {"LEFT": "LEFT OUTER", "RIGHT": "RIGHT OUTER", "FULL": "FULL OUTER"}
_PLAIN_TABLE = ("this", "alias", "db", "catalog")


@dataclass(slots=True)
class Relations:
    """A FROM clause under construction: the inputs of an inner join so far, its conditions, the names it offers."""

    context: Context
    plan_query: PlanQuery
    ctes: Ctes
    inputs: list[Node] = field(default_factory=list)
    on: list[str] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)

    def read(self, select: exp.Select) -> None:
        """Take the FROM clause, joins and WHERE of ``select``."""
        first = select.args.get("from_")
        if first is None:
            self.inputs = [Constant((), ((),))]
        else:
            node, self.scope = self._relation(first.this)
            self.inputs = [node]
        joins = select.args.get("joins") or []
        for join in joins:
            self._join(join)
        where = select.args.get("where")
        if where is not None:
            for conjunct in conjuncts(where.this):
                self._condition(text(resolve(conjunct, self.scope, {})))

    def node(self) -> Node:
        """Return the plan so far."""
        if len(self.inputs) > 1:
            return Join(tuple(self.inputs), tuple(self.on))
        assert not self.on
        return self.inputs[0]

    def _relation(self, relation: exp.Expr) -> tuple[Node, Scope]:
        """Return the plan of one relation and the names it offers.

        A common table expression is one plan, and each use of it gives its columns names of their own.
        """
        planned = self._planned(relation)
        shared = isinstance(relation, exp.Table) and planned is self.ctes.get(relation.name.lower())
        alias = relation.args.get("alias")
        renamed = [c.name for c in alias.args.get("columns") or []] if alias is not None else []
        if renamed and len(renamed) != len(planned.outputs):
            raise Unplanned("an alias with other columns than its relation")
        qualifier = relation.alias_or_name or None
        fields, columns = [], []
        for position, (name, column) in enumerate(planned.outputs):
            own = self.context.names.fresh(column) if shared else column
            columns.append((own, quote(column)))
            fields.append(Field(qualifier, renamed[position] if renamed else name, own))
        return project(planned.node, columns), Scope(tuple(fields), tuple(fields))

    def _planned(self, relation: exp.Expr) -> Planned:
        match relation:
            case exp.Table() if isinstance(relation.this, exp.Identifier):
                extra = [key for key, value in relation.args.items() if value and key not in _PLAIN_TABLE]
                if extra:
                    raise Unplanned(f"a table with {', '.join(extra)}")
                if not relation.db and relation.name.lower() in self.ctes:
                    return self.ctes[relation.name.lower()]
                own = self.context.relation(".".join(p.name for p in relation.parts))
                if own is None:
                    raise Unplanned(f"the relation {relation.name} is unknown here")
                return self.context.get(own)
            case exp.Subquery() if isinstance(relation.this, exp.Query):
                return self.plan_query(relation.unnest() if not relation.args.get("with_") else relation, self.ctes)
            case exp.Values():
                return self.plan_query(relation, self.ctes)
            case _:
                raise Unplanned(f"the relation {text(relation)}")

    def _join(self, join: exp.Join) -> None:
        if join.args.get("method") or join.args.get("match_condition"):
            raise Unplanned(f"a {join.method} join")
        node, offered = self._relation(join.this)
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        scope, pairs = self.scope.beside(offered, [name.name for name in join.args.get("using") or []])
        conditions = [f"{quote(a.column)} = {quote(b.column)}" for a, b in pairs]
        on = join.args.get("on")
        if on is not None:
            conditions += [text(resolve(conjunct, scope, {})) for conjunct in conjuncts(on)]
        if kind in ("", "INNER", "CROSS") and not side:
            self.inputs.append(node)
            self.scope = scope
            for condition in conditions:
                self._condition(condition)
            return
        self._other_join(node, side, kind, conditions, scope, bool(pairs))

    def _other_join(self, right: Node, side: str, kind: str, conditions: list[str], scope: Scope, using: bool) -> None:
        """Make an outer, semi or anti join of what is joined so far with ``right``: an `Opaque`."""
        left = self.node()
        if kind in ("SEMI", "ANTI"):
            spelled, names = f"LEFT {kind}", left.names
        elif side in _OUTER and not (using and side != "LEFT"):
            spelled, names = _OUTER[side], (*left.names, *right.names)
            self.scope = scope
        else:
            raise Unplanned(f"a {side} {kind} join".replace("  ", " "))
        columns = ", ".join(map(quote, names))
        condition = f" ON {' AND '.join(f'({c})' for c in conditions)}" if conditions else ""
        sql = f"SELECT {columns} FROM left_side {spelled} JOIN right_side{condition}"
        reason = f"a {spelled.lower()} join has no maintenance rule"
        self.inputs = [self.context.opaque((left, right), ("left_side", "right_side"), sql, names, reason)]
        self.on = []

    def _condition(self, condition: str) -> None:
        """Put a condition as far down as it can go."""
        columns = columns_of(condition)
        for position, node in enumerate(self.inputs):
            if columns <= frozenset(node.names) and (columns or len(self.inputs) == 1):
                self.inputs[position] = _filtered(node, condition)
                return
        if len(self.inputs) == 1:
            raise Unplanned(f"the condition {condition} names columns that are not there")
        self.on.append(condition)


def _filtered(node: Node, condition: str) -> Node:
    if isinstance(node, Filter):
        return replace(node, predicate=f"{node.predicate} AND ({condition})")
    return Filter(node, f"({condition})")
