"""Rule "Recompute": what has no other rule is computed again at each time its inputs change, and diffed.

Never refused, never wrong, only dearer: the cost grows with the whole of the inputs and with the number of times.
"""

from __future__ import annotations

from typing import Final

from strandline.algebra.nodes import NOTHING, Node, Opaque, Replay
from strandline.compute.rules.linear import at, updates
from strandline.compute.rules.rule import Phase, Rule, Window


def replay(node: Opaque, prior: Node, window: Window) -> Node | None:
    """Return the plan of the updates of ``node``; ``prior`` reads its stored rows as they were before the window."""
    if not window.first and all(updates(below, window) is None for below in node.inputs):
        return None
    if not window.times:
        raise ValueError("a recomputed stage needs the times at which its inputs change")
    contents = tuple(at(below, Phase.NEW, window) for below in node.inputs)
    stored = NOTHING if window.first else prior
    return Replay(contents, node.aliases, node.sql, node.names, stored, window.times)


RULE: Final[Rule[Opaque]] = Rule(
    "recompute",
    "recompute at each time of change, and take the difference",
    takes=lambda node: isinstance(node, Opaque),
    updates=replay,
    reason=lambda node: node.reason,
    described=lambda node: node.sql,
    reads_all=True,
)
