"""Reclock: give each message of a source one time on the environment's clock, through the remap.

A *binding* ``(t, offsets)`` says that exactly the messages before ``offsets`` have happened by ``t``.  A `Remap` is a
sequence of bindings whose times rise strictly and whose offsets never go back (law R1), known for all times before
``upper``.  A message happens at the first time whose binding covers it; that is `spec.target`, found here by
bisection in its partition (laws R2, R3).  Times are totally ordered, so inversion by partition is exact, in whatever
order partitions move.

Promise: `mint` only adds; what had a time keeps it.  `compact` forgets times before ``since`` and commutes with
reclocking: ``compact(reclock(remap, messages)) = reclock(compact(remap), messages)``.

Trap: what is durable up to ``upper`` is resumed from the binding of its *predecessor* (`resume`).  One binding
further on, upstream would forget messages that we do not have (law R4).  So whoever compacts must stay one step below
the durable upper.

Source: design page "sources" (reclocking, resumption).  Laws: `sources/invariants.py`; the naive truth:
`sources/spec.py`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Final

from strandline.errors import InvalidUsage
from strandline.frontier.antichain import MINIMUM, TIME_MAX, Frontier, meet
from strandline.frontier.gauge import Offsets

NOTHING_READ: Final = Offsets()


@dataclass(frozen=True, slots=True)
class Binding:
    """By ``time``, exactly the messages before ``offsets`` have happened."""

    time: int
    offsets: Offsets


@dataclass(frozen=True, slots=True)
class Slice:
    """The messages from ``lower`` on and before ``upper``: all of them, and only they, happen at ``time``."""

    time: int
    lower: Offsets
    upper: Offsets


@dataclass(frozen=True)
class Remap:
    """Bindings for all times before ``upper``; a time without one of its own has that of the time before it.

    >>> remap = Remap().mint(1000, Offsets({"0": 3})).mint(2000, Offsets({"0": 5}))
    >>> remap.time_of("0", 2), remap.time_of("0", 3), remap.time_of("0", 5), remap.time_of("1", 0)
    (1000, 2000, None, None)
    >>> [remap.offsets_at(t)["0"] for t in (999, 1000, 1999, 2000)], str(remap.upper)
    ([0, 3, 3, 5], '[2001]')
    """

    bindings: tuple[Binding, ...] = ()
    upper: Frontier = MINIMUM
    since: Frontier = MINIMUM

    def __post_init__(self) -> None:
        for earlier, later in pairwise(self.bindings):
            if not (earlier.time < later.time and earlier.offsets <= later.offsets):
                raise ValueError(f"{later} cannot follow {earlier}: bindings never go back (law R1)")
        if self.bindings and self.upper.beyond(self.bindings[-1].time):
            raise ValueError(f"{self.bindings[-1]} is not before the upper {self.upper}")

    @property
    def frontier(self) -> Offsets:
        """What the newest binding covers."""
        return self.bindings[-1].offsets if self.bindings else NOTHING_READ

    def mint(self, time: int, offsets: Offsets) -> Remap:
        """Bind ``time`` to what ``offsets`` or an earlier binding covers; one that covers nothing new is left out.

        Raises `InvalidUsage` if ``time`` is bound already: a binding is never changed.
        """
        if not self.upper.beyond(time):
            raise InvalidUsage(f"time {time} is bound already: the remap is known up to {self.upper}")
        covered = self.frontier.join(offsets)
        new = () if covered == self.frontier else (Binding(time, covered),)
        return replace(self, bindings=self.bindings + new, upper=Frontier(time + 1))

    def time_of(self, partition: str, offset: int) -> int | None:
        """Return the time at which the message happens, or None while no binding covers it."""
        ends, times = self._steps.get(partition, ([], []))
        index = bisect_right(ends, offset)
        return times[index] if index < len(times) else None

    def offsets_at(self, time: int) -> Offsets:
        """Return the offsets before which everything has happened by ``time``."""
        index = bisect_right(self._times, time)
        return self.bindings[index - 1].offsets if index else NOTHING_READ

    def frontier_of(self, offsets: Offsets) -> Frontier:
        """Return the times not complete when what is before ``offsets`` is here: from the first that needs more.

        >>> remap = Remap().mint(1000, Offsets({"1": 10})).mint(2000, Offsets({"1": 10, "2": 10}))
        >>> [str(remap.frontier_of(Offsets(o))) for o in ({"1": 9}, {"1": 10}, {"1": 10, "2": 10})]
        ['[1000]', '[2000]', '[2001]']
        """
        for binding in self.bindings:
            if not binding.offsets <= offsets:
                return Frontier(binding.time)
        return self.upper

    def slices(self, lower: Frontier, upper: Frontier) -> tuple[Slice, ...]:
        """Return the messages that happen in ``[lower, upper)``, by time; times at which nothing happens are left out.

        Raises `InvalidUsage` if a time there is not bound yet, or what came before is compacted away.
        """
        if not upper <= self.upper:
            raise InvalidUsage(f"messages up to {upper} are asked for; the remap is known up to {self.upper}")
        before = self.resume([lower])
        found = []
        for binding in self.bindings[bisect_right(self._times, _predecessor(lower)) :]:
            if upper.beyond(binding.time):
                break
            found.append(Slice(binding.time, before, binding.offsets))
            before = binding.offsets
        return tuple(found)

    def resume(self, uppers: Iterable[Frontier]) -> Offsets:
        """Return what upstream may forget when shards are durable up to ``uppers``: the offset resumption frontier.

        It is the binding at the last time before all of them, so everything it covers is durable in each.

        Raises `InvalidUsage` if that time is before since: a reader at it could not tell what came before.
        """
        durable = meet(uppers)
        if durable == MINIMUM:
            return NOTHING_READ
        as_of = _predecessor(durable)
        if not self.since <= Frontier(as_of):
            raise InvalidUsage(f"the remap cannot be read at {as_of}: it is compacted to {self.since}")
        return self.offsets_at(as_of)

    def compact(self, since: Frontier) -> Remap:
        """Forget when things happened before ``since``: they have happened by it.

        Raises `InvalidUsage` unless ``since`` is before the upper: the newest binding must stay distinguishable.

        >>> remap = Remap().mint(1000, Offsets({"0": 3})).mint(2000, Offsets({"0": 5})).compact(Frontier(1500))
        >>> [(b.time, b.offsets["0"]) for b in remap.bindings], remap.time_of("0", 1)
        ([(1500, 3), (2000, 5)], 1500)
        """
        if since.at is None or not since < self.upper:
            raise InvalidUsage(f"the remap is known up to {self.upper}; it cannot be compacted to {since}")
        if since <= self.since:
            return self
        merged = bisect_right(self._times, since.at)
        kept = self.bindings[merged:]
        if merged:
            kept = (Binding(since.at, self.bindings[merged - 1].offsets), *kept)
        return Remap(kept, self.upper, since)

    @cached_property
    def _times(self) -> list[int]:
        return [binding.time for binding in self.bindings]

    @cached_property
    def _steps(self) -> dict[str, tuple[list[int], list[int]]]:
        """By partition: the offsets it was bound to, rising strictly, and the time of each."""
        steps: dict[str, tuple[list[int], list[int]]] = {}
        for binding in self.bindings:
            for partition, end in binding.offsets.entries:
                ends, times = steps.setdefault(partition, ([], []))
                if not ends or end > ends[-1]:
                    ends.append(end)
                    times.append(binding.time)
        return steps


def _predecessor(upper: Frontier) -> int:
    """The last time before ``upper``; -1 for the minimum."""
    return TIME_MAX if upper.at is None else upper.at - 1
