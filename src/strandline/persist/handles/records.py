"""Record shards: definite collections of small byte records, for the control plane itself.

The bindings of a source, committed transactions and a reader's file list are few, small, and decided by Python, so they
do not go through the engine.  They are shards like all others (upper, since, epoch, tokens, laws).  Only their parts
differ: this module encodes them, and reads them whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import msgspec
import xxhash

from strandline.errors import CorruptionError, InvalidUsage, StoreError
from strandline.frontier import MINIMUM, TIME_MAX, Frontier
from strandline.persist.handles.contents import Contents, StageRequest
from strandline.persist.handles.read import SinceHandle
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.batch import (
    INLINE_PART_BYTES_MAX,
    NOTHING,
    BlobPart,
    Digest,
    InlinePart,
    Part,
    Staged,
    Window,
)
from strandline.persist.shard.machine import Machine
from strandline.persist.shard.state import AppendOutcome, ShardState, UpperMismatch
from strandline.store.protocols import Blob
from strandline.store.seal import Kind, crc32c, seal, unseal

SCHEMA: Final = "records"
"""The schema text of a record shard; it prevents opening one as a shard of rows, or the other way round."""


Bounds: TypeAlias = tuple[Frontier, Frontier]
"""The lower and the upper of a batch."""


class Record(msgspec.Struct, frozen=True, order=True):
    """One update: at ``time`` the count of the record ``data`` changes by ``diff``."""

    data: bytes
    time: int
    diff: int


_TYPES: Final = (bytes, int, int)
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[tuple[bytes, int, int]])


def consolidate(records: Iterable[Record]) -> list[Record]:
    """Return the records with equal ``(data, time)`` summed, zeros dropped, in order of time and data.

    >>> consolidate([Record(b"a", 1, 1), Record(b"b", 0, 1), Record(b"a", 1, -1)])
    [Record(data=b'b', time=0, diff=1)]
    """
    sums: dict[tuple[int, bytes], int] = {}
    for record in records:
        at = (record.time, record.data)
        sums[at] = sums.get(at, 0) + record.diff
    return [Record(data, time, diff) for (time, data), diff in sorted(sums.items()) if diff]


def digest(records: Iterable[Record]) -> Digest:
    """Return Σ diff × hash(data) in two lanes."""
    total = NOTHING
    for record in records:
        low, high = (xxhash.xxh64_intdigest(record.data, seed) * record.diff for seed in (1, 2))
        total = total + Digest(low % 2**64, high % 2**64)
    return total


class RecordShard:
    """A record shard, opened for writing by `PersistClient.records`."""

    def __init__(self, machine: Machine, writer: WriteHandle, blob: Blob) -> None:
        self._machine = machine
        self._writer = writer
        self._blob = blob
        self._hold: SinceHandle | None = None

    @property
    def shard(self) -> str:
        """The shard's id."""
        return self._machine.shard

    @property
    def state(self) -> ShardState:
        """The newest state known here."""
        return self._machine.state

    @property
    def upper(self) -> Frontier:
        """The upper, as last seen."""
        return self._machine.state.upper

    async def refresh(self) -> Frontier:
        """Fetch what others appended; return the upper."""
        return (await self._machine.refresh()).upper

    def refuse_fenced(self) -> None:
        """See `WriteHandle.refuse_fenced`."""
        self._writer.refuse_fenced()

    async def append(
        self,
        records: Sequence[Record],
        expected: Frontier,
        new: Frontier,
        *,
        token: str | None = None,
        begun_ms: int | None = None,
    ) -> AppendOutcome:
        """Append ``records``, times within ``[expected, new)``, iff the upper is ``expected``; once by ``token``.

        ``begun_ms``: when the oldest part that the records name was begun.

        Raises:
            InvalidUsage: a record's time is not within, or parts were begun so long ago that they may be swept.
            Indeterminate: it may have happened; look for the records before you append them again.
        """
        for record in records:
            if not expected.beyond(record.time) or new.beyond(record.time):
                raise InvalidUsage(
                    f"shard {self.shard!r}: a record at {record.time} does not lie in [{expected}, {new})"
                )
        room = self._writer.inline_room
        batch = await stage_records(self._blob, self._writer, records, (expected, new), inline_bytes_max=room)
        staged = [batch] if batch.parts else []
        outcome = await self._writer.compare_and_append(staged, expected, new, token=token, begun_ms=begun_ms)
        if isinstance(outcome, UpperMismatch):
            await discard_records(self._blob, staged)
        return outcome

    async def release(self, reader: str, since: Frontier) -> None:
        """Let all times before ``since`` be added up, so that a merge drops what was withdrawn there.

        ``reader`` is a critical reader of this shard and of this owner alone.  Raises `FencedError` if a newer epoch
        has it.
        """
        if self._hold is None:
            hold = SinceHandle(self._machine, reader, self._writer.epoch)
            await hold.register()
            self._hold = hold  # not before: a call that finds it must find it registered
        await self._hold.downgrade(since)

    async def contents(
        self, state: ShardState | None = None, *, after: Frontier = MINIMUM, lower: Frontier = MINIMUM
    ) -> list[Record]:
        """Return the updates of ``state`` (default: the newest known here), consolidated, in order of time.

        ``after``: only those in batches that begin there or later.  ``lower``: only those at that time or later, which
        since must be before; batches that end before it are not read.  Nothing is cached: a caller that keeps earlier
        results passes ``after`` and gets only what is new.  If a batch is merged and collected during the read, this
        reads the batch that replaced it, unless the caller passed a ``state``.
        """
        while True:
            wanted = self.state
            try:
                return await self._contents(wanted if state is None else state, after, lower)
            except CorruptionError:
                newest = await self._machine.refresh()
                if state is not None or {*wanted.parts} <= {*newest.parts}:
                    raise

    async def _contents(self, state: ShardState, after: Frontier, lower: Frontier) -> list[Record]:
        found: list[Record] = []
        for batch in state.batches:
            if batch.parts and after <= batch.lower and not batch.upper <= lower:
                found += await read_records(self._blob, self.shard, batch.parts)
        return consolidate(record for record in found if lower.beyond(record.time))


