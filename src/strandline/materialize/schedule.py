"""The schedule of a materialization: when it may begin its next transaction.

A transaction begins ``every`` interval at the earliest after the one before, and only while the window ``within`` is
open.  The time of the last beginning is known to this process alone.  A new process counts from the end of the last
extent in the log, which is no later: so a process that dies again and again does not begin a transaction each time.

A task asks its feeds how far it may go, and goes there.  So between two beginnings all feeds of a task together repeat
their last answer.  A transaction that was cut off is not held back: its task replays it up to its end without asking
the feeds.  What has begun is read from the log when the task first asks its feeds: from then on the log is the task's
own, so no predecessor begins another transaction.  A collection that was added to the task since then waits for the
next transaction too.

The task's holds stay at its durable position, so everything that it waits with can still be read.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from strandline.algebra.schema import Schema
from strandline.errors import WAITS
from strandline.frontier import MINIMUM, Frontier, as_time, meet
from strandline.materialize.feed import Changes, Feed
from strandline.materialize.protocol.task import Progress
from strandline.problem import Problem, Stopped
from strandline.store.clock import Clock, utc_text

DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY_MINUTES: Final = 24 * 60
_MINUTE_MS: Final = 60_000
_DAY_MS: Final = _DAY_MINUTES * _MINUTE_MS
_DAYS_MAX: Final = 3 * len(DAYS)
"""So soon a window opens: on its day of the next week but one, if clocks are set forward over this and the next."""
_FORM: Final = re.compile(r"(\d\d):([0-5]\d)-(\d\d):([0-5]\d)(?:\s+([a-z,-]+))?\s+(\S+)", re.ASCII | re.IGNORECASE)
_HOW: Final = "write hours, days if not all, and a time zone, as 08:00-18:00 mon-fri Europe/Berlin"


@dataclass(frozen=True, slots=True)
class Window:
    """Minutes of the day from ``begin`` to before ``end``, on ``days`` (0 is Monday), in ``zone``.

    >>> office = window("08:00-18:00 mon-fri Europe/Berlin")
    >>> sunday = 1_700_000_000_000 - 2 * 86_400_000
    >>> office.opens(sunday) - sunday, datetime.fromtimestamp(office.opens(sunday) / 1000, UTC).isoformat()
    (31600000, '2023-11-13T07:00:00+00:00')

    A window is written ``08:00-18:00 mon-fri Europe/Berlin``: from when to when, on which days (every day, if none is
    named), and in which time zone.  A window that ends before it begins ends on the next day; its days are those on
    which it begins.

    Clocks are set forward and back.  A moment is inside iff the wall clock shows a time inside: a skipped hour is in no
    window, and a repeated hour is in its window twice, although the window may close in between.
    """

    begin: int
    end: int
    days: frozenset[int]
    zone: ZoneInfo

    def open(self, ms: int) -> bool:
        """Return whether ``ms`` (since the epoch) is inside."""
        here = datetime.fromtimestamp(ms / 1000, UTC).astimezone(self.zone)
        minute, day = here.hour * 60 + here.minute, here.weekday()
        if self.begin < self.end:
            return self.begin <= minute < self.end and day in self.days
        return (minute >= self.begin and day in self.days) or (minute < self.end and (day - 1) % 7 in self.days)

    def opens(self, ms: int) -> int:
        """Return the first moment at or after ``ms`` that is inside."""
        if self.open(ms):
            return ms
        for begin in range(ms, ms + _DAYS_MAX * _DAY_MS, _DAY_MS):
            end = begin + _DAY_MS
            at = self._in(begin) if self._offset(begin) == self._offset(end) else self._set_in(begin, end)
            if at < end:
                return at
        raise AssertionError(f"no place leaves out its days for {_DAYS_MAX} days")

    def _in(self, ms: int) -> int:
        """Return when it opens in the day from ``ms``, in which clocks are not set; the end of that day if it does not.

        It opens where it begins and nowhere else.
        """
        wall = ms + self._offset(ms)
        at = ms + (self.begin * _MINUTE_MS - wall) % _DAY_MS
        return at if self.open(at) else ms + _DAY_MS

    def _set_in(self, begin: int, end: int) -> int:
        """Return the first moment inside from ``begin`` to before ``end``, between which clocks are set; else ``end``.

        They may be set into a window, and over its beginning, which may come twice.  So each minute is looked at.
        """
        minutes = range(-(-begin // _MINUTE_MS) * _MINUTE_MS, end, _MINUTE_MS)
        return next((at for at in minutes if self.open(at)), end)

    def _offset(self, ms: int) -> int:
        """Return by how much the wall clock is ahead of UTC, in milliseconds."""
        offset = datetime.fromtimestamp(ms / 1000, UTC).astimezone(self.zone).utcoffset()
        assert offset is not None, "a zone has an offset"
        return round(offset / timedelta(milliseconds=1))


@lru_cache(maxsize=1_000)
def window(text: str) -> Window:
    """Return the window that ``text`` says.

    >>> [sorted(window(f"22:00-06:00 {days} UTC").days) for days in ("fri-mon", "sat,sun", "")]
    [[0, 4, 5, 6], [5, 6], [0, 1, 2, 3, 4, 5, 6]]

    Raises `ValueError`, whose text has the form of a window.
    """
    found = _FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError(_HOW)
    begin, end = int(found[1]) * 60 + int(found[2]), int(found[3]) * 60 + int(found[4])
    if begin >= _DAY_MINUTES or end > _DAY_MINUTES or begin == end:
        raise ValueError(f"it must begin before 24:00, and end at another time, at 24:00 at the latest; {_HOW}")
    try:
        zone = ZoneInfo(found[6])
    except (OSError, ValueError, KeyError):
        raise ValueError(f"there is no time zone {found[6]!r} here; {_HOW}") from None
    return Window(begin, end, _days(found[5]), zone)


def _days(text: str | None) -> frozenset[int]:
    if text is None:
        return frozenset(range(len(DAYS)))
    found: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = part.partition("-")
        if first not in DAYS or (dash and last not in DAYS):
            raise ValueError(f"{part!r} is no day of {', '.join(DAYS)}, and no range of these; {_HOW}")
        at, count = DAYS.index(first), (DAYS.index(last) - DAYS.index(first)) % 7 if dash else 0
        found |= {(at + ahead) % 7 for ahead in range(count + 1)}
    return frozenset(found)


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
    """What lets transactions begin: see `Pace`."""

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


SCHEDULED: Final = Problem(
    "scheduled", WAITS + "its schedule: its next transaction begins at {until}", Stopped.ENDPOINT
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """``every``: milliseconds, 0: at once.  ``within``: None: always."""

    every: int = 0
    within: Window | None = None

    @staticmethod
    def of(every: int, within: str) -> Schedule:
        """Return the schedule of a window's text; empty: always.  Raises `ValueError` as `window`."""
        return Schedule(every, window(within) if within else None)

    def due(self, last: int, now: int) -> int:
        """Return when a transaction may begin, ``now`` at the earliest, if the ``last`` one began then.

        >>> Schedule(600).due(1_000, 1_200), Schedule(600).due(1_000, 1_700), Schedule().due(1_000, 1_000)
        (1600, 1700, 1000)
        """
        least = max(now, last + self.every)
        return least if self.within is None else self.within.opens(least)


