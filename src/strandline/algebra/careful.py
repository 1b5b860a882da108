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

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from strandline.algebra.judged import Pairs, Product, Products, Values, certain, possible
from strandline.algebra.nodes import Filter, Join, Negate, Node, Opaque, Project, Reduce, UnionAll, children, rebuilt
from strandline.algebra.scalar import Faithful, Scalar, case, column, columns, is_null, number, steady
from strandline.algebra.schema import ERROR, RESERVED

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
    made = _Careful(Pairs(where))
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

    >>> has_doubtful_condition("SELECT a FROM t WHERE 10 / a > 1"), has_doubtful_condition("SELECT 10 / a AS b FROM t")
    (True, False)
    """
    try:
        tree = sqlglot.parse_one(sql, dialect=Faithful)
    except SqlglotError:
        return True
    conditions = [each.this for each in tree.find_all(exp.Where, exp.Having, exp.Qualify)]
    conditions += [on for join in tree.find_all(exp.Join) if (on := join.args.get("on")) is not None]
    return not all(map(certain, conditions))


@dataclass(slots=True)
class _Careful:
    """Makes a plan careful, and collects the plans of its errors."""

    pairs: Pairs
    errors: list[Node] = field(default_factory=list)
    products: Products = field(init=False)

    def __post_init__(self) -> None:
        self.products = Products(self.pairs)

    def root(self, node: Node) -> Node:
        """Return a plan that may end in a node with a state, made careful."""
        match node:
            case Reduce():
                return self.grouped(node)
            case Opaque():
                return replace(
                    node, inputs=tuple(_steady(self.given(each, columns(each.names))) for each in node.inputs)
                )
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
        products = self.products.of(node)
        for each in products:
            if each.error:
                rows = possible(each.leaves, each.conditions)
                self.errors.append(Project(rows, ((ERROR, Scalar(column(each.error))),)))
        found = [self._known(each, values) for each in products if not each.error]
        return found[0] if len(found) == 1 else UnionAll(tuple(found))

    def _known(self, product: Product, values: Values) -> Node:
        """Return ``values`` of the pairs that are surely in; collect those of which one fails, and the unknown ones."""
        outputs = product.projected(values).values
        rows, unknown = self.pairs.split(product)
        rows, failed = self.pairs.tried(rows, [value for _, value in outputs], product.leaves)
        ok = Project(rows, outputs)
        self.errors += [*unknown, *(map(Negate, failed) if product.negative else failed)]
        return Negate(ok) if product.negative else ok


def _steady(node: Node) -> Node:
    """Return what a query reads with conditions that Spark takes for functions of the row: subqueries may read it."""
    match rebuilt(node, _steady):
        case Filter() as found:
            return replace(found, predicate=steady(found.predicate))
        case Project() as found:
            return replace(found, columns=tuple((name, steady(value)) for name, value in found.columns))
        case found:
            return found


def _asked(node: Reduce, argument: Scalar) -> Scalar:
    """Return what aggregates read of an argument: where all only count it, no more than whether it is NULL."""
    if certain(argument.tree) or any(
        each.function != "count" or each.distinct for each in node.aggregates if each.argument == argument
    ):
        return argument
    return Scalar(case(is_null(argument.tree), exp.Null(), number(1)))
