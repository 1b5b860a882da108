"""Rule: the updates of joins and of linear nodes, which are all but joins and stateful nodes.

The updates of a linear node are the same node over the updates of its input.  Each function returns a step plan;
`updates` returns None for a subtree that cannot change in the window, so that it vanishes from the plan.
``updates(n) = new(n) - old(n)`` for every node n, as sums of updates.

Source: D. McSherry et al., "Differential dataflow", CIDR 2013.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strandline.algebra.nodes import (
    Constant,
    Failing,
    Filter,
    Get,
    Join,
    Negate,
    Node,
    Project,
    UnionAll,
    rebuilt,
)
from strandline.algebra.scalar import Scalar, column
from strandline.compute.rules.rule import Phase, Window, frame


def join_updates(
    node: Join,
    window: Window,
    updates: Callable[[Node, Window], Node | None],
    at: Callable[[Node, Phase, Window], Node],
) -> Node | None:
    """Return the plan of the updates of ``node``; ``updates`` and ``at`` give those and the contents of an input.

    The updates of an n-ary inner join are Σ over its inputs i of new₁ ⋈ … ⋈ newᵢ₋₁ ⋈ Δᵢ ⋈ oldᵢ₊₁ ⋈ … ⋈ oldₙ.  The sum
    telescopes: term i is the change of the join when input i moves from old to new, those before it having moved
    already.  No intermediate state is kept.  Inputs that cannot change give no term.  In a first step every old side
    is empty, so that only the last term is left, and in it new = Δ.

    Trap: with the same phase on both sides of i (old ⋈ Δ and Δ ⋈ old), changes of two inputs that meet are lost.
    """
    if window.first:
        changes = [updates(below, window) for below in node.inputs]
        present = tuple(change for change in changes if change is not None)
        return replace(node, inputs=present) if len(present) == len(changes) else None
    terms: list[Node] = []
    for i, below in enumerate(node.inputs):
        change = updates(below, window)
        if change is None:
            continue
        before = tuple(at(other, Phase.NEW, window) for other in node.inputs[:i])
        after = tuple(at(other, Phase.OLD, window) for other in node.inputs[i + 1 :])
        terms.append(replace(node, inputs=(*before, change, *after), small=i if window.small else None))
    return UnionAll(tuple(terms)) if len(terms) > 1 else terms[0] if terms else None


def updates(node: Node, window: Window) -> Node | None:
    """Return the plan of the updates of ``node`` in the window; None if there are none for sure."""
    match node:
        case Get(frame=name):
            side = Phase.NEW if window.first else Phase.DELTA
            return replace(node, frame=frame(name, side)) if name in window.changed else None
        case Constant():
            return None if window.start is None else replace(node, time=window.start)
        case Project(input=below) | Filter(input=below) | Negate(input=below) | Failing(input=below):
            changed = updates(below, window)
            return None if changed is None else replace(node, input=changed)
        case UnionAll(inputs=inputs):
            terms = tuple(term for term in (_aligned(node, i, window) for i in range(len(inputs))) if term is not None)
            return UnionAll(terms) if len(terms) > 1 else terms[0] if terms else None
        case Join():
            return join_updates(node, window, updates, at)
        case _:
            raise TypeError(f"{type(node).__name__} is stateful: it ends a stage, it is not inside one")


def at(node: Node, phase: Phase, window: Window) -> Node:
    """Return the plan of the contents of ``node`` on its old or new side.

    An input that does not change in the window has one side only, called old.  In a first step nothing is old and all
    is new.
    """
    assert phase is not Phase.DELTA, "the updates of a node are found by its rule"
    match node:
        case Get(frame=name):
            return replace(node, frame=frame(name, _side(name, phase, window)))
        case Constant():
            return node if window.start is None else replace(node, time=window.start)
        case Project() | Filter() | Negate() | Failing() | UnionAll() | Join():
            return rebuilt(node, lambda below: at(below, phase, window))
        case _:
            raise TypeError(f"{type(node).__name__} is stateful: it ends a stage, it is not inside one")


def _side(name: str, phase: Phase, window: Window) -> Phase:
    if window.first:
        return Phase.NEW
    return phase if name in window.changed else Phase.OLD


def _aligned(union: UnionAll, position: int, window: Window) -> Node | None:
    """Return the updates of one input under the union's own column names (which are the first input's)."""
    below = union.inputs[position]
    changed = updates(below, window)
    if changed is None or below.names == union.names:
        return changed
    return Project(
        changed, tuple((out, Scalar(column(own))) for out, own in zip(union.names, below.names, strict=True))
    )
