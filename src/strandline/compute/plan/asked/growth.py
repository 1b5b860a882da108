"""How large the steps of a view become, and which parts of it are stored by themselves so that they stay small.

The size of a step is how many nodes it has once each is written out wherever it is read.  A step of a join has a term
for each input, and an outer join reads its left side twice; Spark copies what a query names several times.  So where
outer joins and scalar subqueries stand in layers, a step doubles with each of them, and Spark plans it for minutes.
A node with several readers is then stored: to each of them it is one leaf.  Where even that leaves a step too
large, the view is recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Final

from strandline.algebra.nodes import Get, Join, Node, Opaque, Reduce, children

STEP_NODES_STORED: Final = 300
"""In a view with a step of more nodes parts are stored by themselves."""
STEP_NODES_MAX: Final = 1_500
"""A view with a step of more nodes is recomputed: Spark takes seconds to plan so many."""


def nodes_of(node: Node) -> int:
    """Return how many nodes ``node`` has, one that is read twice being two."""
    return _Sizes(()).whole(node)


def step_nodes(plan: Node, parts: Collection[Node] = ()) -> int:
    """Return how many nodes the largest step of one of the stages of ``plan`` has, if all of its inputs change.

    ``parts``: nodes of it that are stored by themselves.

    >>> from strandline.algebra.joins import joined
    >>> from strandline.algebra.scalar import scalar
    >>> t, u = Get("t", (("a", "a"),)), Get("u", (("b", "b"),))
    >>> step_nodes(t), step_nodes(joined((t, u), (scalar("a = b"),)))
    (1, 7)
    """
    return max(_Sizes(parts).steps(plan))


def shared_parts(plan: Node, storable: Callable[[Node], bool]) -> tuple[Node, ...]:
    """Return nodes of ``plan`` that are to be stored by themselves, so that its steps are small: none if they are.

    Each joins something, is read several times, and is ``storable``; and none other would make the largest step
    smaller, or else the sum of all steps.
    """
    parts: list[Node] = []
    left = list(_shared(plan))

    def steps(stored: Collection[Node]) -> tuple[int, int]:
        found = _Sizes(stored).steps(plan)
        return max(found), sum(found)

    now = steps(parts)
    while left and now[0] > STEP_NODES_STORED:
        after, best = min((steps([*parts, each]), n) for n, each in enumerate(left))
        if after >= now:
            break
        chosen = left.pop(best)
        if storable(chosen):
            parts.append(chosen)
            now = after
    return tuple(parts)


def _shared(plan: Node) -> Iterator[Node]:
    """Yield each node that has several readers and joins something, after those in it."""
    readers: dict[int, int] = {}
    joins: dict[int, bool] = {}
    order: list[Node] = []

    def visit(node: Node) -> None:
        readers[id(node)] = readers.get(id(node), 0) + 1
        if readers[id(node)] > 1:
            return
        below = children(node)
        for each in below:
            visit(each)
        reads = any(joins[id(each)] for each in below)
        joins[id(node)] = isinstance(node, Join) or (reads and not _has_state(node))
        order.append(node)

    visit(plan)
    yield from (each for each in order if readers[id(each)] > 1 and joins[id(each)])


def _has_state(node: Node) -> bool:
    return isinstance(node, Reduce | Opaque)


class _Sizes:
    """Sizes of the nodes of one plan, each found once.  A node that is stored is a leaf of what reads it."""

    def __init__(self, parts: Collection[Node]) -> None:
        self._parts = {id(each) for each in parts}
        self._whole: dict[int, int] = {}
        self._contents: dict[int, int] = {}
        self._step: dict[int, int] = {}

    def whole(self, node: Node) -> int:
        """Return how many nodes there are down to the leaves."""
        if id(node) not in self._whole:
            self._whole[id(node)] = 1 + sum(map(self.whole, children(node)))
        return self._whole[id(node)]

    def steps(self, plan: Node) -> list[int]:
        """Return how many nodes give the updates of each stage of ``plan``."""
        found: list[int] = []
        visited: set[int] = set()

        def visit(node: Node) -> None:
            if id(node) in visited:
                return
            visited.add(id(node))
            for each in children(node):
                visit(each)
            if _has_state(node):
                found.append(1 + sum(self._updates(each) + self._held(each) for each in children(node)))
            elif id(node) in self._parts:
                found.append(self._own_updates(node))

        visit(plan)
        return [*found, self._updates(plan)]

    def _is_leaf(self, node: Node) -> bool:
        return _has_state(node) or id(node) in self._parts

    def _held(self, node: Node) -> int:
        """Return how many nodes give what ``node`` holds."""
        if self._is_leaf(node):
            return 1
        if id(node) not in self._contents:
            self._contents[id(node)] = 1 + sum(map(self._held, children(node)))
        return self._contents[id(node)]

    def _updates(self, node: Node) -> int:
        """Return how many nodes give the updates of ``node``."""
        if self._is_leaf(node) or isinstance(node, Get):
            return 1
        if id(node) not in self._step:
            self._step[id(node)] = self._own_updates(node)
        return self._step[id(node)]

    def _own_updates(self, node: Node) -> int:
        below = children(node)
        if not isinstance(node, Join):
            return 1 + sum(map(self._updates, below))
        all_of_them = sum(map(self._held, below))
        return 1 + sum(1 + self._updates(each) + all_of_them - self._held(each) for each in below)
