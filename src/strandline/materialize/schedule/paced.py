"""Paced feeds: collections whose task learns that they have moved when its schedule lets a transaction begin.

A task asks its feeds how far it may go, and goes there.  So between two beginnings the feeds of a task say what they
said at the last one, all of them together.  A transaction that was cut off is not held back: its
task replays it up to its end, without asking the feeds how far it may go.

What has begun the log says, and it is asked when the task first asks its feeds: then the log is the task's own, so no
predecessor begins another transaction.  A collection that the task has been given since waits for the next one, too.

The holds of the task stay where its durable position is, so whatever it has waited for can still be read.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from strandline.algebra.schema import Schema
from strandline.frontier.antichain import MINIMUM, Frontier, as_time, meet
from strandline.materialize.feed import Changes, Feed
from strandline.materialize.protocol.task import Progress


@dataclass(frozen=True, slots=True)
class Begun:
    """What a log says of the transactions that have begun, committed or not.

    ``last``: the end of the last one, of any collection; 0: none has begun.  ``whole``: where all collections are.
    """

    last: int
    whole: int

    @staticmethod
    def of(logged: Iterable[Progress], state_keys: Sequence[str]) -> Begun:
        """Return what the logs of a task's splits say, or that of the whole: of the bindings that it has now.

        >>> from strandline.materialize.protocol.task import NOTHING, Checkpoint
        >>> Begun.of([Progress(NOTHING, Checkpoint((("t.v0", 5),)))], ("t.v0", "u.v0"))
        Begun(last=5, whole=0)
        """
        last = whole = 0
        for each in logged:
            times = (each.position.of(key) or 0 for key in state_keys)
            last = max(last, 0 if each.extent is None else each.extent.upper, *times)
            whole = max(whole, each.position.time(state_keys))
        return Begun(last, whole)


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


def paced(feeds: Sequence[Feed], pace: Begins, begun: Callable[[], Awaitable[Begun]]) -> tuple[Feed, ...]:
    """Return the ``feeds`` of a task, held back by ``pace``; ``begun`` asks its logs."""
    gate = _Gate(feeds, pace, begun)
    return tuple(_Paced(gate, place, feed) for place, feed in enumerate(feeds))


class _Gate:
    """How far all feeds of a task may be read."""

    def __init__(self, feeds: Sequence[Feed], pace: Begins, begun: Callable[[], Awaitable[Begun]]) -> None:
        self._feeds = feeds
        self._pace = pace
        self._begun = begun
        self._let: Frontier | None = None
        self._uppers = [MINIMUM for _ in feeds]

    async def upper(self, place: int) -> Frontier:
        """Return how far a feed may be read.  A task asks all of them, in order: the first time all are looked at."""
        if self._let is None:
            begun = await self._begun()
            self._pace.follows(begun.last)
            self._let = Frontier(begun.whole)
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
