"""The last part of `strandline bench environment`: how many bytes ticks write for those of their changes.

A table with a view of each kind that looks up is ticked a thousand times, with a thousand changes each: half of them
withdraw rows, half insert as many.  No history is kept, so that the live rows are constant.  Everything counts that
reaches the two stores: parts, merges, rollups, and each version of a shard's state.  Nothing is deleted meanwhile:
garbage outlives a day.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from strandline.bench.measured import Edit, Measured
from strandline.controller.asking import verification
from strandline.controller.core import Core
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import View
from strandline.instance import live
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch
from strandline.wiring.assemble import assemble
from strandline.wiring.locations import BLOB, CONSENSUS_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CHANGED_TICKS: Final = 1_000
CHANGES: Final = 1_000
ROWS: Final = 100_000
GROUPS: Final = 1_000
TENTHS: Final = 10
READS: Final = 3
"""How often each view is read at the end of a tenth."""
VIEWS: Final = {
    "sums": "SELECT grp, count(*) AS n, sum(amount) AS amount FROM items GROUP BY grp",
    "joined": "SELECT i.id, i.amount, g.name FROM items i JOIN groups g ON i.grp = g.grp",
    "greatest": "SELECT grp, max(amount) AS top FROM items GROUP BY grp",
}


def written(session: SparkSession, directory: Path, *, ticks: int = CHANGED_TICKS) -> dict[str, Any]:
    """Measure in ``directory`` and return every figure.

    ``amplification``: bytes written after the first tick ÷ those of the changes in their final form, which is that of
    the largest batch of each collection; by store too.  ``read_ratio``: reading all views in the last tenth ÷ in the
    second, medians; ``tick_ratio``: a tick, likewise.  ``arranged_bytes_max`` and ``arranged_budget``: the memory of
    arrangements.  ``wrong``: rows of the views that are missing or too many at the end.
    """
    return asyncio.run(_written(session, directory, ticks))


class _Counting(SQLiteConsensus):
    """Counts the bytes of the versions that it is given."""

    written = 0

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        self.written += sum(len(request.new.data) for request in requests)
        return await super().compare_and_set_many(requests)


class _Items:
    """The rows of the table: which are there, and the next ones."""

    def __init__(self) -> None:
        self._chance = np.random.default_rng(1)
        self._next = 0
        self._there = self.fresh(ROWS)

    def fresh(self, count: int) -> pa.Table:
        """Return new rows."""
        ids = np.arange(self._next, self._next + count)
        self._next += count
        groups = self._chance.integers(0, GROUPS, count).astype(np.int32)
        return pa.table({"id": ids, "grp": groups, "amount": self._chance.integers(0, 10**6, count)})

    @property
    def all(self) -> pa.Table:
        """The rows that are there."""
        return self._there

    def change(self) -> Edit:
        """Replace some rows, wherever they are."""
        gone = np.zeros(ROWS, np.bool_)
        gone[self._chance.choice(ROWS, CHANGES // 2, replace=False)] = True
        come = self.fresh(CHANGES // 2)
        leaving = self._there.filter(pa.array(gone))
        self._there = pa.concat_tables([self._there.filter(pa.array(~gone)), come]).combine_chunks()
        return Edit("items", leaving, come)


async def _written(session: SparkSession, directory: Path, ticks: int) -> dict[str, Any]:
    config = Config(keep_history="0")
    made = assemble(directory.as_uri(), spark=session, consensus=None, config=config)
    counting = _Counting(directory / CONSENSUS_FILE)
    core = await Core.open(replace(made, consensus=counting), config, Mode.FULL)
    env, items = Measured(core, made, session), _Items()

    def stored() -> int:
        return sum(each.stat().st_size for each in (directory / BLOB).rglob("*") if each.is_file())

    try:
        await env.execute("CREATE TABLE items (id BIGINT, grp INT, amount BIGINT)")
        await env.execute("CREATE TABLE groups (grp INT, name STRING)")
        groups = pa.table({"grp": np.arange(GROUPS, dtype=np.int32), "name": [f"group {n}" for n in range(GROUPS)]})
        await env.commit([Edit("items", None, items.all), Edit("groups", None, groups)])
        for name, query in VIEWS.items():
            await env.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        await env.tick()
        before = stored(), counting.written, _updates(core)
        took: list[list[float]] = [[] for _ in range(TENTHS)]
        reads: list[float] = []
        arranged = 0
        for n in range(ticks):
            await env.commit([items.change()])
            took[n * TENTHS // ticks].append((await env.tick()).ms)
            arranged = max(arranged, made.engine.arranged_bytes)
            if (n + 1) * TENTHS // ticks > n * TENTHS // ticks:
                reads.append(await _read_ms(env))
        blob, consensus = stored() - before[0], counting.written - before[1]
        final = _final_bytes(core, {name: count - before[2][name] for name, count in _updates(core).items()}, ticks)
        checked = [await verification.verify(core, name, None) for name in VIEWS]
    finally:
        await core.close()
        made.close()
        counting.close()
    return {
        "ticks": ticks,
        "changes": CHANGES,
        "amplification": round((blob + consensus) / final, 2),
        "blob_amplification": round(blob / final, 2),
        "consensus_amplification": round(consensus / final, 2),
        "final_bytes": round(final),
        "tick_ms": round(statistics.median(took[-1]), 1),
        "tick_ratio": round(statistics.median(took[-1]) / statistics.median(took[1]), 3),
        "read_ms": round(reads[-1], 1),
        "read_ratio": round(reads[-1] / reads[1], 3),
        "arranged_bytes_max": arranged,
        "arranged_budget": made.engine.arranged_budget,
        "wrong": sum(each.missing + each.extra for each in checked),
    }


async def _read_ms(env: Measured) -> float:
    """Return how long it takes to read all views: the median of some times."""
    found = []
    for _ in range(READS):
        begun = time.perf_counter()
        for name in VIEWS:
            await env.rows(name)
        found.append((time.perf_counter() - begun) * 1000)
    return statistics.median(found)


def _updates(core: Core) -> dict[str, int]:
    """Return how many updates the sinks of each view have appended."""
    return {name: live.of(core.live(), live.SINK, name)["rows"] for name in VIEWS}


def _final_bytes(core: Core, updates: dict[str, int], ticks: int) -> float:
    """Return how many bytes the updates of the table and of the views take as they are stored for good."""
    counts = {**updates, "items": ticks * CHANGES}
    return sum(count * _bytes_per_update(core, name) for name, count in counts.items())


def _bytes_per_update(core: Core, name: str) -> float:
    """Return how many bytes an update takes in the largest batches of a collection and of its internal stages."""
    item = core.catalog.collection(name)
    shards = (item.shard, *(item.stages.values() if isinstance(item, View) else ()))
    largest = [max(core.client.state_of(shard).batches, key=lambda batch: batch.rows) for shard in shards]
    return sum(part.size for batch in largest for part in batch.parts) / sum(batch.rows for batch in largest)
