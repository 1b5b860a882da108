"""Which pairs of the rows of a product's leaves are in, and those of which that is not known: see `careful`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sqlglot import exp

from strandline.algebra.joins import joined, reads_only
from strandline.algebra.judged import certain, have_values, possibly, surely, tried
from strandline.algebra.nodes import Failing, Filter, Join, Node, Project
from strandline.algebra.product import Product, substituted
from strandline.algebra.scalar import Known, Scalar, column, columns
from strandline.algebra.schema import RESERVED

_OPERAND: Final = f"{RESERVED}operand"


@dataclass(slots=True)
class Pairs:
    """Judges pairs.  ``where``: the collection named in the errors; ``shown``: how people know a leaf's column."""

    where: str
    shown: dict[str, str] = field(default_factory=dict)

    def split(self, product: Product) -> tuple[Node, list[Failing]]:
        """Return the pairs that are surely in, with all columns of the leaves, and those of which that is unknown."""
        if len(product.leaves) == 1:
            return self._certain(product.leaves[0], product.conditions, product.leaves)
        split = joined(product.leaves, product.conditions)
        own = [[each for each in split.on if reads_only(each, [leaf]) == 0] for leaf in product.leaves]
        leaves = [Filter(leaf, possibly(on)) if on else leaf for leaf, on in zip(product.leaves, own, strict=True)]
        computed: list[dict[Scalar, str]] = [{} for _ in leaves]
        equal = tuple(
            replace(each, left=_keyed(each.left, leaves, computed), right=_keyed(each.right, leaves, computed))
            for each in split.equal
        )
        pairs = Join(tuple(map(_with, leaves, computed)), equal)
        asked = {each for on in own for each in on if not tried([each])}  # of the leaves alone, and known of each row
        rows, unknown = self._certain(pairs, [each for each in split.on if each not in asked], product.leaves)
        for position, values in enumerate(computed):
            if values:
                unknown.append(self._unmatched(product, leaves, computed, position))
        return rows, unknown

    def tried(self, rows: Node, values: Sequence[Scalar], leaves: Sequence[Node]) -> tuple[Node, list[Failing]]:
        """Return the rows for which all ``values`` have a value, and the others, if one of them may have none."""
        doubtful = tuple(dict.fromkeys(value for value in values if not certain(value.tree)))
        if not doubtful:
            return rows, []
        failed = self.failing(Filter(rows, negated(have_values(doubtful))), doubtful, leaves)
        return Filter(rows, have_values(doubtful)), [failed]

    def failing(self, rows: Node, expressions: Sequence[Scalar], leaves: Sequence[Node]) -> Failing:
        """Return the errors of ``rows``: of those leaves that the expressions read."""
        read = frozenset(name for each in expressions for name in each.columns)
        owners = [leaf for leaf in leaves if read & frozenset(leaf.names)]
        names = [name for leaf in owners for name in leaf.names if name in self.shown]
        shown = [self.shown[name] for name in names]
        known = {n: Scalar(column(s)) for n, s in zip(names, shown, strict=True) if shown.count(s) == 1}
        row = tuple((known[name].column or name if name in known else name, name) for name in names)
        texts = tuple(substituted(_unmarked(each), known).sql for each in expressions)
        return Failing(rows, tuple(expressions), texts, row, self.where)

    def _certain(self, rows: Node, conditions: Sequence[Scalar], leaves: Sequence[Node]) -> tuple[Node, list[Failing]]:
        """Return the rows for which ``conditions`` are true, and those for which that is not known."""
        if not conditions:
            return rows, []
        unknown: list[Failing] = []
        if leaves_of := tried(conditions):
            either = Filter(rows, _both(possibly(conditions), negated(surely(conditions))))
            unknown.append(self.failing(either, leaves_of, leaves))
        return Filter(rows, surely(conditions)), unknown

    def _unmatched(
        self,
        product: Product,
        leaves: Sequence[Node],
        computed: Sequence[dict[Scalar, str]],
        position: int,
    ) -> Failing:
        """Return the pairs of rows of one leaf of which a key fails: each with all rows that it may meet."""
        sides = list(leaves)
        for before in range(position):
            if computed[before]:
                sides[before] = Filter(sides[before], have_values(computed[before]))
        sides[position] = Filter(sides[position], negated(have_values(computed[position])))
        return self.failing(possible(sides, product.conditions), tuple(computed[position]), product.leaves)


def possible(leaves: Sequence[Node], conditions: Iterable[Scalar]) -> Node:
    """Return the pairs of rows of ``leaves`` that may be in, whatever fails: only keys that are columns join them."""
    split = joined(leaves, conditions)
    plain = tuple(each for each in split.equal if each.left.column and each.right.column)
    others = (*(each.condition for each in split.equal if each not in plain), *split.on)
    rows = Join(split.inputs, plain) if len(leaves) > 1 else leaves[0]
    return Filter(rows, possibly(others)) if others else rows


def negated(condition: Scalar) -> Scalar:
    """Return the condition that ``condition`` is false."""
    return Scalar(exp.Not(this=exp.Paren(this=condition.tree.copy())))


def _both(left: Scalar, right: Scalar) -> Scalar:
    return Scalar(exp.And(this=exp.Paren(this=left.tree.copy()), expression=exp.Paren(this=right.tree.copy())))


def _unmarked(expression: Scalar) -> Scalar:
    """Return an expression as people read it: a value that was computed below by its name alone."""
    return Scalar(expression.tree.copy().transform(lambda node: node.this if isinstance(node, Known) else node))


def _keyed(value: Scalar, leaves: Sequence[Node], computed: Sequence[dict[Scalar, str]]) -> Scalar:
    """Return one side of a key as a column of its leaf; if it is none yet, it becomes one."""
    if value.column is not None:
        return value
    place = reads_only(value, leaves)
    assert place is not None, "each side of a key reads one input"
    name = computed[place].setdefault(value, f"{_OPERAND}_{place}_{len(computed[place])}")
    return Scalar(column(name))


def _with(leaf: Node, computed: dict[Scalar, str]) -> Node:
    """Return the rows of a leaf for which all of ``computed`` have values, with these as columns."""
    if not computed:
        return leaf
    below = Filter(leaf, have_values(computed))
    return Project(below, (*columns(leaf.names), *((name, value) for value, name in computed.items())))
