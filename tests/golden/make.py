"""Write a golden directory: a small location in which everything that persist stores occurs, and what it must read as.

Run once for each stored format, by the version that introduces it: ``python tests/golden/make.py DIRECTORY``.
What was released is never written again: later versions must read it as it is.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import pyarrow as pa

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.frames import inline
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.records import Record, digest
from strandline.persist.handles.register import Register
from strandline.persist.shard import codec
from strandline.persist.shard.batch import BlobPart, Digest, InlinePart, Staged, retimed
from strandline.persist.shard.evolution import evolve
from strandline.persist.shard.state import mark_swept
from strandline.persist.together.unsealed import OWNER, Pour, Write, pour
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.memory import MemoryConsensus
from strandline.store.seal import crc32c
from strandline.testing.doubles import CountingIds, HandClock

SCHEMA = Schema((Column("k", "string"), Column("n", "int")))


async def fill(blob: FileBlob, consensus: MemoryConsensus) -> None:
    """Write the location's contents."""
    clock = HandClock(1_700_000_000_000)
    client = PersistClient(clock, CountingIds("golden"), blob, consensus, rollup_every=6, grace_ms=3_600_000)
    await records(client)
    await rows(client)
    await stream(client)
    register = Register("words", clock, CountingIds("register"), consensus)
    for word in (b"first", b"second"):
        await register.update(lambda _, word=word: word)


async def records(client: PersistClient) -> None:
    """A record shard: inline and in Blob, merged, with holds, a lease, doomed parts."""
    log = await client.records("log", 3)
    await client.since("log", "history", 3)
    for at in range(12):
        size = 20_000 if at % 5 == 0 else 3
        gone = [Record(b"%d" % (at - 1) * size, at, -1)] if at % 5 == 1 else []
        await log.append([Record(b"%d" % at * size, at, 1), *gone], Frontier(at), Frontier(at + 1), token=f"token-{at}")
    await client.leased_reader("log", SCHEMA, "log")
    for _ in range(3):
        await log._machine.roll_up()
    collector = await client.collector("log")
    await collector.collect()
    await log._machine.commit(lambda state: mark_swept(state, 1_600_000_000_000))


async def rows(client: PersistClient) -> None:
    """A shard of rows: Arrow inline, Parquet in Blob, a window of each kind, another schema, a certificate, errors."""
    writer = await client.writer("orders/Ä", 4, schema=SCHEMA.ddl)
    table = pa.table(
        {
            "k": pa.array(["a", None, "ü"]),
            "n": pa.array([1, 2, None], pa.int32()),
            TIME: pa.array([0, 1, 2], pa.int64()),
            DIFF: pa.array([1, 2, -1], pa.int64()),
        }
    )
    small = InlinePart(inline.encode(table), 3)
    whole = Staged(Frontier(0), Frontier(3), (small,), 3, 2, Digest(7, 8), plain=False)
    await writer.compare_and_append(
        [retimed(whole, Frontier(2), Frontier(3))], Frontier(0), Frontier(3), certify="plan"
    )
    data = inline.parquet(table)
    key = f"{writer.stage_prefix()}part.parquet"
    await client.blob.set(key, data)
    part = BlobPart(key, len(data), 3, crc32c(data[-int.from_bytes(data[-8:-4], "little") - 8 :]), "")
    moved = retimed(
        Staged(Frontier(0), Frontier(3), (part,), 3, 2, Digest(7, 8), plain=False, errors=1), Frontier(4), Frontier(6)
    )
    await writer.compare_and_append([moved], Frontier(3), Frontier(6))
    await writer.compare_and_append([], Frontier(6), Frontier(9))
    await writer._machine.commit(lambda state: evolve(state, "`k` string, `n` bigint, `new` double"))


async def stream(client: PersistClient) -> None:
    """A shard with something that is not sealed yet."""
    writer = await client.writer("stream", 1, schema="", owner=OWNER)
    written = [Record(b"unsealed", 5, 1)]
    part = InlinePart(b"\x91\x93\xc4\x08unsealed\x05\x01", 1)
    staged = Staged(Frontier(5), Frontier(6), (part,), 1, 1, digest(written), plain=True)
    await writer.compare_and_append([], Frontier(0), Frontier(3))
    request = Pour("w", "poured", 1, (Write("batch", staged),))
    await writer._machine.commit(lambda state: pour(state, request))


def plain(value: object) -> object:
    """``value`` as JSON can hold it."""
    match value:
        case bytes():
            return {"bytes": value.hex()}
        case dict():
            return {key: plain(each) for key, each in sorted(value.items())}
        case list() | tuple():
            return [plain(each) for each in value]
    return value


async def main(directory: Path) -> None:
    """Write the directory."""
    directory.mkdir(parents=True)
    place: dict[str, list[object]] = {}
    consensus = MemoryConsensus(place)
    await fill(FileBlob(directory / "blob"), consensus)
    versions = {key: [[v.seqno, v.data.hex()] for v in each] for key, each in sorted(place.items())}
    (directory / "consensus.json").write_text(json.dumps(versions, indent=1) + "\n")
    client = PersistClient(HandClock(), CountingIds("x"), FileBlob(directory / "blob"), consensus)
    expected = {}
    for shard in ("log", "orders/Ä", "stream"):
        await client.compactor(shard)
        expected[shard] = plain(codec.entries(client.state_of(shard)))
    (directory / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
