"""Random plans over the inputs of a house: their conditions, values and keys may fail."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from house import INPUTS

from strandline.algebra.nodes import Aggregate, Filter, Get, Negate, Node, Project, Reduce, UnionAll, joined
from strandline.algebra.scalar import Scalar, columns, scalar
from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.view import PlannedView

VIEWS = 4
"""Views of one history."""


@dataclass
class RandomPlans:
    """Composes plans over the inputs: their conditions, values and keys may fail."""

    chance: random.Random
    types: dict[str, str] = field(default_factory=dict)
    takes_away: bool = True
    """Whether there are anti joins."""

    def view(self) -> PlannedView:
        """Return a view that reads something."""
        node = self.rows(3)
        node = self.grouped(node) if self.chance.random() < 0.4 else node
        schema = Schema(tuple(Column(name, self.types[name]) for name in node.names))
        imports = tuple(name for name in INPUTS if f"frame={name!r}" in repr(node))
        return PlannedView(node, schema, imports, "", self.types)

    def rows(self, depth: int) -> Node:
        """Return a plan that a linear stage computes, with at least one text and one number."""
        kinds = [self.filtered, self.projected, self.paired, self.united, self.exploded]
        kinds += [self.unmatched] if self.takes_away else []
        return self.given() if depth == 0 else self.chance.choice([*kinds, self.filtered, self.projected])(depth - 1)

    def given(self) -> Node:
        name = self.chance.choice(sorted(INPUTS))
        return Get(name, tuple((self.fresh(c.type), c.name) for c in INPUTS[name]))

    def fresh(self, type_: str) -> str:
        name = f"{type_[0]}{len(self.types)}"
        self.types[name] = type_
        return name

    def one(self, node: Node, type_: str) -> str:
        """Return a column of ``node`` of this type."""
        return self.chance.choice([f"`{name}`" for name in node.names if self.types[name] == type_])

    def number(self, node: Node) -> str:
        n = self.one(node, "bigint")
        return self.chance.choice(
            [f"12 DIV {n}", f"{n} + 1", n, f"CASE WHEN {n} <> 0 THEN 12 DIV {n} END", f"12 DIV ({n} - 2)"]
        )

    def condition(self, node: Node, depth: int = 2) -> str:
        """Return a condition over the columns of ``node``."""
        s, n = self.one(node, "string"), self.number(node)
        kind = self.chance.randrange(8 if depth else 4)
        if kind < 4:
            return (
                f"{s} = 'a'",
                f"{n} > 2",
                f"{n} BETWEEN 1 AND {self.number(node)}",
                f"{self.one(node, 'bigint')} <> 0",
            )[kind]
        left, right = self.condition(node, depth - 1), self.condition(node, depth - 1)
        return (
            f"({left} AND {right})",
            f"({left} OR {right})",
            f"NOT ({left})",
            f"CASE WHEN {left} THEN {right} ELSE false END",
        )[kind - 4]

    def filtered(self, depth: int) -> Node:
        node = self.rows(depth)
        return Filter(node, scalar(self.condition(node)))

    def projected(self, depth: int) -> Node:
        node = self.rows(depth)
        s, n = self.one(node, "string"), self.number(node)
        values = [(self.fresh("string"), scalar(s)), (self.fresh("bigint"), scalar(n))]
        if self.chance.random() < 0.5:
            values.append((self.fresh("bigint"), scalar(self.number(node))))
        return Project(node, tuple(values))

    def exploded(self, depth: int) -> Node:
        """Return several rows for each row, or none: how many may be what fails."""
        node = self.rows(depth)
        s, n = self.one(node, "string"), self.number(node)
        made = scalar(f"explode(sequence(1, {n}))")
        return Project(node, ((self.fresh("string"), scalar(s)), (self.fresh("bigint"), made)))

    def paired(self, depth: int) -> Node:
        left, right = self.rows(depth), self.given()
        return joined((left, right), self.meeting(left, right))

    def meeting(self, left: Node, right: Node) -> list[Scalar]:
        """Return the conditions of a join, one of them a key."""
        by_text = f"{self.one(left, 'string')} = {self.one(right, 'string')}"
        by_number = f"{self.number(left)} = {self.number(right)}"
        found = [self.chance.choice([by_text, by_number])]
        if self.chance.random() < 0.4:
            found.append(f"{self.number(left)} > {self.number(right)}")
        if self.chance.random() < 0.4:
            found.append(self.condition(self.chance.choice([left, right]), 1))
        return [scalar(each) for each in found]

    def united(self, depth: int) -> Node:
        names = (self.fresh("string"), self.fresh("bigint"))
        other = self.rows(0)
        branches = [self.rows(depth), self.grouped(other) if self.chance.random() < 0.3 else other]
        values = [(scalar(self.one(each, "string")), scalar(self.number(each))) for each in branches]
        return UnionAll(
            tuple(Project(e, tuple(zip(names, v, strict=True))) for e, v in zip(branches, values, strict=True))
        )

    def unmatched(self, depth: int) -> Node:
        """Return the rows that find no match: an anti join, as the planner composes it."""
        left, right = self.rows(depth), self.rows(0)
        key = self.fresh("string")
        own = right if self.chance.random() < 0.5 else Filter(right, scalar(self.condition(right, 1)))
        matches = Reduce(own, ((key, scalar(self.one(own, "string"))),), ())
        met = joined((left, matches), [scalar(f"{self.one(left, 'string')} = `{key}`")])
        return UnionAll((left, Negate(Project(met, columns(left.names)))))

    def grouped(self, node: Node) -> Node:
        keys = ((self.fresh("string"), scalar(self.one(node, "string"))),)
        functions = self.chance.sample(["count", "sum", "max"], 2)
        arguments = [scalar(self.number(node)) for _ in functions]
        names = [self.fresh("bigint") for _ in functions]
        return Reduce(
            node,
            keys,
            tuple(
                Aggregate(name, function, argument, distinct=False, type="bigint", argument_type="bigint")
                for name, function, argument in zip(names, functions, arguments, strict=True)
            ),
        )


def views_of(chance: random.Random) -> dict[str, PlannedView]:
    """Return the views of one history."""
    return {f"v{n}": RandomPlans(chance).view() for n in range(VIEWS)}
