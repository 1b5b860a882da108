"""Rule: the updates of an n-ary inner join are Σ over its inputs i of new₁ ⋈ … ⋈ newᵢ₋₁ ⋈ Δᵢ ⋈ oldᵢ₊₁ ⋈ … ⋈ oldₙ.

The sum telescopes: term i is what the join becomes when input i moves from old to new, those before it having moved
already.  No intermediate state is kept.  Inputs that cannot change give no term.  In a first step every old side is
empty, so that only the last term is left, and in it new = Δ.

Trap: with the same phase on both sides of i (old ⋈ Δ and Δ ⋈ old), changes of two inputs that meet are lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from strandline.algebra.nodes import Join, Node, UnionAll
from strandline.compute.rules.phase import Phase, Window


def join_updates(
    node: Join,
    window: Window,
    updates: Callable[[Node, Window], Node | None],
    at: Callable[[Node, Phase, Window], Node],
) -> Node | None:
    """Return the plan of the updates of ``node``; ``updates`` and ``at`` give those and the contents of an input."""
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