class Pace:
    """The pace of one task.  It asks the clock and touches nothing else."""

    def __init__(self, schedule: Schedule, clock: Clock) -> None:
        self._schedule = schedule
        self._clock = clock
        self._last = self._end = 0
        self._asked = 0
        self._until = 0
        self.waits = ""
        """When the next transaction begins, if one was to begin and may not yet; else empty."""

    def follows(self, begun: int) -> None:
        """Count from ``begun``, the end of the last extent; 0: there was none, so the first waits for no interval."""
        self._last = self._end = begun

    def begins(self, end: int) -> bool:
        """Return whether a transaction up to ``end`` may begin now; if so, it counts as begun."""
        now = self._clock.now_ms()
        self._last = min(self._last, now)  # if the clock was set back, as if it had begun now
        until = self._schedule.due(self._last or now - self._schedule.every, now)
        if until > now and not self._end < self._asked <= end:
            self._until, self.waits = until, SCHEDULED.said(until=utc_text(until))
            return False
        self._last, self._end = now, end
        self.rests()
        return True

    def hurry(self, asked: int) -> None:
        """Let a transaction up to ``asked``, or later, begin as soon as there may be one; once, however often asked."""
        self._asked = max(self._asked, asked)

    def rests(self) -> None:
        """Take note that no transaction waits."""
        self._until, self.waits = 0, ""

    @property
    def due(self) -> bool:
        """Whether a transaction waited that may begin now, or is asked for.

        It is true until the transaction begins, also where the collections are not at the time that was asked for: only
        further ticks can bring them there.
        """
        return bool(self.waits) and (self._end < self._asked or self._clock.now_ms() >= self._until)
