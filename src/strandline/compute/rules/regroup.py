"""Rule "Regroup": a Reduce with any aggregate that cannot be kept by sums is recomputed, for touched groups only.

A group is touched at a time when an update of the input falls into it then.  Once per touched (key, time) the group
is aggregated from the input's updates up to that time; the value before it, from the step itself or as it is
*stored*, is withdrawn.

Source: design page "compute" (Reduce, other); design page "the map" (decision 8: retract what is stored).
"""

from __future__ import annotations

from typing import Final

from strandline.algebra.nodes import NOTHING, Node, Reduce, Regroup
from strandline.compute.rules.linear import at, updates
from strandline.compute.rules.phase import Phase, Window
from strandline.compute.rules.rule import Rule


def regroup(node: Reduce, prior: Node, window: Window) -> Node | None:
    """Return the plan of the updates of ``node``; ``prior`` reads its stored rows as they were before the window."""
    delta = updates(node.input, window)
    start = window.start if not node.keys else None
    if delta is None and start is None:
        return None
    if window.first:
        contents = delta or at(node.input, Phase.NEW, window)
        return Regroup(contents, contents, NOTHING, node.keys, node.aggregates, window.times, start, window.small)
    assert delta is not None
    return Regroup(
        delta, at(node.input, Phase.NEW, window), prior, node.keys, node.aggregates, window.times, start, window.small
    )


RULE: Final[Rule[Reduce]] = Rule(
    "regroup",
    "aggregate the touched groups again",
    takes=lambda node: isinstance(node, Reduce),
    updates=regroup,
    described=lambda node: node.described,
    key=lambda node: tuple(name for name, _ in node.keys),
)
