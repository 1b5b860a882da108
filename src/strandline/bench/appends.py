"""The other half of ``strandline bench persist``: what an append costs, and what is left of many of them.

No Spark: tiny batches go inline into the shard's state, by the default stores (SQLite and local files).  Every figure
is of one shard in a fresh location.

Source: design page "persist" (limits and targets).
"""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path
from typing import Any, Final

from strandline.frontier.antichain import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.codec import encode_rollup
from strandline.persist.records import Record
from strandline.store.file import FileBlob
from strandline.store.sqlite import SQLiteConsensus
from strandline.store.system import SystemClock, SystemIds

APPENDS: Final = 1_000
RECORD: Final = b"x" * 64
OPENINGS: Final = 5
SHARD: Final = "bench"
EPOCH: Final = 1


def append_and_open(directory: Path, *, appends: int = APPENDS) -> dict[str, Any]:
    """Append ``appends`` batches of one record, then open the shard anew; return every figure.

    ``append_ms_p50`` and ``_p99``, ``state_bytes_after_n`` (the whole state as a rollup holds it, inline parts
    included), ``open_ms`` (median).
    """
    (directory / "blob").mkdir(parents=True)
    return asyncio.run(_measured(directory, appends))


async def _measured(directory: Path, appends: int) -> dict[str, Any]:
    consensus = SQLiteConsensus(directory / "consensus.db")
    try:
        shard = await _client(directory, consensus).records(SHARD, EPOCH)
        took = []
        for n in range(appends):
            begun = time.perf_counter()
            await shard.append([Record(RECORD, n, 1)], Frontier(n), Frontier(n + 1))
            took.append((time.perf_counter() - begun) * 1000)
        opened = []
        for _ in range(OPENINGS):
            client = _client(directory, consensus)
            begun = time.perf_counter()
            again = await client.records(SHARD, EPOCH)
            opened.append((time.perf_counter() - begun) * 1000)
            assert again.upper == Frontier(appends)
    finally:
        consensus.close()
    ordered = sorted(took)
    return {
        "append_ms_p50": round(statistics.median(took), 3),
        "append_ms_p99": round(ordered[int(len(ordered) * 0.99)], 3),
        "state_bytes_after_n": len(encode_rollup(SHARD, shard.state)),
        "open_ms": round(statistics.median(opened), 3),
        "appends": appends,
        "record_bytes": len(RECORD),
    }


def _client(directory: Path, consensus: SQLiteConsensus) -> PersistClient:
    return PersistClient(SystemClock(), SystemIds(), FileBlob(directory / "blob"), consensus)
