"""Time and identity as protocols, so that a simulation can control them.

`Clock` returns wall time in milliseconds and waits; `Ids` returns names that are never repeated.  Correctness never
depends on the clock, which may step back or jump; only leases and ticks use it.
"""

from __future__ import annotations

from datetime import UTC, datetime
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
