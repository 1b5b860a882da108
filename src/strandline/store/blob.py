"""Blob: bytes under string keys, for everything too large for Consensus.

Keys are ``/``-separated paths of ``[A-Za-z0-9._=-]`` segments (never ``.`` or ``..``) and are **never reused**: a key
is written once, by one writer, and may be deleted once nothing durable names it.  The caller seals what it stores
(`strandline/store/seal.py`); Blob itself promises only the operations below.

Contract suite: `strandline.testing.contracts.blob_contract`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Blob(Protocol):
    """Durable bytes by key.  Every method may raise `Determinate` or `Indeterminate`."""

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        ...

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``: readers see all of it or nothing, and when this returns it survives a power cut."""
        ...

    async def delete(self, key: str) -> bool:
        """Remove ``key``; return whether it existed."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted.  May be stale: it never proves that a key is absent."""
        ...


@dataclass(frozen=True, slots=True)
class Tagged:
    """An object as it was read: its bytes, and a tag that identifies these bytes among all values of the key."""

    data: bytes
    tag: str


class ObjectStore(Blob, Protocol):
    """A Blob with conditional writes, which `ObjectConsensus` builds consensus on.

    Its conditional calls are linearizable per key.  They alone may write a key twice.
    """

    async def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` iff nothing is stored under ``key``; return whether it was stored."""
        ...

    async def read(self, key: str) -> Tagged | None:
        """Return what is stored under ``key`` with its tag, or None."""
        ...

    async def replace(self, key: str, tag: str, data: bytes) -> bool:
        """Store ``data`` iff the object under ``key`` has ``tag``; return whether it was stored."""
        ...
