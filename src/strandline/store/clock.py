"""Time and identity come from outside, so that a simulation owns them.

`Clock` gives wall time in milliseconds and a way to wait; `Ids` gives names that are never given twice.  Correctness
never depends on the clock: it may step back or jump; only leases and ticks look at it.
"""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Wall time.  May step back; never trusted for order."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for about ``seconds``."""
        ...


class Ids(Protocol):
    """Names that nobody else is given, by this process or any other."""

    def fresh(self, kind: str) -> str:
        """Return a new name that starts with ``kind`` (lower-case ASCII) and holds only ``[a-z0-9-]``."""
        ...
