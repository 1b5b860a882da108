"""Careful plans: an error is a value, and it counts where the answer depends on it.

`careful` turns a plan into one that cannot fail on a row, plus plans that compute the errors.  The rule, for the pairs
of rows of a join (for rows, where there is one input):

- A pair is out if any of its conditions is not true, whatever another one raises, in whatever order they are written.
- A pair is in if all its conditions are true; and an error if neither is known.
- A value of a pair that is in is an error if it fails, and if the plan gives it out.

So the rule evaluates nothing that every plan of Spark's could leave out: where plain Spark succeeds there is no error
here, and where it fails, this decides.  The error half has updates like any other relation, since all of it is linear.

Errors of pairs that are taken away (`Negate`) are taken away too, as the same rows and values fail where they are
given: so a row that an anti join drops leaves no error.  But a pair that may or may not be there is an
error wherever it may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from strandline.algebra.joins import joined, reads_only
from strandline.algebra.judged import certain, have_values, possibly, surely, tried
from strandline.algebra.nodes import (
    Failing,
    Filter,
    Join,
    Negate,
    Node,
    Opaque,
    Project,
    Reduce,
    UnionAll,
    children,
)
from strandline.algebra.products import Product, Products, Values, substituted
from strandline.algebra.scalar import Faithful, Scalar, case, column, columns, is_null, number
from strandline.algebra.schema import RESERVED

TEXTS_REMEMBERED: Final = 1_000
"""Each step renders its plan anew; the text of a query in it is read once."""


def careful(node: Node, where: str) -> tuple[Node, tuple[Node, ...]]:
    """Return ``node`` over the rows on which no expression fails, and the plans that compute the errors.

    ``where`` is the collection named in the errors.

    >>> from strandline.algebra.nodes import Get
    >>> from strandline.algebra.scalar import scalar
    >>> ok, errors = careful(Filter(Get("t", (("a", "a"),)), scalar("1 / `a` > 2")), "v")
    >>> ok.names, len(errors)
    (('a',), 1)
    """
    if not may_fail(node):
        return node, ()
    made = _Careful(where)
    ok = made.root(node)
    return ok, tuple(made.errors)


def may_fail(node: Node) -> bool:
    """Tell whether an expression of ``node`` may have no value for some row (of an `Opaque`: of its inputs)."""
    match node:
        case Project():
            values = [value for _, value in node.columns]
        case Filter():
            values = [node.predicate]
        case Join():
            values = [*node.on, *(side for each in node.equal for side in (each.left, each.right))]
        case Reduce():
            arguments = (each.argument for each in node.aggregates if each.argument is not None)
            values = [*(value for _, value in node.keys), *arguments]
        case _:
            values = []
    return not all(certain(each.tree) for each in values) or any(map(may_fail, children(node)))


@lru_cache(maxsize=TEXTS_REMEMBERED)
def has_doubtful_condition(sql: str) -> bool:
    """Tell whether a condition of a query that Spark answers may fail for some row; of one that cannot be read it may.

    Of a query with a LATERAL subquery it is not asked: Spark takes no input there that is not deterministic.

    >>> has_doubtful_condition("SELECT a FROM t WHERE 10 / a > 1"), has_doubtful_condition("SELECT 10 / a AS b FROM t")
    (True, False)
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=Faithful)
    except SqlglotError:
        return True
    if any(not each.args.get("view") for each in tree.find_all(exp.Lateral)):
        return False
    conditions = [each.this for each in tree.find_all(exp.Where, exp.Having, exp.Qualify)]
    conditions += [on for join in tree.find_all(exp.Join) if (on := join.args.get("on")) is not None]
    return not all(map(certain, conditions))


