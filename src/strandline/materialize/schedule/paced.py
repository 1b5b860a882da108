"""Paced feeds: collections whose task learns that they have moved when its schedule lets a transaction begin.

A task asks its feeds how far it may go, and goes there.  So between two beginnings the feeds of a task say what they
said at the last one, all of them together.  What has begun is not held back: after an error, or in a new process, the
task may go as far as it could before, and so replays a transaction that was cut off.

What has begun the log says, and it is asked when the task first asks its feeds: then the log is the task's own, so no
predecessor begins another transaction.

The holds of the task stay where its durable position is, so whatever it has waited for can still be read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from strandline.algebra.schema import Schema
from strandline.frontier.antichain import MINIMUM, Frontier, as_time, meet
from strandline.materialize.feed import Changes, Feed


class Begins(Protocol):
    """What lets transactions begin: see `pace.Pace`."""

    def follows(self, begun: int) -> None:
        """Count from ``begun``, the end of the last extent; 0: there was none."""
        ...

    def begins(self, end: int) -> bool:
        """Return whether a transaction up to ``end`` may begin now; if so, it counts as begun."""
        ...

    def rests(self) -> None:
        """Take note that no transaction waits."""
        ...


def paced(feeds: Sequence[Feed], pace: Begins, begun: Callable[[], Awaitable[int]]) -> tuple[Feed, ...]:
    """Return the ``feeds`` of a task, held back by ``pace``.

    ``begun`` returns the end of the last transaction that has begun, committed or not.
    """
    gate = _Gate(feeds, pace, begun)
    return tuple(_Paced(gate, place, feed) for place, feed in enumerate(feeds))


class _Gate:
    """How far all feeds of a task may be read."""

    def __init__(self, feeds: Sequence[Feed], pace: Begins, begun: Callable[[], Awaitable[int]]) -> None:
        self._feeds = feeds
        self._pace = pace
        self._begun = begun
        self._let: Frontier | None = None
        self._uppers = [MINIMUM for _ in feeds]

    async def upper(self, place: int) -> Frontier:
        """Return how far a feed may be read.  A task asks all of them, in order: the first time all are looked at."""
        if self._let is None:
            begun = await self._begun()
            self._pace.follows(begun)
            self._let = Frontier(begun)
        if place == 0:
            self._uppers = [await feed.upper() for feed in self._feeds]
            complete = meet(self._uppers)
            if complete <= self._let:
                self._pace.rests()
            elif self._pace.begins(as_time(complete)):
                self._let = complete
        return meet((self._let, self._uppers[place]))


class _Paced:
    """One feed behind the gate."""

    def __init__(self, gate: _Gate, place: int, feed: Feed) -> None:
        self._gate = gate
        self._place = place
        self._feed = feed
        self.name = feed.name
        self.schema: Schema = feed.schema

    @property
    def waits(self) -> str:
        """See `Feed.waits`."""
        return self._feed.waits

    async def upper(self) -> Frontier:
        """See `Feed.upper`."""
        return await self._gate.upper(self._place)

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """See `Feed.changes`."""
        return await self._feed.changes(lower, upper, key=key, times=times)

    async def hold(self, frontier: Frontier) -> None:
        """See `Feed.hold`."""
        await self._feed.hold(frontier)
