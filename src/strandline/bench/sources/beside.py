"""What the sections share: the rows that they read, and the figures of two sides that had their turns."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.bench.measured import opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS: Final = 3
COLUMNS: Final = "id BIGINT, customer BIGINT, amount DECIMAL(12, 2), at TIMESTAMP, note STRING"
_START_MS: Final = 1_700_000_000_000


def texts(numbers: range) -> Iterator[str]:
    """Return the rows with these numbers, each as JSON."""
    for number in numbers:
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((_START_MS + number) // 1000))
        amount = f"{number % 10_000}.{number % 100:02}"
        yield (
            f'{{"id": {number}, "customer": {number % 5_003}, "amount": {amount}, "at": "{at}", '
            f'"note": "order {number}"}}'
        )


@dataclass(frozen=True, slots=True)
class Read:
    """How long a side took to read and keep the rows, and what it then has: how many, and the sum of their ids."""

    seconds: float
    rows: int
    ids: int


async def taken(session: SparkSession, into: Path, source: str) -> Read:
    """Return what the first tick of a new environment takes by ``source``, a CREATE SOURCE of ``events``."""
    into.mkdir(parents=True)
    async with opened(session, into) as env:
        await env.execute(source)
        tick = await env.tick()
        if tick.problems:
            raise RuntimeError(f"the source has problems: {dict(tick.problems)}")
        ids = (await env.rows("events")).column("id")
    return Read(tick.ms / 1000, len(ids), pc.sum(ids).as_py() or 0)


def written(session: SparkSession, rows: DataFrame, into: Path, begun: float) -> Read:
    """Write ``rows`` as Parquet by plain Spark; return the same of it, since ``begun``."""
    rows.write.parquet(str(into))
    seconds = time.perf_counter() - begun
    found = session.read.parquet(str(into)).agg(F.count("id"), F.sum("id")).first()
    assert found is not None
    return Read(seconds, int(found[0]), int(found[1] or 0))


@dataclass
class Turns:
    """What the sides read in their turns; the first of each warms up, and does not count."""

    rows: int
    ours: list[Read] = field(default_factory=list)
    spark: list[Read] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return what the document says.

        ``rows_per_s`` and ``spark_rows_per_s``: medians of the rounds; ``ratio``: the first ÷ the second; ``wrong``: by
        how many rows, or by how much of the sum of their ids, a side differs from what there is.
        """
        ours, spark = ([self.rows / read.seconds for read in side[1:]] for side in (self.ours, self.spark))
        rates = statistics.median(ours), statistics.median(spark)
        ids = self.rows * (self.rows - 1) // 2
        return {
            "rows_per_s": round(rates[0]),
            "spark_rows_per_s": round(rates[1]),
            "ratio": round(rates[0] / rates[1], 3),
            "rows_per_s_of_rounds": [round(each) for each in ours],
            "spark_rows_per_s_of_rounds": [round(each) for each in spark],
            "wrong": sum(abs(read.rows - self.rows) + abs(read.ids - ids) for read in (*self.ours, *self.spark)),
        }
