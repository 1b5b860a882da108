"""A manual clock, ids that count, and a fuse that ends a process, so that a test's trace is the same each time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
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


class Crash(BaseException):
    """The process ends here: no handler catches it."""


class Fuse:
    """Ends the process at its n-th I/O, ``at``, before or ``after`` it took effect; None: never, it only counts."""

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.at = at
        self.after = after
        self.count = 0

    def guard(self, thing: Any) -> Any:
        """Return ``thing``, each of whose coroutines is an I/O."""
        return _Guarded(thing, self)

    async def burn(self, call: Callable[..., Awaitable[Any]], *args: Any, **kwargs: Any) -> Any:
        """Make one I/O.  Raises `Crash` if it is the one."""
        self.count += 1
        if self.count == self.at and not self.after:
            raise Crash
        result = await call(*args, **kwargs)
        if self.count == self.at:
            raise Crash
        return result


class _Guarded:
    def __init__(self, thing: Any, fuse: Fuse) -> None:
        self._thing = thing
        self._fuse = fuse

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if not asyncio.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: self._fuse.burn(found, *args, **kwargs)
