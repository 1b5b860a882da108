"""Doubles of Blob and Consensus that fail as the real ones do, by an injected choice.

A call has an effect or not, and its caller learns of it or not: four outcomes.  A caller that receives `Indeterminate`
cannot know which of two outcomes it met; code that must handle both alike needs these doubles.

`Outcome.LATE`, an effect that comes after the caller's answer, needs control over time: only the simulation
(`strandline.testing.simulation.kernel`) provides it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from functools import partial
from typing import Final, TypeAlias, TypeVar

from strandline.errors import Determinate, Indeterminate
from strandline.store.protocols import (
    Blob,
    Committed,
    CompareAndSet,
    Consensus,
    Mismatch,
    ObjectStore,
    Tagged,
    Versioned,
)

T = TypeVar("T")

Choose: TypeAlias = Callable[[str, int], int]
"""``choose(label, n)`` returns one of ``0 .. n - 1``; 0 always means that nothing goes wrong."""


class Outcome(Enum):
    """The effect of a call, and the answer that its caller receives."""

    DONE = "done"
    """It happened, and the caller has its result."""
    DONE_UNREPORTED = "done-unreported"
    """It happened; the caller receives `Indeterminate`."""
    LATE = "late"
    """The caller receives `Indeterminate`; it happens at some later time."""
    LOST = "lost"
    """It never happens; the caller receives `Indeterminate`."""
    REFUSED = "refused"
    """It never happens, and the caller knows: `Determinate`."""


AT_ONCE: Final = (Outcome.DONE, Outcome.DONE_UNREPORTED, Outcome.LOST, Outcome.REFUSED)
"""The outcomes that need no control over time."""


def some_of(requests: Sequence[CompareAndSet], choose: Choose) -> list[CompareAndSet]:
    """Choose which requests of one unreported call happen: any of them, since the call is not atomic."""
    return [request for request in requests if choose("consensus.compare_and_set_many.some", 2) == 0]


async def _with_outcome(
    site: str, choose: Choose, call: Callable[[], Awaitable[T]], unreported: Callable[[], Awaitable[T]] | None = None
) -> T:
    match AT_ONCE[choose(site, len(AT_ONCE))]:
        case Outcome.DONE:
            return await call()
        case Outcome.DONE_UNREPORTED:
            await (unreported or call)()
            raise Indeterminate(f"{site}: the answer was lost")
        case Outcome.LOST:
            raise Indeterminate(f"{site}: the request was lost")
        case _:
            raise Determinate(f"{site}: refused")


class UnreliableBlob:
    """A `Blob` over ``inner`` whose outcomes are ``choose("blob.<method>", 4)``, as an index into `AT_ONCE`."""

    def __init__(self, inner: Blob, choose: Choose) -> None:
        self._inner = inner
        self._choose = choose

    async def get(self, key: str) -> bytes | None:
        """Return what is stored under ``key``, or None; or fail."""
        return await _with_outcome("blob.get", self._choose, partial(self._inner.get, key))

    async def set(self, key: str, data: bytes) -> None:
        """Store ``data``; or fail."""
        await _with_outcome("blob.set", self._choose, partial(self._inner.set, key, data))

    async def delete(self, key: str) -> bool:
        """Remove ``key``; or fail."""
        return await _with_outcome("blob.delete", self._choose, partial(self._inner.delete, key))

    async def list(self, prefix: str) -> list[str]:
        """Return the keys that start with ``prefix``; or fail."""
        return await _with_outcome("blob.list", self._choose, partial(self._inner.list, prefix))


class UnreliableObjectStore(UnreliableBlob):
    """An `ObjectStore` over ``inner`` whose outcomes ``choose`` decides, as for `UnreliableBlob`."""

    def __init__(self, inner: ObjectStore, choose: Choose) -> None:
        super().__init__(inner, choose)
        self._objects = inner

    async def create(self, key: str, data: bytes) -> bool:
        """Store ``data`` iff nothing is there; or fail."""
        return await _with_outcome("blob.create", self._choose, partial(self._objects.create, key, data))

    async def read(self, key: str) -> Tagged | None:
        """Return what is stored with its tag, or None; or fail."""
        return await _with_outcome("blob.read", self._choose, partial(self._objects.read, key))

    async def replace(self, key: str, tag: str, data: bytes) -> bool:
        """Store ``data`` iff what is there has ``tag``; or fail."""
        return await _with_outcome("blob.replace", self._choose, partial(self._objects.replace, key, tag, data))


class UnreliableConsensus:
    """A `Consensus` over ``inner`` whose outcomes are ``choose("consensus.<method>", 4)``: indexes into `AT_ONCE`."""

    def __init__(self, inner: Consensus, choose: Choose) -> None:
        self._inner = inner
        self._choose = choose

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version; or fail."""
        return await _with_outcome("consensus.head", self._choose, partial(self._inner.head, key))

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected; or fail."""
        return await _with_outcome(
            "consensus.compare_and_set", self._choose, partial(self._inner.compare_and_set, request)
        )

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone; or fail.  The call is not atomic: any part of an unreported one may happen."""
        return await _with_outcome(
            "consensus.compare_and_set_many",
            self._choose,
            partial(self._inner.compare_and_set_many, requests),
            lambda: self._inner.compare_and_set_many(some_of(requests, self._choose)),
        )

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return some versions; or fail."""
        return await _with_outcome("consensus.scan", self._choose, partial(self._inner.scan, key, start, limit))

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; or fail."""
        return await _with_outcome("consensus.truncate", self._choose, partial(self._inner.truncate, key, seqno))

    async def list_keys(self) -> list[str]:
        """Return all keys; or fail."""
        return await _with_outcome("consensus.list_keys", self._choose, self._inner.list_keys)
