"""Blob: bytes under string keys, for everything too large for Consensus.

Keys are ``/``-separated paths of ``[A-Za-z0-9._=-]`` segments (never ``.`` or ``..``) and are **never reused**: a key
is written once, by one writer, and may be deleted once nothing durable names it.  Whoever stores an object seals it
(`strandline/store/seal.py`); Blob itself promises only the operations below.

Source: design page "persist".  Contract suite: `strandline.testing.blob_contract`.
"""

from __future__ import annotations

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
        """Remove ``key``; tell whether it was there."""
        ...

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted.  May be stale: never proof that a key is absent."""
        ...