async def stage_records(
    blob: Blob, writer: WriteHandle, records: Iterable[Record], bounds: Bounds, *, inline_bytes_max: int
) -> Staged:
    """Write one batch: inline in the state if it is small and there is room, else as an object in Blob."""
    net = consolidate(records)
    parts = await write_records(blob, net, writer.stage_prefix(), inline_bytes_max=inline_bytes_max)
    diffs = sum(r.diff for r in net)
    return Staged(*bounds, parts, len(net), diffs, digest(net), plain=all(r.diff == 1 for r in net))


async def write_records(blob: Blob, net: Sequence[Record], prefix: str, *, inline_bytes_max: int) -> tuple[Part, ...]:
    """Return the part that holds ``net`` (none, if there is nothing), written below ``prefix`` unless it is inline.

    Raises `InvalidUsage` for a record that could not be decoded again, and writes nothing.
    """
    if not net:
        return ()
    for r in net:
        if (r.data.__class__, r.time.__class__, r.diff.__class__) != _TYPES or abs(r.diff) > TIME_MAX:
            raise InvalidUsage(f"{r} is no record: bytes, a time and a diff, both int, the diff less than 2**63")
    body = _encoder.encode([(r.data, r.time, r.diff) for r in net])
    if len(body) <= min(INLINE_PART_BYTES_MAX, inline_bytes_max):
        return (InlinePart(body, len(net)),)
    key = prefix + "records"
    sealed = seal(Kind.RECORDS, key, body)
    await blob.set(key, sealed)
    return (BlobPart(key, len(sealed), len(net), crc32c(sealed), ""),)


async def discard_records(blob: Blob, staged: Iterable[Staged]) -> None:
    """Delete the objects of batches that were definitely refused; a store that fails leaves them as leaks."""
    for batch in staged:
        for part in batch.parts:
            if isinstance(part, BlobPart):
                with suppress(StoreError):  # nothing names what stays behind: a sweep deletes it
                    await blob.delete(part.key)


async def read_records(blob: Blob, shard: str, parts: Iterable[Part]) -> list[Record]:
    """Return the records in the windows of ``parts``.  Raises `CorruptionError` if one is missing or damaged."""
    found: list[Record] = []
    for part in parts:
        if isinstance(part, InlinePart):
            key, body = "kept in the state", part.data
        else:
            data = await blob.get(part.key)
            if data is None:
                raise CorruptionError(f"shard {shard!r}: part {part.key!r} is missing in Blob")
            key, body = part.key, unseal(Kind.RECORDS, part.key, data)
        try:
            found += _records(body, part.window)
        except msgspec.DecodeError as error:
            raise CorruptionError(f"shard {shard!r}: part {key!r} does not hold records: {error}") from error
    return found


def _records(body: bytes, window: Window | None) -> list[Record]:
    fields = _decoder.decode(body)
    if window is None:
        return [Record(*each) for each in fields]
    return [
        Record(data, max(time, window.advance), diff)
        for data, time, diff in fields
        if window.lower <= time and not window.upper.beyond(time)
    ]


class RecordMerger:
    """The `Merger` of record shards: it merges in this process and in memory."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob

    async def verify(self, contents: Contents) -> int:
        """See `Merger.verify`."""
        parts = [part for batch in contents.batches for part in batch.parts]
        found = await read_records(self._blob, contents.shard, parts)
        if not any(part.window for part in parts) and len(found) != sum(part.rows for part in parts):
            raise CorruptionError(
                f"shard {contents.shard!r}: a part holds {len(found)} records, not as many as appended"
            )
        return sum(record.diff for record in found)

    async def merge(self, contents: Contents, request: StageRequest) -> Staged:
        """See `Merger.merge`."""
        since = contents.advance
        found: list[Record] = []
        for batch in contents.batches:
            found += await read_records(self._blob, contents.shard, batch.parts)
        net = consolidate(Record(r.data, max(r.time, since), r.diff) for r in found)
        parts = await write_records(self._blob, net, request.prefix, inline_bytes_max=request.inline_bytes_max)
        return Staged(
            contents.batches[0].lower,
            contents.batches[-1].upper,
            parts,
            len(net),
            sum(r.diff for r in net),
            sum((batch.digest for batch in contents.batches), NOTHING),
            plain=all(r.diff == 1 for r in net),
            since=Frontier(since),
        )