@dataclass(slots=True)
class _Careful:
    """Makes a plan careful, and collects the plans of its errors."""

    where: str
    errors: list[Node] = field(default_factory=list)
    products: Products = field(init=False)

    def __post_init__(self) -> None:
        self.products = Products(lambda node: self.given(node, columns(node.names)))

    def root(self, node: Node) -> Node:
        """Return a plan that may end in a node with a state, made careful."""
        match node:
            case Reduce():
                return self.grouped(node)
            case Opaque():
                return replace(node, inputs=tuple(self.given(each, columns(each.names)) for each in node.inputs))
            case _:
                return self.given(node, columns(node.names))

    def grouped(self, node: Reduce) -> Node:
        """Return ``node`` over its keys and arguments as columns: equal ones in one, so that it keeps the same sums."""
        names = {value: name for name, value in node.keys}
        for each in node.aggregates:
            if each.argument is not None:
                names.setdefault(each.argument, f"{RESERVED}of_{each.name}")
        keys = {value for _, value in node.keys}
        values = tuple((name, value if value in keys else _asked(node, value)) for value, name in names.items())
        return replace(
            node,
            input=self.given(node.input, values),
            keys=tuple((name, Scalar(column(names[value]))) for name, value in node.keys),
            aggregates=tuple(
                each if each.argument is None else replace(each, argument=Scalar(column(names[each.argument])))
                for each in node.aggregates
            ),
        )

    def given(self, node: Node, values: Values) -> Node:
        """Return ``values`` of the rows of ``node``; collect the errors."""
        if not may_fail(node) and all(certain(value.tree) for _, value in values):
            same = tuple((name, value.column) for name, value in values)
            return node if same == tuple((name, name) for name in node.names) else Project(node, values)
        found = [self._halves(each, values) for each in self.products.of(node)]
        return found[0] if len(found) == 1 else UnionAll(tuple(found))

    def _halves(self, product: Product, values: Values) -> Node:
        outputs = tuple((name, product.over(value)) for name, value in values)
        rows = self._rows(product)
        failing = tuple(dict.fromkeys(value for _, value in outputs if not certain(value.tree)))
        if failing:
            failed = self._failing(Filter(rows, _not(have_values(failing))), failing, product.leaves)
            self.errors.append(Negate(failed) if product.negative else failed)
            rows = Filter(rows, have_values(failing))
        ok = Project(rows, outputs)
        return Negate(ok) if product.negative else ok

    def _rows(self, product: Product) -> Node:
        """Return the pairs that are surely in; collect those of which that is unknown."""
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
        rows = self._certain(pairs, [each for each in split.on if each not in asked], product.leaves)
        for position, values in enumerate(computed):
            if values:
                self._unmatched(product, split, leaves, computed, position)
        return rows

    def _certain(self, rows: Node, conditions: Sequence[Scalar], leaves: Sequence[Node]) -> Node:
        """Return the rows for which ``conditions`` are true; collect those for which that is not known."""
        if not conditions:
            return rows
        leaves_of = tried(conditions)
        if leaves_of:
            unknown = Filter(rows, _both(possibly(conditions), _not(surely(conditions))))
            self.errors.append(self._failing(unknown, leaves_of, leaves))
        return Filter(rows, surely(conditions))

    def _unmatched(
        self,
        product: Product,
        split: Join,
        leaves: Sequence[Node],
        computed: Sequence[dict[Scalar, str]],
        position: int,
    ) -> None:
        """Collect the pairs of rows of one leaf of which a key fails: each with all rows that it may meet."""
        sides = list(leaves)
        for before in range(position):
            if computed[before]:
                sides[before] = Filter(sides[before], have_values(computed[before]))
        sides[position] = Filter(sides[position], _not(have_values(computed[position])))
        plain = tuple(each for each in split.equal if each.left.column and each.right.column)
        conditions = (*(each.condition for each in split.equal if each not in plain), *split.on)
        pairs = Filter(Join(tuple(sides), plain), possibly(conditions))
        failing = tuple(computed[position])
        self.errors.append(self._failing(pairs, failing, product.leaves))

    def _failing(self, rows: Node, expressions: Sequence[Scalar], leaves: Sequence[Node]) -> Failing:
        """Return the errors of ``rows``: of those leaves that the expressions read."""
        read = frozenset(name for each in expressions for name in each.columns)
        names = [name for leaf in leaves if read & frozenset(leaf.names) for name in leaf.names]
        shown = [self.products.shown[name] for name in names]
        known = {n: Scalar(column(s)) for n, s in zip(names, shown, strict=True) if shown.count(s) == 1}
        row = tuple((known[name].column or name if name in known else name, name) for name in names)
        texts = tuple(substituted(each, known).sql for each in expressions)
        return Failing(rows, tuple(expressions), texts, row, self.where)


def _asked(node: Reduce, argument: Scalar) -> Scalar:
    """Return what aggregates read of an argument: where all only count it, no more than whether it is NULL."""
    if certain(argument.tree) or any(
        each.function != "count" or each.distinct for each in node.aggregates if each.argument == argument
    ):
        return argument
    return Scalar(case(is_null(argument.tree), exp.Null(), number(1)))


def _keyed(value: Scalar, leaves: Sequence[Node], computed: Sequence[dict[Scalar, str]]) -> Scalar:
    """Return one side of a key as a column of its leaf; if it is none yet, it becomes one."""
    if value.column is not None:
        return value
    place = reads_only(value, leaves)
    assert place is not None, "each side of a key reads one input"
    name = computed[place].setdefault(value, f"{RESERVED}operand_{place}_{len(computed[place])}")
    return Scalar(column(name))


def _with(leaf: Node, computed: dict[Scalar, str]) -> Node:
    """Return the rows of a leaf for which all of ``computed`` have values, with these as columns."""
    if not computed:
        return leaf
    below = Filter(leaf, have_values(computed))
    return Project(below, (*columns(leaf.names), *((name, value) for value, name in computed.items())))


def _not(condition: Scalar) -> Scalar:
    return Scalar(exp.Not(this=exp.Paren(this=condition.tree.copy())))


def _both(left: Scalar, right: Scalar) -> Scalar:
    return Scalar(exp.And(this=exp.Paren(this=left.tree.copy()), expression=exp.Paren(this=right.tree.copy())))
