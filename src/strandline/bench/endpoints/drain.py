"""What memory a first sync takes: a large table of an environment, drained into PostgreSQL in one transaction.

The figure is the peak of the Python process, as the kernel keeps it (``VmHWM``), with all that the process had before.
Spark's JVM is another process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline.bench.endpoints import postgres
from strandline.bench.measured import Edit, opened
from strandline.bench.sources.endpoint import into_postgres

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_OF_A_COMMIT: Final = 1_000_000
KIB: Final = 1024
_COLUMNS: Final = "id BIGINT, customer INT, amount DECIMAL(12,2), note STRING"
_MADE: Final = (
    "id",
    "CAST(id % 5003 AS INT) AS customer",
    "CAST(id % 100000 AS DECIMAL(12,2)) AS amount",
    "concat('order ', id) AS note",
)


def measure_drain(session: SparkSession, directory: Path, options: Mapping[str, str], *, rows: int) -> dict[str, Any]:
    """Fill a table, drain it, and return the figures.

    ``peak_mib``: the most memory that this process ever had resident; ``peak_mib_before``: the same before the
    materialization was there; ``rows_per_s``: of the tick that drained it; ``wrong``: by how much the table in
    PostgreSQL differs, in rows and in the sum of their ids.
    """
    directory.mkdir(parents=True)
    with postgres.schema(options) as there:
        before, tick_ms = asyncio.run(_drained(session, directory / "location", there, rows))
        peak, found = peak_mib(), postgres.total(options, "drained")
    return {
        "rows": rows,
        "peak_mib": peak,
        "peak_mib_before": before,
        "rows_per_s": round(1000 * rows / tick_ms),
        "wrong": abs(found.rows - rows) + abs(found.ids - rows * (rows - 1) // 2),
    }


async def _drained(session: SparkSession, place: Path, endpoint: Mapping[str, str], rows: int) -> tuple[int, float]:
    """Return the peak before, and the milliseconds of the tick that drained the table."""
    async with opened(session, place) as env:
        await env.execute(f"CREATE TABLE drained ({_COLUMNS})")
        for begin in range(0, rows, ROWS_OF_A_COMMIT):
            made = session.range(begin, min(rows, begin + ROWS_OF_A_COMMIT)).selectExpr(*_MADE)
            await env.commit([Edit("drained", None, made)])
        before = peak_mib()
        await env.execute(f"CREATE MATERIALIZATION out INTO {into_postgres(endpoint)} AS drained KEY (id)")
        tick = await env.tick()
        assert not tick.problems, f"the environment has problems: {tick.problems}"
        return before, tick.ms


def peak_mib() -> int:
    """Return the most memory that this process ever had resident, in MiB."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) // KIB
