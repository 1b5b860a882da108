"""The timestamp oracle: every time that exists in an environment comes from here.

Times are milliseconds of the wall clock, but only ever go forward: across calls, restarts and clock steps.  What was
given out before a restart is known from the uppers of the shards (a tick seals its time everywhere), so the oracle
stores nothing of its own.
"""

from __future__ import annotations

from strandline.errors import InvalidUsage
from strandline.frontier.antichain import given_time
from strandline.store.clock import Clock


class Oracle:
    """Gives out times, each later than all before; ``floor`` is the first that is free."""

    def __init__(self, clock: Clock, floor: int) -> None:
        self._clock = clock
        self._floor = floor

    @property
    def floor(self) -> int:
        """The first time that was never given out."""
        return self._floor

    def now(self) -> int:
        """Return the time that `next` would give out; it is not given out."""
        return max(self._clock.now_ms(), self._floor)

    def next(self, wanted: int | None = None) -> int:
        """Return a time at or after the wall clock (or exactly ``wanted``) that was never given out before.

        Raises `InvalidUsage` if ``wanted`` is past, or no time.
        """
        time = self.now() if wanted is None else given_time(wanted, "the oracle")
        if time < self._floor:
            raise InvalidUsage(f"time {time} cannot be used: the next free one is {self._floor}")
        self._floor = time + 1
        return time

    def passed(self, upper: int) -> None:
        """Never give out a time before ``upper`` from now on."""
        self._floor = max(self._floor, upper)
