"""What a disk or a store may give back that is not what lies there: damaged bytes, listings with holes.

And mergers that fail for a reason of their own.  All only while faults are on, and each is a choice of the run.  What a
reader does with damaged bytes is to refuse them (`CorruptionError`): the user whose process meets them begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from strandline.persist.handles.contents import Contents, Merger, StageRequest
from strandline.persist.shard.batch import Staged
from strandline.store.protocols import Blob, Committed, CompareAndSet, Consensus, Mismatch, Versioned

Damage = Callable[[bytes], bytes]

SECTOR_BYTES: Final = 512


def flip(data: bytes, where: int) -> bytes:
    """Return ``data`` with one bit turned."""
    flipped = bytearray(data)
    flipped[where // 8 % len(data)] ^= 1 << where % 8
    return bytes(flipped)


def cut(data: bytes, where: int) -> bytes:
    """Return a beginning of ``data``."""
    return data[: where % len(data)]


def extend(data: bytes, where: int) -> bytes:
    """Return ``data`` with something after it."""
    return data + data[: 1 + where % len(data)]


def zero(data: bytes, where: int) -> bytes:
    """Return ``data`` with a sector that was never written."""
    begin = where % len(data) // SECTOR_BYTES * SECTOR_BYTES
    return data[:begin] + bytes(len(data[begin : begin + SECTOR_BYTES])) + data[begin + SECTOR_BYTES :]


DAMAGES: Final = (flip, cut, extend, zero)
MISDIRECTED: Final = len(DAMAGES)
"""The damage that gives another object's bytes."""


class TroubledBlob:
    """A Blob that is not always to be trusted: ``damaged`` has a say in what is read, ``listed`` in what is listed."""

    def __init__(self, inner: Blob, damaged: Damage, listed: Callable[[list[str]], list[str]]) -> None:
        self._inner = inner
        self._damaged = damaged
        self._listed = listed

    async def get(self, key: str) -> bytes | None:
        """See `Blob.get`."""
        data = await self._inner.get(key)
        return None if data is None else self._damaged(data)

    async def set(self, key: str, data: bytes) -> None:
        """See `Blob.set`."""
        await self._inner.set(key, data)

    async def delete(self, key: str) -> bool:
        """See `Blob.delete`."""
        return await self._inner.delete(key)

    async def list(self, prefix: str) -> list[str]:
        """See `Blob.list`."""
        return self._listed(await self._inner.list(prefix))


class TroubledMerger:
    """A merger that fails, as ``fails`` says, as Spark or the machine do: with no error that persist knows."""

    def __init__(self, inner: Merger, fails: Callable[[], bool]) -> None:
        self._inner = inner
        self._fails = fails

    async def merge(self, contents: Contents, request: StageRequest) -> Staged:
        """See `Merger.merge`."""
        if self._fails():
            raise OSError("the disk is full")
        return await self._inner.merge(contents, request)

    async def verify(self, contents: Contents) -> int:
        """See `Merger.verify`."""
        return await self._inner.verify(contents)


class TroubledConsensus:
    """A Consensus whose versions' bytes ``damaged`` has a say in; what it says about seqnos is true."""

    def __init__(self, inner: Consensus, damaged: Damage) -> None:
        self._inner = inner
        self._damaged = damaged

    async def head(self, key: str) -> Versioned | None:
        """See `Consensus.head`."""
        head = await self._inner.head(key)
        return None if head is None else Versioned(head.seqno, self._damaged(head.data))

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """See `Consensus.compare_and_set`."""
        return await self._inner.compare_and_set(request)

    async def compare_and_set_many(self, requests: list[CompareAndSet]) -> list[Committed | Mismatch]:
        """See `Consensus.compare_and_set_many`."""
        return await self._inner.compare_and_set_many(requests)

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """See `Consensus.scan`."""
        found = await self._inner.scan(key, start, limit)
        return found if not found else [*found[:-1], Versioned(found[-1].seqno, self._damaged(found[-1].data))]

    async def truncate(self, key: str, seqno: int) -> int:
        """See `Consensus.truncate`."""
        return await self._inner.truncate(key, seqno)

    async def list_keys(self) -> list[str]:
        """See `Consensus.list_keys`."""
        return await self._inner.list_keys()
