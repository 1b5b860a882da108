"""A product: the rows of some leaves, or their pairs, that fulfil conditions, and values of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from sqlglot import exp

from strandline.algebra.judged import terms
from strandline.algebra.nodes import Node
from strandline.algebra.scalar import Scalar, operand

Values: TypeAlias = tuple[tuple[str, Scalar], ...]


@dataclass(frozen=True, slots=True)
class Product:
    """Pairs of rows of ``leaves`` (rows, where there is one leaf) that fulfil ``conditions``, and ``values`` of them.

    The columns of all leaves have distinct names.  ``negative``: its rows are taken away from those of other products.
    ``error``: a column of a leaf with the error that each pair is.  It is not known whether such a pair would be in if
    nothing had failed: so the conditions can only leave it out, and it counts wherever it may be, ``negative`` or not.
    A value that a generator makes is not known of it.
    """

    leaves: tuple[Node, ...]
    conditions: tuple[Scalar, ...]
    values: Values
    negative: bool = False
    error: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of all leaves."""
        return tuple(name for leaf in self.leaves for name in leaf.names)

    def over(self, expression: Scalar) -> Scalar:
        """Return an expression over the values as one over the columns of the leaves."""
        return substituted(expression, dict(self.values))

    def projected(self, columns: Values) -> Product:
        """Return it with other values: ``columns``, expressions over those that it has."""
        return replace(self, values=tuple((name, self.over(value)) for name, value in columns))

    def filtered(self, predicate: Scalar) -> Product:
        """Return the rows that also fulfil ``predicate``, an expression over the values."""
        found = [Scalar(each) for each in terms(self.over(predicate).tree)]
        known = [each for each in found if not (self.error and each.generates)]
        return replace(self, conditions=tuple(dict.fromkeys((*self.conditions, *known))))


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
