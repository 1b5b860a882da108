"""`SimObjects`: an object store in the simulation, whose every call is an I/O point.

See `strandline.testing.simulation.kernel`.
"""

from __future__ import annotations

from strandline.store.blob import ObjectStore, Tagged
from strandline.testing.simulation.kernel import READ, IoPoint, run_sync
from strandline.testing.simulation.places import SimBlob


class SimObjects(SimBlob):
    """An `ObjectStore` done on ``place``: one that never suspends."""

    def __init__(self, place: ObjectStore) -> None:
        super().__init__(place)
        self._objects = place

    async def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` iff nothing is stored under ``key``; return whether it was stored."""
        return await IoPoint("blob.create", (key, data), lambda: run_sync(self._objects.create(key, data)))

    async def read(self, key: str) -> Tagged | None:
        """Return what is stored under ``key`` with its tag, or None."""
        return await IoPoint("blob.read", (key,), lambda: run_sync(self._objects.read(key)), READ)

    async def replace(self, key: str, tag: str, data: bytes) -> bool:
        """Store ``data`` iff what is stored under ``key`` has ``tag``; return whether it was stored."""
        return await IoPoint("blob.replace", (key, tag, data), lambda: run_sync(self._objects.replace(key, tag, data)))
