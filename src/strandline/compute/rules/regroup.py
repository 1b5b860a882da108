"""Rule "Regroup": a Reduce with any aggregate that cannot be kept by sums is recomputed, for touched groups only.

A group is touched at a time when an update of the input falls into it then.  Once per touched (key, time) the group
is aggregated from the input's updates up to that time; the value before it, from the step itself or as it is
*stored*, is withdrawn.  Where all aggregates are the least or greatest of a column, only the first rows of a group
matter, by that column.
"""

from __future__ import annotations

from typing import Final

from strandline.algebra.nodes import NOTHING, First, Node, Order, Reduce, Regroup
from strandline.compute.rules.linear import at, updates
from strandline.compute.rules.rule import Phase, Rule, Window


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
    new = at(node.input, Phase.NEW, window)
    how = (window.times, start, window.small, _first(node))
    return Regroup(delta, new, prior, node.keys, node.aggregates, *how)


def _first(node: Reduce) -> First | None:
    """Return which rows of a group its aggregates look at; None: at all."""
    orders = [
        Order(str(each.argument.column), each.function == "max", nulls_first=False)
        for each in node.aggregates
        if each.function in ("min", "max") and each.argument is not None and each.argument.column is not None
    ]
    looks_at_all = not orders or len(orders) < len(node.aggregates)
    return None if looks_at_all else First(tuple(dict.fromkeys(orders)), 1)


RULE: Final[Rule[Reduce]] = Rule(
    "regroup",
    "aggregate the touched groups again",
    takes=lambda node: isinstance(node, Reduce),
    updates=regroup,
    described=lambda node: node.described,
    key=lambda node: tuple(name for name, _ in node.keys),
)
