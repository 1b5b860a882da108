"""A manual clock, and ids that count, so that a test's trace is the same each time."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from itertools import count
from typing import Any


class HandClock:
    """A `Clock` that moves when a test sets ``now`` (milliseconds) and when a caller sleeps."""

    def __init__(self, now: int = 0) -> None:
        self.now = now

    def now_ms(self) -> int:
        """Return the current time of this clock."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Advance the clock by ``seconds`` at once."""
        self.now += round(seconds * 1000)


class CountingIds:
    """`Ids` that count from 0.  Processes that share a store must be given different ``owner`` names."""

    def __init__(self, owner: str = "a") -> None:
        self._owner = owner
        self._count = count()

    def fresh(self, kind: str) -> str:
        """Return ``kind``, the owner and the next number."""
        return f"{kind}-{self._owner}-{next(self._count)}"


async def in_turn(calls: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run the calls in turn, and raise the first error: a `SideBySide` without an event loop."""
    waiting = list(calls)
    try:
        while waiting:
            await waiting.pop(0)
    finally:
        for call in waiting:
            call.close()
