"""``strandline bench persist``: the cost of staging and scanning, compared with plain Spark on the same rows.

*Stage*: read generated rows, sort them within partitions by the same keys, write Parquet with the same codec,
fsync.  Strandline adds time and diff columns, a digest of every row, page CRCs and footer checks; the peer writes only
the rows.  *Scan*: aggregate all rows, of Strandline's parts through the engine, of the peer's files through
``spark.read.parquet``.  A ratio is the peer's median ÷ Strandline's: 1.0 is equally fast.  ``…_cpu_ratio`` compares
processor time of the JVM, which other work on the machine disturbs less than the clock; for that Spark must run in one
process.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pyspark
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.parts.part_store import PartStore
from strandline.engine.session.start import adopt
from strandline.engine.spark import SparkEngine
from strandline.persist.handles.contents import Contents, StageRequest
from strandline.persist.shard.batch import Staged, as_batch

ROWS: Final = 2_000_000
ROUNDS: Final = 9
SORT: Final = ("carrier", "flight", "at")
SCHEMA: Final = Schema(
    (
        Column("carrier", "string"),
        Column("flight", "int"),
        Column("at", "timestamp"),
        Column("tail", "string"),
        Column("origin", "string"),
        Column("dest", "string"),
        Column("delay", "double"),
        Column("distance", "bigint"),
        Column("fare", "decimal(10,2)"),
        Column("note", "string"),
    )
)
_GENERATED: Final = (
    "concat('C', id % 16) AS carrier",
    "CAST(id * 2654435761 % 5003 AS int) AS flight",
    "timestamp_millis(1356998400000 + id * 15769) AS at",
    "concat('N', id * 7919 % 4043) AS tail",
    "element_at(array('EWR', 'JFK', 'LGA'), CAST(id % 3 AS int) + 1) AS origin",
    "concat('D', id * 31 % 105) AS dest",
    "CAST(id * 7717 % 1300 - 80 AS double) AS delay",
    "id * 104729 % 4983 AS distance",
    "CAST(id * 15485863 % 100000 / 100 AS decimal(10,2)) AS fare",
    "if(id % 50 = 0, concat('note ', id), NULL) AS note",
)
_SCAN: Final = ("count(1)", "sum(flight)", "max(at)", "sum(delay)", "count(DISTINCT carrier)", "max(tail)", "sum(fare)")


def stage_and_scan(session: SparkSession, directory: Path, *, rows: int = ROWS, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure both in ``directory`` (removed afterwards) and return seconds, medians, ratios, sizes, versions.

    ``session`` lends its application; its conf is not changed.
    """
    own = adopt(session)
    engine = SparkEngine(own, PartStore(directory / "parts"))
    (directory / "parts").mkdir(parents=True)
    try:
        source = directory / "source"
        own.range(rows).selectExpr(*_GENERATED).write.parquet(source.as_uri())
        return asyncio.run(_measured(engine, own, directory, rows=rows, rounds=rounds))
    finally:
        engine.close()
        shutil.rmtree(directory, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _Meter:
    """The seconds of each kind of work in every round, by the clock and of the JVM's processor time."""

    process: Any
    seconds: dict[str, list[float]] = field(default_factory=dict)
    cpu: dict[str, list[float]] = field(default_factory=dict)

    @contextmanager
    def measure(self, name: str) -> Iterator[None]:
        """Measure the work inside."""
        worked, begun = self._worked(), time.perf_counter()
        yield
        self.seconds.setdefault(name, []).append(time.perf_counter() - begun)
        self.cpu.setdefault(name, []).append(self._worked() - worked)

    def _worked(self) -> float:
        """Return the seconds of processor time that the JVM has used."""
        seconds: float = self.process.info().totalCpuDuration().get().toNanos() / 1e9
        return seconds

    def forget(self) -> None:
        """Drop the rounds so far, which were warm-up."""
        self.seconds.clear()
        self.cpu.clear()


async def _measured(
    engine: SparkEngine, session: SparkSession, directory: Path, *, rows: int, rounds: int
) -> dict[str, Any]:
    source = session.read.parquet((directory / "source").as_uri())
    ours = engine.from_dataframe(source.selectExpr("*", f"1L AS {TIME}", f"1L AS {DIFF}"))
    jvm: Any = session._jvm  # noqa: SLF001 - there is no other way to what the JVM says of itself
    meter = _Meter(jvm.java.lang.ProcessHandle.current())
    peer = directory / "peer"
    staged: Staged | None = None
    for round_number in range(rounds + 1):
        if staged is not None:
            await engine.discard(staged)
        request = StageRequest("bench", SCHEMA, 0, 2, f"bench/{round_number}/", SORT, normalised=True)
        with meter.measure("stage"):
            staged = await engine.stage(ours, request)
        with meter.measure("unsorted"):
            _write(source, directory / "unsorted")
        with meter.measure("peer"):
            _write(source.sortWithinPartitions(*SORT), peer)
        with meter.measure("scan"):
            read = await engine.multiset(await engine.read(_contents(staged)))
            answer = engine.spark_frame(read).selectExpr(*_SCAN).collect()
        with meter.measure("peer_scan"):
            expected = session.read.parquet(peer.as_uri()).selectExpr(*_SCAN).collect()
        assert answer == expected, f"ours {answer}, plain Spark {expected}"
        if round_number == 0:
            meter.forget()
    assert staged is not None, "at least one round ran"
    return _figures(meter, staged, peer, rows)


def _figures(meter: _Meter, staged: Staged, peer: Path, rows: int) -> dict[str, Any]:
    median, cpu = _medians(meter.seconds), _medians(meter.cpu)
    part_bytes = sum(part.size for part in staged.parts)
    return {
        "stage_ratio": median["peer"] / median["stage"],
        "stage_cpu_ratio": cpu["peer"] / cpu["stage"],
        "scan_ratio": median["peer_scan"] / median["scan"],
        "scan_cpu_ratio": cpu["peer_scan"] / cpu["scan"],
        "stage_rows_per_s": rows / median["stage"],
        "stage_mb_per_s": part_bytes / median["stage"] / 1e6,
        "seconds": {name: [round(value, 3) for value in values] for name, values in meter.seconds.items()},
        "median_s": median,
        "median_cpu_s": cpu,
        "rows": rows,
        "part_bytes": part_bytes,
        "peer_bytes": sum(path.stat().st_size for path in peer.glob("*.parquet")),
        "parts": len(staged.parts),
        "versions": {"pyspark": pyspark.__version__},
        "cores": os.cpu_count(),
    }


def _medians(rounds: dict[str, list[float]]) -> dict[str, float]:
    return {name: round(statistics.median(values), 3) for name, values in rounds.items()}


def _contents(staged: Staged) -> Contents:
    return Contents("bench", SCHEMA, (as_batch(staged),), 0, 2, 1)


def _write(rows: DataFrame, directory: Path) -> None:
    """Write as plain Spark would, and fsync the files as Strandline does."""
    rows.write.mode("overwrite").option("compression", "zstd").parquet(directory.as_uri())
    for path in [*directory.iterdir(), directory]:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
