"""A load on persist: several writers race for one shard, and every acknowledged record must be in it.

Every record is unique and names its writer, so the final contents are compared with the acknowledged records one by
one: a load that is fast because it loses records ends with an error.

Each writer has its own client, as separate processes would; ``open_client`` chooses the stores.  So this can also test
a third-party `Blob` or `Consensus`, or one behind a double.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from strandline.errors import InvalidUsage
from strandline.frontier import Frontier, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.records import Record
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch
from strandline.wiring.loop import outcomes

SHARD: Final = "load"
EPOCH: Final = 1


@dataclass(frozen=True, slots=True)
class Load:
    """``writers`` append ``batches`` batches each, of ``records`` records of ``record_bytes`` bytes."""

    writers: int = 2
    batches: int = 200
    records: int = 100
    record_bytes: int = 64

    def __post_init__(self) -> None:
        if min(self.writers, self.batches, self.records) < 1:
            raise InvalidUsage(f"a load has at least one writer, batch and record: {self}")
        least = len(self.record(self.writers - 1, self.batches - 1, self.records - 1))
        if self.record_bytes < least:
            raise InvalidUsage(f"records of {self.record_bytes} bytes cannot all differ; this load needs {least}")

    def record(self, writer: int, batch: int, number: int) -> bytes:
        """Return one record."""
        return f"{writer}-{batch}-{number} ".encode().ljust(self.record_bytes, b".")

    def batch(self, writer: int, batch: int, time: int) -> list[Record]:
        """Return the records of one batch, to be appended at ``time``."""
        return [Record(self.record(writer, batch, number), time, 1) for number in range(self.records)]


@dataclass(slots=True)
class _Met:
    """The results of one writer."""

    took_ms: list[float]
    lost: int = 0


async def drive(load: Load, open_client: Callable[[], PersistClient]) -> dict[str, Any]:
    """Write ``load`` into a fresh shard and return the figures.

    ``rows_per_s``, ``mb_per_s`` (of records), ``cas_per_s`` (versions that were committed), ``lost_races`` (appends
    that lost a race and were retried), ``append_ms_p50`` and ``_p99`` (from first attempt to acknowledgement).

    Raises:
        AssertionError: an acknowledged record is missing, or stored twice.
        FencedError: another writer has taken the shard over.
    """
    begun = time.perf_counter()
    met = await outcomes([_write(load, writer, open_client()) for writer in range(load.writers)])
    seconds = time.perf_counter() - begun
    shard = await open_client().records(SHARD, EPOCH)
    found = sorted((record.data, record.diff) for record in await shard.contents())
    promised = sorted(
        (load.record(writer, batch, number), 1)
        for writer in range(load.writers)
        for batch in range(load.batches)
        for number in range(load.records)
    )
    assert found == promised, f"{len(promised)} records were acknowledged, and {len(found)} are stored"
    rows = len(promised)
    return {
        "writers": load.writers,
        "batch_records": load.records,
        "record_bytes": load.record_bytes,
        "rows": rows,
        "rows_per_s": round(rows / seconds),
        "mb_per_s": round(rows * load.record_bytes / seconds / 1e6, 3),
        "cas_per_s": round(shard.state.seqno / seconds),
        "lost_races": sum(each.lost for each in met),
        **percentiles([ms for each in met for ms in each.took_ms]),
    }


def percentiles(took_ms: list[float]) -> dict[str, float]:
    """Return the percentiles ``append_ms_p50`` and ``append_ms_p99``."""
    return {
        "append_ms_p50": round(statistics.median(took_ms), 3),
        "append_ms_p99": round(sorted(took_ms)[int(len(took_ms) * 0.99)], 3),
    }


async def _write(load: Load, writer: int, client: PersistClient) -> _Met:
    met = _Met([])
    shard = await client.records(SHARD, EPOCH)
    for number in range(load.batches):
        begun = time.perf_counter()
        while True:
            at = as_time(shard.upper)
            outcome = await shard.append(load.batch(writer, number, at), Frontier(at), Frontier(at + 1))
            match outcome:
                case Appended():
                    break
                case UpperMismatch():
                    met.lost += 1
                case Fenced():
                    raise fenced(SHARD, outcome, EPOCH)
        met.took_ms.append((time.perf_counter() - begun) * 1000)
    return met
