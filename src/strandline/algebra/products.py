"""A plan without state as a sum of products, each of conditions and values over rows as they are stored.

`Products.of` moves all expressions up: conditions and projected values become expressions over the columns of the
leaves, and a union becomes one product for each branch.  So nothing is evaluated before everything that may drop its
row, or its pair of rows, is known: as lazily as any plan of Spark's can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Final, TypeAlias

from sqlglot import exp

from strandline.algebra.judged import terms
from strandline.algebra.nodes import Constant, Filter, Get, Join, Negate, Node, Project, UnionAll
from strandline.algebra.scalar import Scalar, column, columns, operand
from strandline.algebra.schema import RESERVED

PRODUCTS_MAX: Final = 64
"""A join of unions with more combinations of branches is not taken apart."""

Values: TypeAlias = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Pairs of rows of ``leaves`` (rows, where there is one leaf) that fulfil ``conditions``, and ``values`` of them.

    The columns of all leaves have distinct names.  ``negative``: its rows are taken away from those of other products.
    """

    leaves: tuple[Node, ...]
    conditions: tuple[Scalar, ...]
    values: Values
    negative: bool = False

    def over(self, expression: Scalar) -> Scalar:
        """Return an expression over the values as one over the columns of the leaves."""
        return substituted(expression, dict(self.values))

    def filtered(self, predicate: Scalar) -> Product:
        """Return the rows that also fulfil ``predicate``, an expression over the values."""
        found = (Scalar(each) for each in terms(self.over(predicate).tree))
        return replace(self, conditions=tuple(dict.fromkeys((*self.conditions, *found))))


@dataclass(slots=True)
class Products:
    """Takes plans apart.  ``leaf`` gives, for a subplan that is not taken apart, one that does not fail.

    ``shown``: by what name people know a column of a leaf.
    """

    leaf: Callable[[Node], Node]
    shown: dict[str, str] = field(default_factory=dict)

    def of(self, node: Node) -> tuple[Product, ...]:
        """Return the products whose sum is ``node``."""
        match node:
            case Get():
                names = [(self._fresh(out), stored) for out, stored in node.columns]
                values = tuple((out, Scalar(column(name))) for (name, _), out in zip(names, node.names, strict=True))
                return (Product((replace(node, columns=tuple(names)),), (), values),)
            case Project() if any(value.generates for _, value in node.columns):
                return tuple(self._generated(node, each) for each in self.of(node.input))
            case Project():
                return tuple(
                    replace(each, values=tuple((name, each.over(value)) for name, value in node.columns))
                    for each in self.of(node.input)
                )
            case Filter(input=Project() as below) if any(value.generates for _, value in below.columns):
                return self._around(node, below)
            case Filter():
                return tuple(each.filtered(node.predicate) for each in self.of(node.input))
            case Negate():
                return tuple(replace(each, negative=not each.negative) for each in self.of(node.input))
            case UnionAll():
                return tuple(self._named(each, node.names) for below in node.inputs for each in self.of(below))
            case Join():
                return self._joined(node)
            case _:
                assert isinstance(node, Constant), f"{type(node).__name__} ends a stage, it is not inside one"
                return (self._given(node),)

    def _joined(self, node: Join) -> tuple[Product, ...]:
        sides = [self.of(below) for below in node.inputs]
        count = 1
        for position, side in enumerate(sides):
            count *= len(side)
            if count > PRODUCTS_MAX:
                count //= len(side)
                sides[position] = (self._given(self.leaf(node.inputs[position])),)
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

    def _generated(self, node: Project, below: Product) -> Product:
        """Return the rows that ``node`` makes of those of ``below``: a leaf, as their number is a value too."""
        made = [(name, below.over(value)) for name, value in node.columns if value.generates]
        names = [name for leaf in below.leaves for name in leaf.names]
        arguments = [
            (f"{RESERVED}argument_{name}_{n}", Scalar(each))
            for name, value in made
            for n, each in enumerate(value.tree.expressions)
        ]
        asked = Project(_plain(below), (*columns(names), *arguments))
        rows = self.leaf(asked)
        fresh = [(self._fresh(name), value) for name, value in made]
        leaf = Project(rows, (*columns(names), *fresh))
        renamed = {name: Scalar(column(new)) for (name, _), (new, _) in zip(made, fresh, strict=True)}
        values = tuple((name, renamed.get(name) or below.over(value)) for name, value in node.columns)
        return Product((leaf,), (), values, below.negative)

    def _named(self, each: Product, names: Sequence[str]) -> Product:
        return replace(each, values=tuple((out, value) for out, (_, value) in zip(names, each.values, strict=True)))

    def _given(self, leaf: Node) -> Product:
        names = [(self._fresh(name), name) for name in leaf.names]
        if any(fresh != name for fresh, name in names):
            leaf = Project(leaf, tuple((fresh, Scalar(column(name))) for fresh, name in names))
        return Product((leaf,), (), tuple((name, Scalar(column(fresh))) for fresh, name in names))

    def _fresh(self, name: str) -> str:
        """Return a name for a column of a leaf that no other leaf has."""
        fresh, n = name, 2
        while fresh in self.shown:
            fresh, n = f"{name}_{n}", n + 1
        self.shown[fresh] = name
        return fresh


def _paired(sides: Sequence[Product], conditions: Iterable[Scalar]) -> Product:
    """Return the join of ``sides`` under ``conditions`` over the values of all of them."""
    both = Product(
        tuple(leaf for side in sides for leaf in side.leaves),
        tuple(each for side in sides for each in side.conditions),
        tuple(value for side in sides for value in side.values),
        sum(side.negative for side in sides) % 2 == 1,
    )
    for condition in conditions:
        both = both.filtered(condition)
    return both


def _plain(given: Product) -> Node:
    """Return the rows of a product's leaves as a plan that evaluates as it likes; its values are left out."""
    node = given.leaves[0] if len(given.leaves) == 1 else Join(given.leaves)
    for condition in given.conditions:
        node = Filter(node, condition)
    return node


def substituted(expression: Scalar, values: Mapping[str, Scalar]) -> Scalar:
    """Return ``expression`` with the values in place of the columns that it names.

    >>> from strandline.algebra.scalar import scalar
    >>> substituted(scalar("a * b"), {"a": scalar("x + 1"), "b": scalar("y")}).sql
    '(x + 1) * y'
    """

    def put(node: exp.Expr) -> exp.Expr:
        found = values.get(node.name) if isinstance(node, exp.Column) else None
        if found is None or found.column == node.name:
            return node
        value = found.tree.copy()
        return value if node.parent is None else operand(value)

    return Scalar(expression.tree.copy().transform(put, copy=False))
