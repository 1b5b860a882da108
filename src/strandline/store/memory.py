"""Blob and Consensus in memory: for tests, for the simulation, and for locations that need not survive.

Both are plain and deterministic, and none of their methods ever suspends: `testing.simulation.kernel.run_sync` can run
a coroutine over them without an event loop.  Two handles with the same ``place`` share its contents.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from strandline.store.protocols import (
    Committed,
    CompareAndSet,
    Mismatch,
    Tagged,
    Versioned,
    check_key,
    check_limit,
    check_prefix,
    check_truncation,
)


class MemoryBlob:
    """An `ObjectStore` over a dictionary."""

    def __init__(self, place: dict[str, bytes] | None = None) -> None:
        self._place = {} if place is None else place

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        check_key(key)
        return self._place.get(key)

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``."""
        check_key(key)
        self._place[key] = bytes(data)

    async def delete(self, key: str) -> bool:
        """Remove ``key``; return whether it existed."""
        check_key(key)
        return self._place.pop(key, None) is not None

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        check_prefix(prefix)
        return sorted(key for key in self._place if key.startswith(prefix))

    async def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` iff nothing is stored under ``key``; return whether it was stored."""
        check_key(key)
        if key in self._place:
            return False
        self._place[key] = bytes(data)
        return True

    async def read(self, key: str) -> Tagged | None:
        """Return what is stored under ``key`` with its tag, or None."""
        data = await self.get(key)
        return None if data is None else Tagged(data, _tag(data))

    async def replace(self, key: str, tag: str, data: bytes) -> bool:
        """Store ``data`` iff the object under ``key`` has ``tag``; return whether it was stored."""
        found = await self.read(key)
        if found is None or found.tag != tag:
            return False
        self._place[key] = bytes(data)
        return True


def _tag(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


class MemoryConsensus:
    """A `Consensus` over a dictionary: per key its live versions, which are consecutive, oldest first."""

    def __init__(self, place: dict[str, list[Versioned]] | None = None) -> None:
        self._place = {} if place is None else place

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        versions = self._place.get(key)
        return versions[-1] if versions else None

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected."""
        versions = self._place.get(request.key)
        if request.expected != (versions[-1].seqno if versions else None):
            return Mismatch()
        self._place.setdefault(request.key, []).append(request.new)
        return Committed()

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone."""
        return [await self.compare_and_set(request) for request in requests]

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        check_limit(key, limit)
        versions = self._place.get(key)
        if not versions:
            return []
        first = max(0, start - versions[0].seqno)
        return versions[first : first + limit]

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; return how many."""
        versions = self._place.get(key, [])
        check_truncation(key, seqno, versions[-1].seqno if versions else None)
        gone = max(0, seqno - versions[0].seqno)
        del versions[:gone]
        return gone

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        return sorted(self._place)
