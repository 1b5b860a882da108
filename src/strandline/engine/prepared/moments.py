"""The times of a window, by their ranks: a plan names ranks, so that one plan serves all windows of as many times.

Ranks are in the order of the times, and that is all that a step plan asks of times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from strandline.algebra.nodes import Node, children, rebuilt
from strandline.algebra.schema import TIME

BEFORE: Final = -1
"""The rank of all times before a window's."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The plan ``node``, which names ranks, and the real ``times`` of these; none: its plan names no times.

    Then all times count from ``origin``.
    """

    node: Node
    times: tuple[int, ...]
    origin: int

    @staticmethod
    def of(node: Node, origin: int) -> Moments:
        """Return the moments of a plan whose times count from ``origin``.

        >>> from strandline.algebra.nodes import Accumulate, Get
        >>> delta, prior = Get("t", (("n", "n"),)), Get("p", (("n", "n"),))
        >>> def moments(origin, *times):
        ...     return Moments.of(Accumulate(delta, prior, (), (), "n", times), origin)
        >>> one, other = moments(10, 0, 3), moments(20, 0, 7)
        >>> one.times, other.times, one.node == other.node
        ((10, 13), (20, 27), True)
        """
        named = _named(node)
        if len(named) < 2:
            return Moments(node, (), origin)
        ranks = {time: rank for rank, time in enumerate(named)}

        def by_rank(each: Node) -> Node:
            below: Any = rebuilt(each, by_rank)
            own: dict[str, Any] = {}
            if getattr(below, "times", ()):
                own["times"] = tuple(ranks[time] for time in below.times)
            if getattr(below, "start", None) is not None:
                own["start"] = ranks[below.start]
            found: Node = replace(below, **own) if own else below
            return found

        return Moments(by_rank(node), tuple(origin + time for time in named), origin)

    def ranked(self, table: pa.Table) -> pa.Table:
        """Return updates at ranks; each time in ``table`` must be one of the window's, or before all of them.

        What a stage has stored has its own times, which no plan looks at.
        """
        if not self.times:
            return _at(table, table[TIME].to_numpy() - self.origin)
        given, times = table[TIME].to_numpy(), np.array(self.times)
        ranks = np.searchsorted(times, given)
        if len(given) and (ranks.max() == len(times) or not ((times[ranks] == given) | (given < times[0])).all()):
            raise ValueError(f"a window of the times {self.times} holds others")
        return _at(table, np.where(given < times[0], BEFORE, ranks))

    def real(self, table: pa.Table) -> pa.Table:
        """Return updates at ranks as updates at their real times."""
        ranks = table[TIME].to_numpy()
        return _at(table, np.array(self.times)[ranks] if self.times else ranks + self.origin)


def _named(node: Node) -> tuple[int, ...]:
    """Return all times that a plan names, ascending."""
    own = {*getattr(node, "times", ()), getattr(node, "start", None)} - {None}
    return tuple(sorted({*own, *(time for child in children(node) for time in _named(child))}))


def _at(table: pa.Table, times: Any) -> pa.Table:
    column = pa.array(times, pa.int64())
    return table.set_column(table.schema.get_field_index(TIME), TIME, column)
