"""Clock, ids and background calls as protocols, so that a simulation can control them.

`Clock` returns wall time in milliseconds and waits; `Ids` returns names that are never repeated; `Aside` makes
blocking calls in other threads; `Beside` begins a call that runs beside its caller.  Correctness never depends on the
clock, which may step back or jump; only leases and ticks use it.  `SystemClock` and `SystemIds` are the only code of
`store` that reads the machine's clock and random numbers.

An event loop runs calls beside their caller as tasks, a simulation as actors of the same process.  Where there is
neither, the caller makes such a call itself when it waits for it (`Inline`).
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from strandline.errors import InvalidUsage


class Clock(Protocol):
    """Wall time.  May step back; never trusted for order."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for about ``seconds``."""
        ...


class Ids(Protocol):
    """Names that are unique across all processes."""

    def fresh(self, kind: str) -> str:
        """Return a new name that starts with ``kind`` (lower-case ASCII) and holds only ``[a-z0-9-]``."""
        ...


def utc_text(ms: int) -> str:
    """Return a time as messages write it.

    >>> utc_text(1_700_000_000_999)
    '2023-11-14T22:13:20+00:00'
    """
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


ID_BYTES: Final = 16
"""128 random bits: no two of 10**15 names are equal, with a chance of 1 in 10**8 that one pair is."""

_KIND: Final = re.compile(r"[a-z][a-z0-9-]*")


class SystemClock:
    """The `Clock` of this machine."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    async def sleep(self, seconds: float) -> None:
        """Wait for about ``seconds`` without blocking other tasks."""
        await asyncio.sleep(seconds)


class SystemIds:
    """`Ids` that cannot be guessed: ``<kind>-<32 hexadecimal digits>``."""

    def fresh(self, kind: str) -> str:
        """Return a new name that starts with ``kind``."""
        if _KIND.fullmatch(kind) is None:
            raise InvalidUsage(f"{kind!r} cannot start a name: lower-case ASCII letters, digits and hyphens only")
        return f"{kind}-{secrets.token_hex(ID_BYTES)}"


T = TypeVar("T")


class Aside(Protocol):
    """Makes calls that block, in threads in which nothing else is held up.  The wiring decides which."""

    async def __call__(self, call: Callable[[], T]) -> T:
        """Return what ``call`` returns, or raise what it raises.  Where this is cancelled, ``call`` may go on."""
        ...


class Running(Protocol):
    """A call that runs beside its caller."""

    async def wait(self, seconds: float | None) -> bool:
        """Return whether it has ended, after so many seconds at most (None: not before it has)."""
        ...

    async def cancel(self) -> None:
        """End it now; return when it has ended."""
        ...


Call: TypeAlias = Callable[[], Coroutine[Any, Any, None]]
Beside: TypeAlias = Callable[[Call], Running]
"""Begins a call that runs beside its caller.  The wiring decides how."""


class Inline:
    """A call that its caller makes itself, whenever it waits for it: a `Beside` without an event loop."""

    def __init__(self, call: Call) -> None:
        self._call: Call | None = call

    async def wait(self, seconds: float | None) -> bool:
        """See `Running.wait`; the call is made to its end, however long that takes."""
        call, self._call = self._call, None
        if call is not None:
            await call()
        return True

    async def cancel(self) -> None:
        """See `Running.cancel`."""
        self._call = None
