"""Read-only stores, for a process that must not change anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, Protocol

from strandline.errors import InvalidUsage
from strandline.store.protocols import Blob, Committed, CompareAndSet, Mismatch, Versioned


class ReadingBlob:
    """A `Blob` that refuses every change with `InvalidUsage`."""

    def __init__(self, inner: Blob) -> None:
        self._inner = inner

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        return await self._inner.get(key)

    async def set(self, key: str, data: bytes) -> None:
        """Refuse."""
        _refuse(f"blob {key!r} cannot be stored")

    async def delete(self, key: str) -> bool:
        """Refuse."""
        _refuse(f"blob {key!r} cannot be deleted")

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        return await self._inner.list(prefix)


class Versions(Protocol):
    """The methods of a `Consensus` that read."""

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None."""

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""


class ReadingConsensus:
    """A `Consensus` that refuses every change with `InvalidUsage`."""

    def __init__(self, inner: Versions) -> None:
        self._inner = inner

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None."""
        return await self._inner.head(key)

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Refuse."""
        _refuse(f"key {request.key!r} cannot be set")

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Refuse."""
        _refuse(f"keys {sorted(request.key for request in requests)} cannot be set")

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        return await self._inner.scan(key, start, limit)

    async def truncate(self, key: str, seqno: int) -> int:
        """Refuse."""
        _refuse(f"key {key!r} cannot be truncated")

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        return await self._inner.list_keys()


def _refuse(what: str) -> NoReturn:
    raise InvalidUsage(f"{what}: this process only reads the location; open it in another mode to change it")
