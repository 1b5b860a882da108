"""Kept: what a server holds for its clients between two calls, by handles that cannot be guessed.

A client that goes away leaves it behind, so everything here ends: what was not asked for during `IDLE_S` is dropped
when room is needed or looked for, and beyond `COUNT_MAX` nothing more is taken.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from strandline.errors import InvalidUsage, Unavailable
from strandline.store.clock import Clock, Ids

T = TypeVar("T")

IDLE_S: Final = 600.0
COUNT_MAX: Final = 1_000


class Kept(Generic[T]):
    """Values by handle, of one kind (``what``, in messages); calls from any thread."""

    def __init__(
        self, clock: Clock, ids: Ids, what: str, *, idle_s: float = IDLE_S, count_max: int = COUNT_MAX
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._what = what
        self._idle_ms = round(1000 * idle_s)
        self._count_max = count_max
        self._lock = threading.Lock()
        self._values: dict[bytes, tuple[int, T]] = {}

    def put(self, value: T) -> bytes:
        """Keep a value; return its handle.  Raises `Unavailable` if too many are kept."""
        now, handle = self._clock.now_ms(), self._ids.fresh("handle").encode()
        with self._lock:
            self._expire(now)
            if len(self._values) >= self._count_max:
                raise Unavailable(f"this server keeps {self._count_max} {self._what}s for its clients: try again later")
            self._values[handle] = (now, value)
        return handle

    def get(self, handle: bytes) -> T:
        """Return what is kept.  Raises `InvalidUsage` if nothing is, or no longer."""
        with self._lock:
            if handle in self._values:
                _, value = self._values[handle]
                self._values[handle] = (self._clock.now_ms(), value)
                return value
        raise InvalidUsage(
            f"there is no such {self._what}: it was ended, or not asked for during {self._idle_ms // 1000} s"
        )

    def change(self, handle: bytes, change: Callable[[T], T]) -> None:
        """Put another value in its place.  Raises as `get`."""
        value = change(self.get(handle))
        with self._lock:
            self._values[handle] = (self._clock.now_ms(), value)

    def take(self, handle: bytes) -> T:
        """Return what is kept, and keep it no longer.  Raises as `get`."""
        value = self.get(handle)
        self.drop(handle)
        return value

    def drop(self, handle: bytes) -> None:
        """Keep it no longer; nothing happens if it is not kept."""
        with self._lock:
            self._values.pop(handle, None)

    def _expire(self, now: int) -> None:
        late = [handle for handle, (used, _) in self._values.items() if now - used > self._idle_ms]
        for handle in late:
            del self._values[handle]
