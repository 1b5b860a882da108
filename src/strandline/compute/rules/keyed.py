"""Rule "Keyed": a query whose rows with a key depend on its inputs' rows with that key runs over touched keys only.

A key is touched in a window when an update of some input has it.  Every input and what is stored are restricted to the
touched keys, and over these rows the query is replayed: so Spark stays the authority on what it means.  Rows whose key
is not touched have the same inputs as before, and stay as they are.  Where the query takes the first rows of each key,
only these are read.

In a first step everything is touched, so nothing is restricted.
"""

from __future__ import annotations

from typing import Final

from strandline.algebra.nodes import Node, Opaque, Project, Replay, Restrict, UnionAll
from strandline.algebra.scalar import Scalar, column
from strandline.compute.rules.linear import updates
from strandline.compute.rules.recompute import replay
from strandline.compute.rules.rule import Rule, Window


def keyed(node: Opaque, prior: Node, window: Window) -> Node | None:
    """Return the plan of the updates of ``node``; ``prior`` reads its stored rows as they were before the window."""
    replayed = replay(node, prior, window)
    if not isinstance(replayed, Replay) or window.first:
        return replayed
    assert node.key is not None
    touched: list[Node] = []
    for below, own in zip(node.inputs, node.key.inputs, strict=True):
        change = updates(below, window)
        if change is not None:
            values = zip(node.key.output, own, strict=True)
            touched.append(Project(change, tuple((name, Scalar(column(each))) for name, each in values)))
    keys = UnionAll(tuple(touched)) if len(touched) > 1 else touched[0]
    contents = tuple(
        Restrict(below, own, keys, window.small, node.first)
        for below, own in zip(replayed.inputs, node.key.inputs, strict=True)
    )
    stored = Restrict(replayed.prior, node.key.output, keys, window.small)
    partial = node.first is not None
    return Replay(contents, node.aliases, node.sql, node.names, stored, window.times, partial)


RULE: Final[Rule[Opaque]] = Rule(
    "keyed",
    "run the query again for the touched keys, and take the difference",
    takes=lambda node: isinstance(node, Opaque) and node.key is not None,
    updates=keyed,
    described=lambda node: node.sql,
    key=lambda node: node.key.output if node.key is not None else (),
)
