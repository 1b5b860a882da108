"""Rule "Top": the first rows in an order are found among those stored and those that change.

As long as no update has the values of a stored row, each stored row stays, and a row that is not stored comes after all
of them: it cannot be among the first.  So the query is replayed over the stored rows and the updates.  Only where a
stored row is touched are other rows read too, for one that moves up: those that come first.  A row that goes and was
not read has a negative count then, and does not matter.
"""

from __future__ import annotations

from typing import Final

from strandline.algebra.nodes import Negate, Node, Opaque, Project, Replay, Restrict, UnionAll
from strandline.algebra.scalar import columns
from strandline.compute.rules.linear import at, updates
from strandline.compute.rules.recompute import replay
from strandline.compute.rules.rule import Phase, Rule, Window


def top(node: Opaque, prior: Node, window: Window) -> Node | None:
    """Return the plan of the updates of ``node``; ``prior`` reads its stored rows as they were before the window."""
    if window.first or not window.small:
        return replay(node, prior, window)
    (below,) = node.inputs
    found = updates(below, window)
    if found is None:
        return None
    change = Project(found, columns(node.names))
    others = UnionAll((Project(at(below, Phase.OLD, window), columns(node.names)), Negate(prior)))
    touched = Project(Restrict(prior, node.names, change), ())
    rows = UnionAll((prior, change, Restrict(others, (), touched, first=node.first)))
    return Replay((rows,), node.aliases, node.sql, node.names, prior, window.times, partial=True)


RULE: Final[Rule[Opaque]] = Rule(
    "top",
    "take the first of the stored rows and the changes; read others only where a stored row changes",
    takes=lambda node: isinstance(node, Opaque) and node.top,
    updates=top,
    described=lambda node: node.sql,
    reads_all=True,
)
