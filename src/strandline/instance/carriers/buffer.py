"""Buffers of frames between coroutines and threads, latches that both can wait for, and a carrier made of two buffers.

A buffer is bounded: a sender waits while the receiver is slow, so memory does not grow.  An empty buffer takes one
frame of any length, so a limit below the longest frame stops nothing.

Coroutines of several event loops and threads may use one object.  If a loop has ended, waking its coroutines does
nothing.

The carrier works inside one process, without a socket.  Contract suite:
`strandline.testing.contracts.carrier_contract`.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from strandline.errors import Disconnected, ProtocolViolation
from strandline.instance.protocol.carrier import FRAME_BYTES_MAX

T = TypeVar("T")

FRAME_COST_BYTES: Final = 128
"""What a frame takes besides its bytes: without it a buffer would hold any number of empty frames."""


class _Bell:
    """A lock, and a wake-up for the threads and coroutines that wait until what it guards has changed."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self._waiting: list[asyncio.Future[None]] = []

    def ring(self) -> None:
        """Wake all that wait.  The caller holds the lock."""
        self.lock.notify_all()
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            with suppress(RuntimeError):  # its loop has ended
                future.get_loop().call_soon_threadsafe(_settle, future)

    def wait(self, attempt: Callable[[], T | None], seconds: float | None) -> T | None:
        """Block until ``attempt``, made under the lock, returns something, and return that; None after ``seconds``."""
        with self.lock:
            return self.lock.wait_for(attempt, seconds)

    async def waited(self, attempt: Callable[[], T | None], seconds: float | None) -> T | None:
        """As `wait`, for a coroutine.  If it is cancelled, ``attempt`` has returned nothing."""
        loop = asyncio.get_running_loop()
        deadline = None if seconds is None else loop.time() + seconds
        while True:
            with self.lock:
                if (result := attempt()) is not None:
                    return result
                future = loop.create_future()
                self._waiting.append(future)
            try:
                async with asyncio.timeout_at(deadline):
                    await future
            except TimeoutError:
                with self.lock:
                    return attempt()
            finally:
                with self.lock, suppress(ValueError):  # if it was woken, it is gone already
                    self._waiting.remove(future)


class Latch:
    """A fact that becomes true once."""

    def __init__(self) -> None:
        self._bell = _Bell()
        self._set = False

    def set(self) -> None:
        """Make it true; idempotent."""
        with self._bell.lock:
            self._set = True
            self._bell.ring()

    def wait(self, seconds: float | None) -> bool:
        """Block until it is true, at most ``seconds``; return whether it is."""
        return self._bell.wait(self._state, seconds) is not None

    async def waited(self, seconds: float | None) -> bool:
        """As `wait`, for a coroutine."""
        return await self._bell.waited(self._state, seconds) is not None

    def _state(self) -> bool | None:
        return self._set or None


class Buffer:
    """A bounded queue of frames that one side puts and the other takes, until it is ended.

    ``bytes_max``: at how many bytes a sender waits.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._bell = _Bell()
        self._frames: deque[bytes] = deque()
        self._bytes = 0
        self._why: str | None = None

    @property
    def why(self) -> str | None:
        """Why it was ended; None while it is not."""
        return self._why

    def end(self, why: str, *, drop: bool = False) -> None:
        """Take no more frames: `put` raises `Disconnected`, and so does `take` once no frame is left.

        Only the first reason counts.  ``drop``: frames that were not taken are lost.
        """
        with self._bell.lock:
            self._why = why if self._why is None else self._why
            if drop:
                self._frames.clear()
                self._bytes = 0
            self._bell.ring()

    async def put(self, frame: bytes) -> None:
        """Add a frame, as soon as there is room for it."""
        await self._bell.waited(lambda: self._added(frame), None)

    def put_blocking(self, frame: bytes) -> None:
        """As `put`, for a thread."""
        self._bell.wait(lambda: self._added(frame), None)

    async def take(self, seconds: float | None) -> bytes | None:
        """Return the oldest frame; None if there is none within ``seconds``."""
        return _only(await self._bell.waited(self._taken, seconds))

    def take_blocking(self, seconds: float | None) -> bytes | None:
        """As `take`, for a thread."""
        return _only(self._bell.wait(self._taken, seconds))

    def _added(self, frame: bytes) -> bool | None:
        if self._why is not None:
            raise Disconnected(self._why)
        cost = len(frame) + FRAME_COST_BYTES
        if self._frames and self._bytes + cost > self._bytes_max:
            return None
        self._frames.append(frame)
        self._bytes += cost
        self._bell.ring()
        return True

    def _taken(self) -> tuple[bytes] | None:
        """Return the oldest frame in a tuple, since an empty frame is false."""
        if not self._frames:
            if self._why is not None:
                raise Disconnected(self._why)
            return None
        frame = self._frames.popleft()
        self._bytes -= len(frame) + FRAME_COST_BYTES
        self._bell.ring()
        return (frame,)


def check_length(frame: bytes) -> None:
    """Refuse a frame that is longer than both ends accept."""
    if len(frame) > FRAME_BYTES_MAX:
        raise ProtocolViolation(f"a frame of {len(frame)} bytes is longer than {FRAME_BYTES_MAX}")


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _only(taken: tuple[bytes] | None) -> bytes | None:
    return None if taken is None else taken[0]


BUFFER_BYTES: Final = 8 << 20
"""A sender waits while the other end has not received this many bytes."""


class QueueCarrier:
    """One end of a connection inside a process; `pair` makes both."""

    def __init__(self, outgoing: Buffer, incoming: Buffer) -> None:
        self._outgoing, self._incoming = outgoing, incoming

    async def send(self, frame: bytes) -> None:
        """See `Carrier.send`.  It waits while the other end is behind by `BUFFER_BYTES`."""
        check_length(frame)
        await self._outgoing.put(frame)

    async def receive(self, seconds: float | None) -> bytes | None:
        """See `Carrier.receive`."""
        return await self._incoming.take(seconds)

    async def close(self) -> None:
        """See `Carrier.close`.  The other end still receives all that was sent."""
        self._outgoing.end("the connection was closed")
        self._incoming.end("the connection was closed")

    def cut(self) -> None:
        """Cut the connection, as a failure does: frames that were not received are lost."""
        self._outgoing.end("the connection was cut", drop=True)
        self._incoming.end("the connection was cut", drop=True)


def pair() -> tuple[QueueCarrier, QueueCarrier]:
    """Return the two ends of a new connection."""
    there, back = Buffer(BUFFER_BYTES), Buffer(BUFFER_BYTES)
    return QueueCarrier(there, back), QueueCarrier(back, there)
