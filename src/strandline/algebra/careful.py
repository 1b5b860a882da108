"""Careful plans: each expression is tried on each row before its value is used.

`careful` turns a plan into one that cannot fail on a row, plus plans that compute the errors.  Below each node that
evaluates expressions, a `Passing` filters out the rows on which they fail, and a `Failing` returns these rows as
errors.  So the ok half is the query without those rows, from the node on which they fail.  Both nodes are linear, so
the error half has updates like any other relation.

Which rows fail depends on the plan alone, not on how Spark optimizes it.  A projected column is tried if the plan uses
it.  A filter is tried before the projections beside it.  The terms of a condition are tried from left to right, each
only on rows for which the earlier terms are true.  The conditions of a join are tried on each input separately if
possible, so that a row fails whether or not it finds a match.  Plain Spark may evaluate less (it prunes and reorders).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sqlglot import exp

from strandline.algebra.joins import reads_only
from strandline.algebra.nodes import (
    Failing,
    Filter,
    Join,
    Negate,
    Node,
    Opaque,
    Passing,
    Project,
    Reduce,
    UnionAll,
    children,
)
from strandline.algebra.scalar import Scalar, column, columns, conjunction


def careful(node: Node, where: str) -> tuple[Node, tuple[Node, ...]]:
    """Return ``node`` over the rows on which no expression fails, and the plans that compute the errors.

    ``where`` is the collection named in the errors.

    >>> from strandline.algebra.nodes import Get
    >>> from strandline.algebra.scalar import scalar
    >>> ok, errors = careful(Filter(Get("t", (("a", "a"),)), scalar("1 / `a` > 2")), "v")
    >>> ok.input == Passing(Get("t", (("a", "a"),)), (scalar("1 / `a` > 2"),)), len(errors)
    (True, 1)
    """
    made = _Careful(where)
    ok = made.node(pruned(node, frozenset(node.names)))
    return ok, tuple(dict.fromkeys(made.errors))


class _Careful:
    """Makes a plan careful, from the leaves up, and collects the plans of its errors."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.errors: list[Node] = []

    def node(self, node: Node) -> Node:
        match node:
            case Project():
                tried = [each for _, value in node.columns for each in _tried(value)]
                return replace(node, input=self.passing(self.node(node.input), tried))
            case Filter():
                return replace(node, input=self.passing(self.node(node.input), [node.predicate]))
            case Reduce():
                arguments = (a.argument for a in node.aggregates if a.argument is not None)
                tried = [*(value for _, value in node.keys), *arguments]
                return replace(node, input=self.passing(self.node(node.input), tried))
            case Join():
                return self.join(node)
            case Negate():
                return replace(node, input=self.node(node.input))
            case UnionAll(inputs=inputs) | Opaque(inputs=inputs):
                return replace(node, inputs=tuple(map(self.node, inputs)))
            case _:
                assert not children(node), f"{type(node).__name__} is not a node of a view's plan"
                return node

    def passing(self, below: Node, expressions: Iterable[Scalar]) -> Node:
        """Return the rows of ``below`` for which all ``expressions`` have a value; collect the others as errors."""
        tried = tuple(dict.fromkeys(each for each in expressions if not _safe(each)))
        if not tried:
            return below
        self.errors.append(Failing(below, tried, self._where))
        return Passing(below, tried)

    def join(self, node: Join) -> Node:
        """Try conditions and operands that read one input on that input, and the other conditions on the pairs."""
        inputs = [self.node(below) for below in node.inputs]
        operands: list[list[tuple[str, Scalar]]] = [[] for _ in inputs]
        own = [[each for each in node.on if reads_only(each, [below]) == 0] for below in node.inputs]
        for position, conditions in enumerate(own):
            if conditions:
                condition = Scalar(conjunction(each.tree for each in conditions))
                inputs[position] = Filter(self.passing(inputs[position], [condition]), condition)
        rest = [each for each in node.on if not any(each in conditions for conditions in own)]
        equal = tuple(
            replace(each, left=_operand(each.left, node, operands), right=_operand(each.right, node, operands))
            for each in node.equal
        )
        for position, computed in enumerate(operands):
            if computed:
                below = self.passing(inputs[position], (value for _, value in computed))
                inputs[position] = Project(below, (*columns(below.names), *computed))
        joined: Node = replace(node, inputs=tuple(inputs), equal=equal, on=())
        if rest:
            condition = Scalar(conjunction(each.tree for each in rest))
            joined = Filter(self.passing(joined, [condition]), condition)
        return joined if joined.names == node.names else Project(joined, columns(node.names))


