"""Carriers: what carries messages between a controller and a replica, as bytes.

A *carrier* is one connection as either of its ends has it.  It delivers frames whole, in order, and each once, until it
is cut; then what was under way may or may not have arrived.  What it carries it does not look at.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, Protocol, TypeAlias

FRAME_BYTES_MAX: Final = 64 << 20
"""A longer frame is refused by both ends: a command that is larger is a mistake, and rows come in several answers."""
ALONE_S: Final = 5.0
"""A replica without a controller for so long stops what only one replica may run, before another one begins it."""
NOTICED_S: Final = 7.0
"""By then both ends of a connection that was cut have noticed it."""


class Carrier(Protocol):
    """One end of a connection."""

    async def send(self, frame: bytes) -> None:
        """Have ``frame`` delivered to the other end.

        It may return before that has happened.  Raises `Disconnected` if the connection is known to be cut, and
        `ProtocolViolation` for a frame that is too long.
        """
        ...

    async def receive(self, seconds: float | None) -> bytes | None:
        """Return the next frame, or None if none comes within so many seconds (None: wait for it).

        Raises `Disconnected` once the connection is cut, or the other end has closed it, and all is received that came.
        """
        ...

    async def close(self) -> None:
        """End the connection; idempotent, and raises nothing."""
        ...


Dial: TypeAlias = Callable[[str], Awaitable[Carrier]]
"""Connects to the replica at an address.  Raises `Disconnected` if it is not there, or refuses who it is."""
Serve: TypeAlias = Callable[[Carrier], Awaitable[None]]
"""What a replica does with a connection: it returns when the connection has ended."""
