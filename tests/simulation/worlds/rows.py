"""Batches without Spark: updates encoded as record shards encode theirs, staged inline or as an object, read back.

What `Engine` promises, in small: what is staged is durable and in no shard; a read
gives the updates of the named batches within the named times, and a missing part is an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from laws.history import Content, Update
from strandline.algebra.schema import Column, Schema
from strandline.frontier import Frontier
from strandline.persist.handles.contents import Contents
from strandline.persist.handles.records import Record, digest
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.batch import BlobPart, InlinePart, Part, Staged
from strandline.store.protocols import Blob
from strandline.store.seal import Kind, crc32c, seal, unseal

SCHEMA: Final = Schema((Column("row", "binary"),))


class GoneError(Exception):
    """The object ``key``, a part of ``shard``, is not in Blob."""

    def __init__(self, shard: str, key: str) -> None:
        super().__init__(f"{key} of {shard} is not in Blob")
        self.key = key


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Update]).decode


async def stage(
    blob: Blob, writer: WriteHandle, updates: Sequence[Update], lower: int, upper: int, *, inline: bool
) -> Staged:
    """Write one batch of ``[lower, upper)``: into the state, or into an object of its own."""
    body = _encode(updates)
    part: Part
    if inline:
        part = InlinePart(body, len(updates))
    else:
        key = writer.stage_prefix() + "part"
        data = seal(Kind.RECORDS, key, body)
        await blob.set(key, data)
        part = BlobPart(key, len(data), len(updates), crc32c(data), "")
    sums = digest(Record(u.row, u.time, u.diff) for u in updates)
    plain = all(u.diff == 1 for u in updates)
    diffs = sum(u.diff for u in updates)
    return Staged(Frontier(lower), Frontier(upper), (part,), len(updates), diffs, sums, plain)


async def discard(blob: Blob, batches: Iterable[Staged]) -> None:
    """Delete the objects of batches that were definitely refused."""
    for staged in batches:
        for part in staged.parts:
            if isinstance(part, BlobPart):
                await blob.delete(part.key)


async def updates_of(blob: Blob, contents: Contents) -> list[Update]:
    """Return the updates that ``contents`` names, times before its ``advance`` moved up to it."""
    found: list[Update] = []
    for batch in contents.batches:
        for part in batch.parts:
            found += await _updates(blob, contents.shard, part)
    return [
        Update(u.row, max(u.time, contents.advance), u.diff) for u in found if contents.lower <= u.time < contents.upper
    ]


def multiset(updates: Iterable[Update]) -> Content:
    """Return the rows that the updates sum up to."""
    sums: Counter[bytes] = Counter()
    for update in updates:
        sums[update.row] += update.diff
    return sums


async def _updates(blob: Blob, shard: str, part: Part) -> list[Update]:
    if isinstance(part, InlinePart):
        found = _decode(part.data)
    else:
        data = await blob.get(part.key)
        if data is None:
            raise GoneError(shard, part.key)
        found = _decode(unseal(Kind.RECORDS, part.key, data))
    shown = part.window
    if shown is None:
        return found
    return [
        Update(u.row, max(u.time, shown.advance), u.diff)
        for u in found
        if shown.lower <= u.time and (shown.upper.at is None or u.time < shown.upper.at)
    ]