def pruned(node: Node, wanted: frozenset[str]) -> Node:
    """Return ``node`` without unused computed columns; its columns in ``wanted`` stay.

    A filter that reads none of the computed columns moves below their projection.
    """
    match node:
        case Filter():
            below = pruned(node.input, wanted | node.predicate.columns)
            if isinstance(below, Project) and _through(below, node.predicate):
                read = _read(value for _, value in below.columns)
                return replace(below, input=pruned(Filter(below.input, node.predicate), read))
            return replace(node, input=below)
        case Project():
            kept = tuple(
                (name, value) for name, value in node.columns if name in wanted or value.generates or _safe(value)
            )
            return Project(pruned(node.input, _read(value for _, value in kept)), kept)
        case Reduce():
            used = (a.argument for a in node.aggregates if a.argument is not None)
            return replace(node, input=pruned(node.input, _read([*(value for _, value in node.keys), *used])))
        case Join():
            needed = wanted | _read(node.conditions)
            return replace(node, inputs=tuple(pruned(below, needed & frozenset(below.names)) for below in node.inputs))
        case UnionAll():
            # What a term takes back another has given: they stay alike only if both keep all their columns.
            whole = any(isinstance(below, Negate) for below in node.inputs)
            kept_at = [i for i, name in enumerate(node.names) if whole or name in wanted]
            return replace(node, inputs=tuple(_selected(below, kept_at) for below in node.inputs))
        case Negate():
            return replace(node, input=_selected(node.input, range(len(node.names))))
        case Opaque():
            return replace(node, inputs=tuple(pruned(below, frozenset(below.names)) for below in node.inputs))
        case _:
            return node


def _selected(node: Node, positions: Sequence[int]) -> Node:
    """Return the columns of ``node`` at ``positions``, and no others."""
    names = [node.names[position] for position in positions]
    made = pruned(node, frozenset(names))
    return made if list(made.names) == names else Project(made, columns(names))


def _through(project: Project, predicate: Scalar) -> bool:
    """Return whether ``predicate`` can move below ``project``: the columns it reads pass through unchanged."""
    same = {name for name, value in project.columns if value.column == name}
    return predicate.columns <= same


def _tried(value: Scalar) -> list[Scalar]:
    """Return what has to have a value for ``value`` to have one: of a function that makes rows, its arguments."""
    return [Scalar(each) for each in value.tree.expressions] if value.generates else [value]


def _read(expressions: Iterable[Scalar]) -> frozenset[str]:
    return frozenset(name for each in expressions for name in each.columns)


def _safe(expression: Scalar) -> bool:
    """Return whether ``expression`` certainly has a value for every row: a column, or a literal."""
    return expression.column is not None or isinstance(expression.tree, exp.Literal | exp.Null | exp.Boolean)


def _operand(value: Scalar, node: Join, operands: list[list[tuple[str, Scalar]]]) -> Scalar:
    """Return ``value`` as a column of the input that it reads; if it is none yet, it is added to ``operands``."""
    if value.column is not None:
        return value
    place = reads_only(value, node.inputs)
    assert place is not None, "each side of a key reads one input"
    name = f"__operand_{place}_{len(operands[place])}"
    operands[place].append((name, value))
    return Scalar(column(name))
