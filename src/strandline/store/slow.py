"""Doubles of Blob and Consensus that delay each call by an injected number of seconds.

Half of the delay passes before the call has its effect and half after it.  So other processes see the effect before the
caller does, and a caller that is cancelled while it waits does not know whether the call had its effect.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias, TypeVar

from strandline.store.blob import ObjectStore, Tagged
from strandline.store.clock import Clock
from strandline.store.consensus import Committed, CompareAndSet, Consensus, Mismatch, Versioned

T = TypeVar("T")
Delay: TypeAlias = Callable[[str], float]
"""``delay("blob.get")`` returns how many seconds this call takes; the next call may take a different time."""


async def _slowly(clock: Clock, seconds: float, call: Callable[[], Awaitable[T]]) -> T:
    await clock.sleep(seconds / 2)
    result = await call()
    await clock.sleep(seconds / 2)
    return result


class SlowObjectStore:
    """An `ObjectStore`, so a `Blob`: each call takes ``delay("blob.<method>")`` seconds more than ``inner``'s."""

    def __init__(self, clock: Clock, inner: ObjectStore, delay: Delay) -> None:
        self._clock = clock
        self._inner = inner
        self._delay = delay

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        return await _slowly(self._clock, self._delay("blob.get"), lambda: self._inner.get(key))

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``."""
        await _slowly(self._clock, self._delay("blob.set"), lambda: self._inner.set(key, data))

    async def delete(self, key: str) -> bool:
        """Remove ``key``; return whether it existed."""
        return await _slowly(self._clock, self._delay("blob.delete"), lambda: self._inner.delete(key))

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        return await _slowly(self._clock, self._delay("blob.list"), lambda: self._inner.list(prefix))

    async def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` iff nothing is stored under ``key``; return whether it was stored."""
        return await _slowly(self._clock, self._delay("blob.create"), lambda: self._inner.create(key, data))

    async def read(self, key: str) -> Tagged | None:
        """Return what is stored under ``key`` with its tag, or None."""
        return await _slowly(self._clock, self._delay("blob.read"), lambda: self._inner.read(key))

    async def replace(self, key: str, tag: str, data: bytes) -> bool:
        """Store ``data`` iff the object under ``key`` has ``tag``; return whether it was stored."""
        return await _slowly(self._clock, self._delay("blob.replace"), lambda: self._inner.replace(key, tag, data))


class SlowConsensus:
    """A `Consensus` each of whose calls takes ``delay("consensus.<method>")`` seconds more than ``inner``'s."""

    def __init__(self, clock: Clock, inner: Consensus, delay: Delay) -> None:
        self._clock = clock
        self._inner = inner
        self._delay = delay

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        return await _slowly(self._clock, self._delay("consensus.head"), lambda: self._inner.head(key))

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected."""
        seconds = self._delay("consensus.compare_and_set")
        return await _slowly(self._clock, seconds, lambda: self._inner.compare_and_set(request))

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone; all of them together take one delay."""
        seconds = self._delay("consensus.compare_and_set_many")
        return await _slowly(self._clock, seconds, lambda: self._inner.compare_and_set_many(requests))

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        seconds = self._delay("consensus.scan")
        return await _slowly(self._clock, seconds, lambda: self._inner.scan(key, start, limit))

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; return how many."""
        seconds = self._delay("consensus.truncate")
        return await _slowly(self._clock, seconds, lambda: self._inner.truncate(key, seqno))

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        return await _slowly(self._clock, self._delay("consensus.list_keys"), self._inner.list_keys)
