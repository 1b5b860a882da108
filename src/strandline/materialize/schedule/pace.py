"""Pace: whether a materialization may begin its next transaction now, by its schedule.

A transaction begins ``every`` so long at the earliest after the one before, and only while the window ``within`` is
open.  The time of the last beginning is known to this process alone.  A new one counts from the end of the last extent
that the log has, which is no later: so a process that dies again and again does not begin a transaction each time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline.errors import WAITS
from strandline.materialize.schedule.window import Window, window
from strandline.problem import Problem, Stopped
from strandline.store.clock import Clock, utc_text

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
