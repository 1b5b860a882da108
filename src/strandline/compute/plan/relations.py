"""FROM and WHERE: relations, inner joins as one n-ary `Join`, other joins as sums of such joins (`matching`).

A condition goes as far down as it can: to the one input that it speaks of, else to the join; and so does a join of
another kind, which takes the place of the one input that its conditions speak of.  (Spark would do the same; here it
keeps the updates and old sides of every term small.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlglot import exp

from strandline.algebra.nodes import Constant, Node, Project, joined
from strandline.algebra.scalar import Scalar, call, column, columns, conjunction, text
from strandline.algebra.schema import RESERVED
from strandline.compute.plan.matching import anti, filtered, full, matching, outer, semi
from strandline.compute.plan.scalars.context import Context, Field, Planned, Scope, Unplanned, renamed
from strandline.compute.plan.scalars.context import names as items
from strandline.compute.plan.scalars.context import relation as named
from strandline.compute.plan.scalars.context import select as composed
from strandline.compute.plan.scalars.expressions import resolve
from strandline.compute.plan.sql import conjuncts

Ctes = Mapping[str, Planned]
"""Common table expressions in sight, by lower-case name."""

PlanQuery = Callable[[exp.Expr, Ctes], Planned]

_CHOOSING: Final = ("SEMI", "ANTI")
_OUTER: Final = ("LEFT", "RIGHT", "FULL")
_LEFT: Final = f"{RESERVED}left_side"
_RIGHT: Final = f"{RESERVED}right_side"
_ONE_COLUMN: Final = ("explode", "explode_outer")
_PLAIN_SUBQUERY: Final = ("this", "alias")
_PLAIN_VALUES: Final = ("expressions", "alias")
_PLAIN_TABLE: Final = ("this", "alias", "db", "catalog")


@dataclass(slots=True)
class Relations:
    """A FROM clause under construction: the inputs of an inner join so far, its conditions, the names it offers.

    ``outside``: what the query offers that this one is a subquery of; ``correlated``: the conditions that read it.
    """

    context: Context
    plan_query: PlanQuery
    ctes: Ctes
    outside: Scope | None = None
    inputs: list[Node] = field(default_factory=list)
    on: list[Scalar] = field(default_factory=list)
    correlated: list[Scalar] = field(default_factory=list)
    scope: Scope = field(default_factory=Scope)

    def read(self, select: exp.Select) -> list[exp.Expr]:
        """Take the FROM clause, joins and WHERE of ``select``; return the terms of WHERE that hold subqueries."""
        first = select.args.get("from_")
        if first is None:
            self.inputs = [Constant((), ((),))]
        else:
            node, self.scope = self._relation(first.this)
            self.inputs = [node]
        for join in select.args.get("joins") or []:
            self._join(join)
        for lateral in select.args.get("laterals") or []:
            self._lateral(lateral)
        where = select.args.get("where")
        terms = [] if where is None else conjuncts(where.this)
        for term in terms:
            if term.find(exp.Query) is None:
                self.condition(self.resolved(term))
        return [term for term in terms if term.find(exp.Query) is not None]

    def resolved(self, expression: exp.Expr) -> Scalar:
        """Return an expression of this query's over the plan's columns."""
        return Scalar(resolve(expression, self.scope, {}, outside=self.outside))

    def inside(self) -> Relations:
        """Return the FROM clause, to be made, of a subquery."""
        return Relations(self.context, self.plan_query, self.ctes, self.scope)

    def node(self) -> Node:
        """Return the plan so far."""
        if len(self.inputs) > 1:
            return joined(self.inputs, self.on)
        assert not self.on
        return self.inputs[0]

    def place(self, names: frozenset[str]) -> int:
        """Return the position of the one input with these columns, which is all that is joined so far if need be."""
        for position, node in enumerate(self.inputs):
            if names <= frozenset(node.names):
                return position
        self.inputs, self.on = [self.node()], []
        if not names <= frozenset(self.inputs[0].names):
            raise Unplanned("a condition reads what is neither here nor around here")
        return 0

    def _relation(self, relation: exp.Expr) -> tuple[Node, Scope]:
        """Return the plan of one relation and the names it offers.

        A common table expression is one plan, and each use of it gives its columns names of their own.
        """
        planned = self._planned(relation)
        shared = isinstance(relation, exp.Table) and planned is self.ctes.get(relation.name.lower())
        alias = relation.args.get("alias")
        given = [c.name for c in alias.args.get("columns") or []] if alias is not None else []
        if given and len(given) != len(planned.outputs):
            raise Unplanned("an alias with other columns than its relation")
        qualifier = relation.alias_or_name or None
        fields, renamings = [], []
        for position, (name, output) in enumerate(planned.outputs):
            own = self.context.names.fresh(output) if shared else output
            renamings.append((own, output))
            fields.append(Field(qualifier, given[position] if given else name, own))
        return renamed(planned.node, renamings), Scope(tuple(fields), tuple(fields))

    def _planned(self, relation: exp.Expr) -> Planned:
        match relation:
            case exp.Table() if isinstance(relation.this, exp.Identifier):
                _refuse_more(relation, "a table", _PLAIN_TABLE)
                if not relation.db and relation.name.lower() in self.ctes:
                    return self.ctes[relation.name.lower()]
                own = self.context.relation(".".join(p.name for p in relation.parts))
                if own is None:
                    raise Unplanned(f"the relation {relation.name} is unknown here")
                return self.context.get(own)
            case exp.Subquery() if isinstance(relation.this, exp.Query):
                inner: exp.Expr = relation
                while isinstance(inner, exp.Subquery):
                    _refuse_more(inner, "a subquery", _PLAIN_SUBQUERY)
                    inner = inner.this
                return self.plan_query(inner, self.ctes)
            case exp.Values():
                _refuse_more(relation, "VALUES", _PLAIN_VALUES)
                return self.plan_query(relation, self.ctes)
            case _:
                raise Unplanned(f"the relation {text(relation)}")

    def _lateral(self, lateral: exp.Lateral) -> None:
        """Add a LATERAL VIEW: the rows that a function makes of each row, as one more column of it."""
        made, alias = lateral.this, lateral.args["alias"]
        names = [each.name for each in alias.args.get("columns") or []]
        if not isinstance(made, exp.Anonymous) or made.name.lower() not in _ONE_COLUMN or len(names) != 1:
            raise Unplanned(f"{text(lateral).strip()}: only explode(…) AS one name has a maintenance rule here")
        outer = lateral.args.get("outer") or made.name.lower() == "explode_outer"
        value = call("explode_outer" if outer else "explode", *(self.resolved(each).tree for each in made.expressions))
        node, own = self.node(), self.context.names.fresh(names[0])
        self.inputs, self.on = [Project(node, (*columns(node.names), (own, Scalar(value))))], []
        added = (Field(alias.name or None, names[0], own),)
        self.scope, _ = self.scope.beside(Scope(added, added))

    def _join(self, join: exp.Join) -> None:
        if join.args.get("method") or join.args.get("match_condition"):
            raise Unplanned(f"a {join.method} join")
        node, offered = self._relation(join.this)
        side, kind = (join.side or "").upper(), (join.kind or "").upper()
        scope, pairs = self.scope.beside(offered, [name.name for name in join.args.get("using") or []])
        conditions: list[exp.Expr] = [exp.EQ(this=column(a.column), expression=column(b.column)) for a, b in pairs]
        on = join.args.get("on")
        if on is not None:
            conditions += [resolve(conjunct, scope, {}) for conjunct in conjuncts(on)]
        if kind in ("", "INNER", "CROSS") and not side:
            self.inputs.append(node)
            self.scope = scope
            for condition in conditions:
                self.condition(Scalar(condition))
            return
        self._other_join(node, side, kind, conditions, scope, bool(pairs))

    def _other_join(
        self, right: Node, side: str, kind: str, conditions: list[exp.Expr], scope: Scope, using: bool
    ) -> None:
        """Join what is joined so far with ``right`` otherwise: by sums of inner joins, else by an `Opaque`."""
        on = [Scalar(condition) for condition in conditions]
        read = frozenset(name for each in on for name in each.columns) - frozenset(right.names)
        if kind in _CHOOSING:
            spelled, how = f"left {kind.lower()}", {"side": "LEFT", "kind": kind}
        elif side in _OUTER and not (using and side != "LEFT"):
            spelled, how = f"{side.lower()} outer", {"side": side, "kind": "OUTER"}
            self.scope = scope
        else:
            raise Unplanned(f"a {side} {kind} join".replace("  ", " "))
        position = self.place(read)
        if side in ("RIGHT", "FULL"):
            self.inputs, self.on, position = [self.node()], [], 0
        left = self.inputs[position]
        names = left.names if kind in _CHOOSING else (*left.names, *right.names)
        try:
            self.inputs[position] = self._composed(left, right, kind if kind in _CHOOSING else side, on)
        except Unplanned as why:
            clause = exp.Join(this=named(_RIGHT), on=conjunction(conditions) if conditions else None, **how)
            sql = text(composed(items(names), _LEFT, joins=[clause]))
            reason = f"a {spelled} join has no maintenance rule: {why}"
            self.inputs[position] = self.context.opaque((left, right), (_LEFT, _RIGHT), sql, names, reason)

    def _composed(self, left: Node, right: Node, kind: str, on: list[Scalar]) -> Node:
        match kind:
            case "LEFT":
                return outer(self.context, left, right, on)
            case "RIGHT":
                swapped = outer(self.context, right, left, on)
                return renamed(swapped, [(name, name) for name in (*left.names, *right.names)])
            case "FULL":
                return full(self.context, left, right, on)
        matches = matching(self.context, left, right, on)
        return anti(matches) if kind == "ANTI" else semi(matches)

    def condition(self, condition: Scalar) -> None:
        """Put a condition as far down as it can go."""
        for position, node in enumerate(self.inputs):
            if condition.columns <= frozenset(node.names) and (condition.columns or len(self.inputs) == 1):
                self.inputs[position] = filtered(node, [condition])
                return
        if condition.columns <= frozenset(name for node in self.inputs for name in node.names):
            self.on.append(condition)
        elif self.outside is not None:
            self.correlated.append(condition)
        else:
            raise Unplanned(f"the condition {condition.sql} names columns that are not there")


def _refuse_more(relation: exp.Expr, what: str, known: Sequence[str]) -> None:
    """Raise `Unplanned` if there is more to a relation than is ``known``: a PIVOT, a sample, joins in parentheses."""
    extra = [key.upper() for key, value in relation.args.items() if value and key not in known]
    if extra:
        raise Unplanned(f"{what} with {', '.join(extra)}")
