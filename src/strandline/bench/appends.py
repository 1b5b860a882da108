"""The second half of ``strandline bench persist``: the cost of an append, and the size of a shard after many.

No Spark: record shards, on the default stores (SQLite and local files).  *Load*: racing writers (`load`).  *Append*:
batches of one record into one shard.  *Growth*: many batches of ten records into another, whose one critical reader
follows at a distance, so that compaction and garbage collection have to keep up; they run inside the appends that make
them due, and are part of the cost of an append.  *Idle*: the uppers of many shards with nothing new, advanced together,
as at each tick.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from strandline.algebra.schema import Column, Schema
from strandline.bench.load import Load, drive, percentiles
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.records import Record
from strandline.persist.shard.batch import BlobPart, InlinePart, shard_prefix
from strandline.persist.shard.codec import encode_rollup
from strandline.persist.shard.state import ShardState
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus

APPENDS: Final = 1_000
RECORD: Final = b"x" * 64
GROWTH_APPENDS: Final = 100_000
GROWTH_RECORDS: Final = 10
FOLLOWS_EVERY: Final = 100
"""The reader of the growing shard releases history once per this many appends."""
KEYS: Final = 10_000
"""How many distinct records the growing shard has; later records repeat earlier ones."""
OPENINGS: Final = 5
DECILE: Final = 10
IDLE_SHARDS: Final = 50
IDLE_TICKS: Final = 200
SHARD: Final = "bench"
EPOCH: Final = 1
_BYTES: Final = Schema((Column("data", "binary"),))


def append_and_open(
    directory: Path, *, load: Load | None = None, appends: int = APPENDS, growth: int = GROWTH_APPENDS
) -> dict[str, Any]:
    """Run all measurements in ``directory`` and return every figure.

    ``load``: the figures of `load.drive`.  ``append_ms_p50`` and ``_p99``; ``idle_ms_p50``: `IDLE_SHARDS` uppers in
    one ``compare_and_set_many``; after ``growth_appends`` batches of `GROWTH_RECORDS`: ``state_bytes_after_n``
    (without inline parts), ``open_ms`` and ``plan_ms`` (of a snapshot; medians), ``parts_after_n``,
    ``blob_bytes_ratio`` (bytes on disk ÷ bytes of referenced objects, after a collection),
    ``append_last_decile_ratio`` (mean cost of the last tenth of the appends ÷ of the first).
    """
    return asyncio.run(_measured(directory, load or Load(), appends, growth))


async def _measured(directory: Path, load: Load, appends: int, growth: int) -> dict[str, Any]:
    return {
        "load": await _loaded(directory / "load", load),
        **await _latency(directory / "latency", appends),
        **await _idle(directory / "idle"),
        **await _growth(directory / "growth", growth),
    }


async def _loaded(directory: Path, load: Load) -> dict[str, Any]:
    opened = [_consensus(directory)]
    opened += [SQLiteConsensus(directory / "consensus.db") for _ in range(load.writers)]
    waiting = iter(opened)
    try:
        return await drive(load, lambda: _client(directory, next(waiting)))
    finally:
        for consensus in opened:
            consensus.close()


async def _latency(directory: Path, appends: int) -> dict[str, Any]:
    consensus = _consensus(directory)
    try:
        shard = await _client(directory, consensus).records(SHARD, EPOCH)
        took = [
            await _ms(partial(shard.append, [Record(RECORD, n, 1)], Frontier(n), Frontier(n + 1)))
            for n in range(appends)
        ]
    finally:
        consensus.close()
    return {
        **percentiles(took),
        "appends": appends,
        "record_bytes": len(RECORD),
    }


async def _idle(directory: Path) -> dict[str, Any]:
    consensus = _consensus(directory)
    try:
        client = _client(directory, consensus)
        writers = [await client.writer(f"{SHARD}{n}", EPOCH, schema="") for n in range(IDLE_SHARDS)]
        took = [
            await _ms(partial(client.advance_many, [(writer, Frontier(tick), "") for writer in writers]))
            for tick in range(1, IDLE_TICKS + 1)
        ]
        assert {writer.state.upper for writer in writers} == {Frontier(IDLE_TICKS)}, "some upper did not advance"
    finally:
        consensus.close()
    return {"idle_ms_p50": round(statistics.median(took), 3), "idle_shards": IDLE_SHARDS}


async def _growth(directory: Path, appends: int) -> dict[str, Any]:
    consensus = _consensus(directory)
    try:
        client = _client(directory, consensus)
        shard = await client.records(SHARD, EPOCH)
        hold = await client.since(SHARD, "bench", EPOCH)
        took = []
        for n in range(appends):
            records = [Record(b"%d" % ((n * GROWTH_RECORDS + k) % KEYS) + RECORD, n, 1) for k in range(GROWTH_RECORDS)]
            took.append(await _ms(partial(shard.append, records, Frontier(n), Frontier(n + 1))))
            if n % FOLLOWS_EVERY == FOLLOWS_EVERY - 1:
                await hold.downgrade(Frontier(n))
        collector = await client.collector(SHARD)
        assert collector is not None, "the shard exists"
        await collector.collect()
        opened = [await _ms(lambda: _client(directory, consensus).records(SHARD, EPOCH)) for _ in range(OPENINGS)]
        reader = await client.reader(SHARD, _BYTES, SHARD)
        assert reader is not None, "the shard exists"
        planned = [await _ms(lambda: reader.snapshot(appends - 1)) for _ in range(OPENINGS)]
        state = shard.state
    finally:
        consensus.close()
    tenth = max(1, appends // DECILE)
    return {
        "growth_appends": appends,
        "growth_records": GROWTH_RECORDS,
        "state_bytes_after_n": len(encode_rollup("bench", _without_inline(state))),
        "open_ms": round(statistics.median(opened), 3),
        "plan_ms": round(statistics.median(planned), 3),
        "parts_after_n": sum(len(batch.parts) for batch in state.batches),
        "blob_bytes_ratio": round(_on_disk(directory) / max(1, _referenced(directory, state)), 3),
        "append_last_decile_ratio": round(statistics.fmean(took[-tenth:]) / statistics.fmean(took[:tenth]), 3),
        "growth_append_ms_p50": round(statistics.median(took), 3),
        "growth_append_ms_mean": round(statistics.fmean(took), 3),
    }


def _without_inline(state: ShardState) -> ShardState:
    """Return the state without the bytes of its inline parts."""
    return replace(
        state,
        batches=tuple(
            replace(
                batch,
                parts=tuple(replace(p, data=b"") if isinstance(p, InlinePart) else p for p in batch.parts),
            )
            for batch in state.batches
        ),
    )


def _on_disk(directory: Path) -> int:
    return sum(path.stat().st_size for path in (directory / "blob" / shard_prefix(SHARD)).rglob("*") if path.is_file())


def _referenced(directory: Path, state: ShardState) -> int:
    parts = sum(part.size for batch in state.batches for part in batch.parts if isinstance(part, BlobPart))
    return parts + sum((directory / "blob" / rollup.key).stat().st_size for rollup in state.rollups)


async def _ms(call: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await call()
    return (time.perf_counter() - begun) * 1000


def _consensus(directory: Path) -> SQLiteConsensus:
    (directory / "blob").mkdir(parents=True)
    return SQLiteConsensus(directory / "consensus.db")


def _client(directory: Path, consensus: SQLiteConsensus) -> PersistClient:
    return PersistClient(SystemClock(), SystemIds(), FileBlob(directory / "blob"), consensus, grace_ms=0)
