"""Column pruning: a plan whose leaves give only the columns that something above them reads.

What a leaf gives is looked up, handed over and laid out row by row, so a table of many columns costs what its narrow
part does.  Rows that differ in other columns alone become equal rows; every node counts these one by one, so nothing
above sees a difference.

A query that Spark alone can answer may read every column of its inputs, and an error shows all of its row: there
everything stays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

from strandline.algebra.nodes import (
    Accumulate,
    Filter,
    Get,
    Join,
    Negate,
    Node,
    Project,
    Reduce,
    Regroup,
    Restrict,
    UnionAll,
    rebuilt,
)
from strandline.algebra.scalar import Scalar, columns

_Names: TypeAlias = frozenset[str]


def pruned(node: Node) -> Node:
    """Return ``node`` over leaves with fewer columns; what it gives stays the same.

    >>> from strandline.algebra.nodes import children
    >>> from strandline.algebra.scalar import scalar
    >>> wide = Filter(Get("a", (("x", "x"), ("y", "y"), ("z", "z"))), scalar("`y` > 1"))
    >>> children(pruned(Project(wide, (("x", scalar("`x`")),))))[0].names
    ('x', 'y')
    """
    return _exactly(_with(node, frozenset(node.names)), node.names)


def _with(node: Node, wanted: _Names) -> Node:
    """Return ``node`` with the ``wanted`` ones of its columns, and perhaps others."""
    match node:
        case Get():
            kept = tuple(each for each in node.columns if each[0] in wanted)
            return replace(node, columns=kept or node.columns[:1])
        case Project():
            outputs = tuple(each for each in node.columns if each[0] in wanted or each[1].generates) or node.columns[:1]
            return Project(_with(node.input, _read(value for _, value in outputs)), outputs)
        case Filter():
            return replace(node, input=_with(node.input, wanted | node.predicate.columns))
        case Negate():
            return Negate(_with(node.input, wanted))
        case Join():
            all_of_them = wanted | _read(node.conditions)
            return replace(node, inputs=tuple(_with(each, all_of_them & {*each.names}) for each in node.inputs))
        case UnionAll():
            return _union(node, wanted)
        case Reduce():
            return replace(node, input=_with(node.input, _grouped(node)))
        case Accumulate():
            read = _read(value for _, value in node.keys) | _read(each.contribution for each in node.accumulators)
            return replace(node, delta=_with(node.delta, read))
        case Regroup():
            read = _grouped(node) | _orders(node)
            return replace(node, delta=_with(node.delta, read), new=_with(node.new, read))
        case Restrict():
            input_ = _with(node.input, wanted.union(node.columns) | _orders(node))
            return replace(node, input=input_, keys=pruned(node.keys))
        case _:
            return rebuilt(node, pruned)


def _union(node: UnionAll, wanted: _Names) -> Node:
    kept = [n for n, name in enumerate(node.names) if name in wanted] or [0]

    def narrow(below: Node) -> Node:
        names = tuple(below.names[n] for n in kept)
        return _exactly(_with(below, frozenset(names)), names)

    return UnionAll(tuple(map(narrow, node.inputs)))


def _exactly(node: Node, names: tuple[str, ...]) -> Node:
    return node if node.names == names else Project(node, columns(names))


def _read(values: Iterable[Scalar]) -> _Names:
    return frozenset(name for each in values for name in each.columns)


def _grouped(node: Reduce | Regroup) -> _Names:
    arguments = (each.argument for each in node.aggregates if each.argument is not None)
    return _read(value for _, value in node.keys) | _read(arguments)


def _orders(node: Regroup | Restrict) -> _Names:
    return frozenset() if node.first is None else frozenset(each.column for each in node.first.orders)
