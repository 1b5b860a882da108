"""Reclock: give each message of a source one time on the environment's clock, through the remap.

A *binding* ``(t, offsets)`` says that exactly the messages before ``offsets`` have happened by ``t``.  A `Remap` is a
sequence of bindings whose times rise strictly and whose offsets never go back (law R1), known for all times before
``upper``.  A message happens at the first time whose binding covers it; that is `spec.target`, found here by
bisection in its partition (laws R2, R3).  Times are totally ordered, so inversion by partition is exact, in whatever
order partitions move.

Promise: `mint` only adds; what had a time keeps it.  `compact` forgets times before ``since`` and commutes with
reclocking: ``compact(reclock(remap, messages)) = reclock(compact(remap), messages)``.

Trap: what is durable up to ``upper`` is resumed from the binding of its *predecessor* (`resume`).  One binding
further on, upstream would forget messages that we do not have (law R4).  So compaction must stay one step below the
durable upper.

Laws: `sources/remap.py`; the naive truth: `sources/spec.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from strandline.errors import InvalidUsage
from strandline.frontier import MINIMUM, TIME_MAX, Frontier, Offsets, meet

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


class Remap:
    """Bindings for all times before ``upper``; a time without one of its own has that of the time before it.

    A value: `mint` and `compact` return another one.  What one grows out of shares its bindings with it, so that a mint
    costs what it adds and not what there is.

    >>> remap = Remap().mint(1000, Offsets({"0": 3})).mint(2000, Offsets({"0": 5}))
    >>> remap.time_of("0", 2), remap.time_of("0", 3), remap.time_of("0", 5), remap.time_of("1", 0)
    (1000, 2000, None, None)
    >>> [remap.offsets_at(t)["0"] for t in (999, 1000, 1999, 2000)], str(remap.upper)
    ([0, 3, 3, 5], '[2001]')
    """

    __slots__ = ("_count", "_shared", "since", "upper")

    def __init__(self, bindings: Iterable[Binding] = (), upper: Frontier = MINIMUM, since: Frontier = MINIMUM) -> None:
        self._shared = list(bindings)  # the first `_count` of them are ours; what comes after them is a later remap's
        self._count = len(self._shared)
        self.upper = upper
        self.since = since
        for earlier, later in pairwise(self._shared):
            _refuse_back(earlier, later)
        if self._shared and upper.beyond(self._shared[-1].time):
            raise ValueError(f"{self._shared[-1]} is not before the upper {upper}")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remap):
            return NotImplemented
        return (self.bindings, self.upper, self.since) == (other.bindings, other.upper, other.since)

    __hash__ = None  # type: ignore[assignment]  # nothing keeps remaps in a set

    def __repr__(self) -> str:
        return f"Remap({self.bindings}, upper={self.upper}, since={self.since})"

    @property
    def bindings(self) -> tuple[Binding, ...]:
        """All of them, oldest first."""
        return tuple(self._shared[: self._count])

    @property
    def frontier(self) -> Offsets:
        """What the newest binding covers."""
        return self._shared[self._count - 1].offsets if self._count else NOTHING_READ

    def mint(self, time: int, offsets: Offsets) -> Remap:
        """Bind ``time`` to what ``offsets`` or an earlier binding covers; one that covers nothing new is left out.

        Raises `InvalidUsage` if ``time`` is bound already: a binding is never changed.
        """
        if not self.upper.beyond(time):
            raise InvalidUsage(f"time {time} is bound already: the remap is known up to {self.upper}")
        covered = self.frontier.join(offsets)
        return self.extended([] if covered == self.frontier else [Binding(time, covered)], Frontier(time + 1))

    def extended(self, new: Sequence[Binding], upper: Frontier) -> Remap:
        """Return this remap with ``new`` bindings, known for all times before ``upper``.

        Raises `ValueError` if they do not follow those that are there (law R1).
        """
        for earlier, later in pairwise([*self._shared[max(0, self._count - 1) : self._count], *new]):
            _refuse_back(earlier, later)
        if new and (not self.upper.beyond(new[0].time) or upper.beyond(new[-1].time)):
            raise ValueError(f"{new[0]} and what follows are not within [{self.upper}, {upper})")
        grown = Remap(upper=upper, since=self.since)
        # Where another remap already extended this one, the shared list is longer: then there are two from here on.
        grown._shared = self._shared if len(self._shared) == self._count else self._shared[: self._count]
        grown._shared += new
        grown._count = self._count + len(new)
        return grown

    def time_of(self, partition: str, offset: int) -> int | None:
        """Return the time at which the message happens, or None while no binding covers it."""
        at = bisect_right(self._shared, offset, hi=self._count, key=lambda binding: binding.offsets[partition])
        return self._shared[at].time if at < self._count else None

    def offsets_at(self, time: int) -> Offsets:
        """Return the offsets before which everything has happened by ``time``."""
        after = self._after(time)
        return self._shared[after - 1].offsets if after else NOTHING_READ

    def first_covering(self, offsets: Offsets) -> Binding | None:
        """Return the first binding that covers all that is before ``offsets``; None if none does yet.

        >>> remap = Remap().mint(1000, Offsets({"0": 3})).mint(2000, Offsets({"0": 5}))
        >>> [b and b.time for b in map(remap.first_covering, (Offsets({"0": n}) for n in (3, 4, 6)))]
        [1000, 2000, None]
        """
        at = bisect_left(self._shared, True, hi=self._count, key=lambda binding: offsets <= binding.offsets)
        return self._shared[at] if at < self._count else None

    def frontier_of(self, offsets: Offsets) -> Frontier:
        """Return the times not complete when what is before ``offsets`` is here: from the first that needs more.

        >>> remap = Remap().mint(1000, Offsets({"1": 10})).mint(2000, Offsets({"1": 10, "2": 10}))
        >>> [str(remap.frontier_of(Offsets(o))) for o in ({"1": 9}, {"1": 10}, {"1": 10, "2": 10})]
        ['[1000]', '[2000]', '[2001]']
        """
        at = bisect_left(self._shared, True, hi=self._count, key=lambda binding: not binding.offsets <= offsets)
        return Frontier(self._shared[at].time) if at < self._count else self.upper

    def slices(self, lower: Frontier, upper: Frontier) -> tuple[Slice, ...]:
        """Return the messages that happen in ``[lower, upper)``, by time; times at which nothing happens are left out.

        Raises `InvalidUsage` if a time there is not bound yet, or what came before is compacted away.
        """
        if not upper <= self.upper:
            raise InvalidUsage(f"messages up to {upper} are asked for; the remap is known up to {self.upper}")
        before = self.resume([lower])
        found = []
        for binding in self._shared[self._after(_predecessor(lower)) : self._count]:
            if upper.beyond(binding.time):
                break
            found.append(Slice(binding.time, before, binding.offsets))
            before = binding.offsets
        return tuple(found)

    def resume(self, uppers: Iterable[Frontier]) -> Offsets:
        """Return what upstream may forget when shards are durable up to ``uppers``: the offset resumption frontier.

        It is the binding at the last time before all of them, so everything it covers is durable in each.

        Raises `InvalidUsage` if that time is before since: a reader at it could not separate it from earlier times.
        """
        durable = meet(uppers)
        if durable == MINIMUM:
            return NOTHING_READ
        as_of = _predecessor(durable)
        if not self.since <= Frontier(as_of):
            raise InvalidUsage(f"the remap cannot be read at {as_of}: it is compacted to {self.since}")
        return self.offsets_at(as_of)

    def compact(self, since: Frontier) -> Remap:
        """Forget the times of messages before ``since``: all of them have happened by it.

        Raises `InvalidUsage` unless ``since`` is before the upper: the newest binding must stay distinguishable.

        >>> remap = Remap().mint(1000, Offsets({"0": 3})).mint(2000, Offsets({"0": 5})).compact(Frontier(1500))
        >>> [(b.time, b.offsets["0"]) for b in remap.bindings], remap.time_of("0", 1)
        ([(1500, 3), (2000, 5)], 1500)
        """
        if since.at is None or not since < self.upper:
            raise InvalidUsage(f"the remap is known up to {self.upper}; it cannot be compacted to {since}")
        if since <= self.since:
            return self
        merged = self._after(since.at)
        kept = self._shared[merged : self._count]
        if merged:
            kept.insert(0, Binding(since.at, self._shared[merged - 1].offsets))
        return Remap(kept, self.upper, since)

    def _after(self, time: int) -> int:
        """Return how many bindings are at or before ``time``."""
        return bisect_right(self._shared, time, hi=self._count, key=lambda binding: binding.time)


def _refuse_back(earlier: Binding, later: Binding) -> None:
    if not (earlier.time < later.time and earlier.offsets <= later.offsets):
        raise ValueError(f"{later} cannot follow {earlier}: bindings never go back (law R1)")


def _predecessor(upper: Frontier) -> int:
    """The last time before ``upper``; -1 for the minimum."""
    return TIME_MAX if upper.at is None else upper.at - 1
