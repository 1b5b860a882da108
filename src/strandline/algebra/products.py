"""A plan without state as a sum of products, each of conditions and values over rows as they are stored.

`Products.of` moves all expressions up: conditions and projected values become expressions over the columns of the
leaves, and a union becomes one product for each branch.  So nothing is evaluated before everything that may drop its
row, or its pair of rows, is known: as lazily as any plan of Spark's can.

Two things must be computed below all the same: how many rows a generator makes, and a side of a join that has too many
branches (`PRODUCTS_MAX`).  What fails there travels on: a row of which it is not known whether it is in becomes a row
of a second product, with its error in a column, and a value that fails a mark (`algebra.scalar.Known`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final

from sqlglot import exp

from strandline.algebra.judged import certain, terms
from strandline.algebra.nodes import Constant, Filter, Get, Join, Negate, Node, Project, UnionAll
from strandline.algebra.pairs import Pairs, possible
from strandline.algebra.product import Product, substituted
from strandline.algebra.scalar import HasValue, Known, Scalar, case, column, columns
from strandline.algebra.schema import ERROR, RESERVED

PRODUCTS_MAX: Final = 64
"""A join of unions with more combinations of branches is not taken apart: the sides that make it more are computed."""


@dataclass(slots=True)
class Products:
    """Takes plans apart; ``pairs`` judges what must be computed below."""

    pairs: Pairs
    hidden: int = field(default=0, init=False)

    def of(self, node: Node) -> tuple[Product, ...]:
        """Return the products whose sum is ``node``."""
        match node:
            case Get():
                names = [(self._fresh(out, stored), stored) for out, stored in node.columns]
                values = tuple((out, Scalar(column(name))) for (name, _), out in zip(names, node.names, strict=True))
                return (Product((replace(node, columns=tuple(names)),), (), values),)
            case Project() if any(value.generates for _, value in node.columns):
                return tuple(made for each in self.of(node.input) for made in self._generated(node, each))
            case Project():
                return tuple(each.projected(node.columns) for each in self.of(node.input))
            case Filter(input=Project() as below) if any(value.generates for _, value in below.columns):
                return self._around(node, below)
            case Filter():
                return tuple(each.filtered(node.predicate) for each in self.of(node.input))
            case Negate():
                return tuple(replace(each, negative=not each.negative) for each in self.of(node.input))
            case UnionAll():
                return tuple(_named(each, node.names) for below in node.inputs for each in self.of(below))
            case Join():
                return self._joined(node)
            case _:
                assert isinstance(node, Constant), f"{type(node).__name__} ends a stage, it is not inside one"
                return (self._given(node),)

    def _joined(self, node: Join) -> tuple[Product, ...]:
        sides = [self.of(below) for below in node.inputs]
        count = 1
        for position, side in enumerate(sides):
            if count * len(side) > PRODUCTS_MAX:
                sides[position] = self._computed(side)
            count *= len(sides[position])
        return tuple(_paired(combined, node.conditions) for combined in product(*sides))

    def _around(self, node: Filter, below: Project) -> tuple[Product, ...]:
        """Return the rows of a projection that makes rows: what does not read the made ones is asked before."""
        made = {name for name, value in below.columns if value.generates}
        split = list(terms(node.predicate.tree))
        before = [each for each in map(Scalar, split) if not each.columns & made]
        inner = below.input
        for each in before:
            inner = Filter(inner, substituted(each, dict(below.columns)))
        found = self.of(replace(below, input=inner))
        for each in map(Scalar, split):
            if each not in before:
                found = tuple(one.filtered(each) for one in found)
        return found

    def _generated(self, node: Project, below: Product) -> tuple[Product, ...]:
        """Return the rows that ``node`` makes of those of ``below``: their number is a value too."""
        values = below.projected(node.columns)
        if below.error:
            return (values,)
        made = [(name, value) for name, value in values.values if value.generates]
        arguments = [Scalar(each) for _, value in made for each in value.tree.expressions]
        rows, unknown = self.pairs.split(below)
        rows, failed = self.pairs.tried(rows, arguments, below.leaves)
        names = below.columns
        fresh = {name: self._fresh(name) for name, _ in made}
        leaf = Project(rows, (*columns(names), *((fresh[name], value) for name, value in made)))
        own = tuple((name, Scalar(column(fresh[name])) if name in fresh else value) for name, value in values.values)
        found = Product((leaf,), (), own, below.negative)
        unknown += failed
        if not unknown:
            return (found,)
        error = self._hidden("error")
        erring = _union([replace(each, kept=names) for each in unknown])
        held = Project(erring, ((error, Scalar(column(ERROR))), *columns(names)))
        return (found, Product((held,), (), values.values, error=error))

    def _computed(self, side: Sequence[Product]) -> tuple[Product, ...]:
        """Return the sum of ``side`` as a product over one leaf, and as another what of it is not known to be in."""
        every = [pair for each in side for pair in each.values]
        lost = {name: value for name, value in every if value.generates}
        out = {name: self._fresh(name) for name, _ in side[0].values}
        kept = {name: own for name, own in out.items() if name not in lost}
        doubtful = {name for name, value in every if not (value.generates or certain(value.tree))}
        marks = {name: self._hidden("mark") for name in out if name in doubtful}
        values = {name: _read(own, marks.get(name)) for name, own in out.items()}
        known: list[Node] = []
        unknown: list[Node] = []
        error = self._hidden("error")
        for each in side:
            erring: list[Node]
            if each.error:
                erring = [possible(each.leaves, each.conditions)]
            else:
                rows, failed = self.pairs.split(each)
                ok = Project(rows, tuple(_marked(each, out, marks)))
                known.append(Negate(ok) if each.negative else ok)
                erring = [replace(one, kept=each.columns) for one in failed]
            columns_of = ((error, Scalar(column(each.error or ERROR))), *_marked(each, kept, marks))
            unknown += [Project(rows, columns_of) for rows in erring]
        found = Product((_union(known),), (), tuple(values.items()))
        if not unknown:
            return (found,)
        return (found, Product((_union(unknown),), (), tuple((values | lost).items()), error=error))

    def _given(self, leaf: Node) -> Product:
        names = [(self._fresh(name), name) for name in leaf.names]
        if any(fresh != name for fresh, name in names):
            leaf = Project(leaf, tuple((fresh, Scalar(column(name))) for fresh, name in names))
        return Product((leaf,), (), tuple((name, Scalar(column(fresh))) for fresh, name in names))

    def _fresh(self, name: str, shown: str | None = None) -> str:
        """Return a name for a column of a leaf that no other leaf has; ``shown``: as people know it."""
        fresh, n = name, 2
        while fresh in self.pairs.shown:
            fresh, n = f"{name}_{n}", n + 1
        self.pairs.shown[fresh] = shown or name
        return fresh

    def _hidden(self, what: str) -> str:
        """Return a name for a column of a leaf that no other leaf has and that people never see."""
        self.hidden += 1
        return f"{RESERVED}{what}_{self.hidden}"


def _paired(sides: Sequence[Product], conditions: Iterable[Scalar]) -> Product:
    """Return the join of ``sides`` under ``conditions`` over the values of all of them."""
    both = Product(
        tuple(leaf for side in sides for leaf in side.leaves),
        tuple(each for side in sides for each in side.conditions),
        tuple(value for side in sides for value in side.values),
        sum(side.negative for side in sides) % 2 == 1,
        next((side.error for side in sides if side.error), None),
    )
    for condition in conditions:
        both = both.filtered(condition)
    return both


def _named(each: Product, names: Sequence[str]) -> Product:
    return replace(each, values=tuple((out, value) for out, (_, value) in zip(names, each.values, strict=True)))


def _marked(of: Product, out: Mapping[str, str], marks: Mapping[str, str]) -> Iterator[tuple[str, Scalar]]:
    """Yield the values as columns ``out``, which cannot fail, and ``marks`` that say whether they are values at all."""
    for name, value in of.values:
        if name in out:
            held = HasValue(this=value.tree.copy())
            yield out[name], value if certain(value.tree) else Scalar(case(held, value.tree))
            if name in marks:
                yield marks[name], Scalar(exp.true() if certain(value.tree) else held)


def _read(name: str, mark: str | None) -> Scalar:
    """Return the expression that reads a value as `_marked` gives it."""
    return Scalar(column(name) if mark is None else Known(this=column(name), mark=column(mark)))


def _union(nodes: Sequence[Node]) -> Node:
    return nodes[0] if len(nodes) == 1 else UnionAll(tuple(nodes))
