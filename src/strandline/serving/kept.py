"""Kept: what a server holds for its clients between two calls, by handles that cannot be guessed.

A client that goes away leaves it behind, so everything here ends: what was not asked for during `IDLE_S` is dropped
by `expire`, or when something is put.  Beyond `COUNT_MAX` nothing more is taken; or, of what a client can make again,
what was not used for the longest goes.  (The JDBC driver prepares each statement that it runs, and ends none before its
connection ends.)
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import pyarrow as pa

from strandline.errors import InvalidUsage, Unavailable
from strandline.store.clock import Clock, Ids

T = TypeVar("T")

IDLE_S: Final = 600.0
COUNT_MAX: Final = 1_000


class Kept(Generic[T]):
    """Values by handle, of one kind (``what``, in messages); calls from any thread.

    ``oldest_goes``: for another one.
    """

    def __init__(
        self,
        clock: Clock,
        ids: Ids,
        what: str,
        *,
        idle_s: float = IDLE_S,
        count_max: int = COUNT_MAX,
        oldest_goes: bool = False,
    ) -> None:
        self._clock = clock
        self._ids = ids
        self._what = what
        self._idle_ms = round(1000 * idle_s)
        self._count_max = count_max
        self._oldest_goes = oldest_goes
        self._lock = threading.Lock()
        self._values: dict[bytes, tuple[int, T]] = {}

    def put(self, value: T) -> bytes:
        """Keep a value; return its handle.  Raises `Unavailable` if too many are kept."""
        now, handle = self._clock.now_ms(), self._ids.fresh("handle").encode()
        with self._lock:
            self._expire(now)
            if len(self._values) >= self._count_max:
                if self._oldest_goes:
                    del self._values[min(self._values, key=lambda each: self._values[each][0])]
                else:
                    raise Unavailable(
                        f"this server keeps {self._count_max} {self._what}s for its clients: try again later"
                    )
            self._values[handle] = (now, value)
        return handle

    def get(self, handle: bytes) -> T:
        """Return what is kept.  Raises `InvalidUsage` if nothing is, or no longer."""
        with self._lock:
            if handle in self._values:
                _, value = self._values[handle]
                self._values[handle] = (self._clock.now_ms(), value)
                return value
        others = f" or while {self._count_max} others were" if self._oldest_goes else ""
        raise InvalidUsage(
            f"there is no such {self._what}: it was ended, or not asked for during {self._idle_ms // 1000} s{others}"
        )

    def has(self, handle: bytes) -> bool:
        """Return whether something is kept under a handle."""
        with self._lock:
            return handle in self._values

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

    def expire(self) -> None:
        """Drop what was not asked for during the time that it is kept."""
        with self._lock:
            self._expire(self._clock.now_ms())

    def _expire(self, now: int) -> None:
        late = [handle for handle, (used, _) in self._values.items() if now - used > self._idle_ms]
        for handle in late:
            del self._values[handle]


class Held:
    """The bytes of the results that this process has for clients: of each, until its last reference goes.

    So a result counts while it waits and while it is sent, also to a client that reads slowly or has gone away.
    ``bytes_max``: what they may have together.  Calls from any thread.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes = 0
        self._bytes_max = bytes_max
        self._lock = threading.RLock()  # a table may go while this thread is in here

    def hold(self, table: pa.Table) -> pa.Table:
        """Return the same rows as a table that counts.  Raises `Unavailable` if there is no room for it."""
        size = int(table.nbytes)
        with self._lock:
            if self.bytes + size > self._bytes_max:
                raise Unavailable("the results that this server keeps are too large together: try again later")
            self.bytes += size
        counted = table.slice(0)  # the engine may keep ``table`` itself
        weakref.finalize(counted, self._release, size)
        return counted

    def _release(self, size: int) -> None:
        with self._lock:
            self.bytes -= size
