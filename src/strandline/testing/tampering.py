"""Tampering: appends wrong rows to a shard through the public API, as a stray writer of the same epoch would.

`verify` must find them, and the next step must correct them (law K3).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from strandline.algebra.schema import Schema
from strandline.engine.parts.part_store import PartStore
from strandline.engine.session.start import adopt
from strandline.engine.spark import SparkEngine
from strandline.errors import Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import StageRequest
from strandline.persist.shard.state import Appended
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPTS_MAX: Final = 20
AHEAD_MS: Final = 500


async def plant(
    location: Path, spark: SparkSession, shard: str, schema: Schema, rows: Sequence[Mapping[str, Any]], diff: int = 1
) -> None:
    """Append ``rows`` with ``diff`` to ``shard`` of the file location ``location``, at its upper, or soon after."""
    blob = location / "blob"
    consensus = SQLiteConsensus(location / "consensus.db")
    engine = SparkEngine(adopt(spark), PartStore(blob))
    try:
        client = PersistClient(SystemClock(), SystemIds(), FileBlob(blob), consensus)
        reader = await client.reader(shard, schema, "tampered with")
        assert reader is not None, f"there is no shard {shard!r}"
        writer = await client.writer(shard, reader.state.epoch, schema=reader.state.schema, owner=reader.state.owner)
        for attempt in range(ATTEMPTS_MAX):
            # The running environment moves the upper at each tick: aim further ahead each time, and append at once
            # after staging.
            time = _at((await writer.refresh()).upper) + AHEAD_MS * attempt
            frame = await engine.local(pa.Table.from_pylist([dict(r) for r in rows]), schema, time=time, diff=diff)
            request = StageRequest(
                shard, schema, time, time + 1, writer.stage_prefix(), small=True, inline_bytes_max=1 << 14
            )
            staged = await engine.stage(frame, request)
            while _at(upper := (await writer.refresh()).upper) <= time:
                if isinstance(await writer.compare_and_append([staged], upper, Frontier(time + 1)), Appended):
                    return
            await engine.discard(staged)
        raise Unavailable(f"shard {shard!r} moved on at each of {ATTEMPTS_MAX} attempts to write to it")
    finally:
        engine.close()
        consensus.close()


def _at(upper: Frontier) -> int:
    assert upper.at is not None, "a closed shard takes nothing"
    return upper.at
