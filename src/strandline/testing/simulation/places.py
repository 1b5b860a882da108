"""What simulated actors work with: stores, a clock and ids, each of whose calls is an I/O point."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from strandline.store.blob import Blob
from strandline.store.consensus import Committed, CompareAndSet, Consensus, Mismatch, Versioned
from strandline.store.unreliable import some_of
from strandline.testing.simulation.kernel import CHANGE, READ, WAIT, Fate, IoPoint, Simulation, nothing, run_sync

T = TypeVar("T")


def _point(
    site: str,
    method: Callable[..., Coroutine[Any, Any, T]],
    arguments: tuple[object, ...],
    fates: tuple[Fate, ...] = CHANGE,
) -> IoPoint[T]:
    """Return the I/O point that is ``method`` of a place, called with ``arguments``."""
    return IoPoint(site, arguments, lambda: run_sync(method(*arguments)), fates)


class SimBlob:
    """A `Blob` whose every call is an I/O point, performed on ``place``, a Blob that never suspends."""

    def __init__(self, place: Blob) -> None:
        self._place = place

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None."""
        return await _point("blob.get", self._place.get, (key,), READ)

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``."""
        await _point("blob.set", self._place.set, (key, data))

    async def delete(self, key: str) -> bool:
        """Remove ``key``; return whether it existed."""
        return await _point("blob.delete", self._place.delete, (key,))

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``, sorted."""
        return await _point("blob.list", self._place.list, (prefix,), READ)


class SimConsensus:
    """A `Consensus` whose every call is an I/O point, performed on ``place``, which never suspends."""

    def __init__(self, place: Consensus) -> None:
        self._place = place

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        return await _point("consensus.head", self._place.head, (key,), READ)

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected."""
        return await _point("consensus.compare_and_set", self._place.compare_and_set, (request,))

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone; of an unreported call any part may have happened."""
        site, asked = "consensus.compare_and_set_many", tuple(requests)

        def do(these: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
            return run_sync(self._place.compare_and_set_many(these))

        return await IoPoint(site, asked, lambda: do(asked), partly=lambda choose: do(some_of(asked, choose)))

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        return await _point("consensus.scan", self._place.scan, (key, start, limit), READ)

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; return how many."""
        return await _point("consensus.truncate", self._place.truncate, (key, seqno))

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        return await _point("consensus.list_keys", self._place.list_keys, (), READ)


class SimClock:
    """A `Clock` with the simulation's time plus ``skew_ms``, which a world may change at any step."""

    def __init__(self, simulation: Simulation, skew_ms: int = 0) -> None:
        self._simulation = simulation
        self.skew_ms = skew_ms

    def now_ms(self) -> int:
        """Return milliseconds since the epoch by this clock."""
        return self._simulation.now_ms + self.skew_ms

    async def sleep(self, seconds: float) -> None:
        """Wait for at least ``seconds`` of simulated time."""
        await IoPoint("clock.sleep", (seconds,), nothing, WAIT, delay_ms=max(0, round(seconds * 1000)))


class SimIds:
    """`Ids` that count; all actors of a simulation share one."""

    def __init__(self) -> None:
        self._given = 0

    def fresh(self, kind: str) -> str:
        """Return a new name that starts with ``kind``."""
        self._given += 1
        return f"{kind}-{self._given}"
