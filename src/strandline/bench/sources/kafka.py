"""From a topic to a durable collection, beside plain Spark that reads the same offsets by ``from_json`` into Parquet.

In each round both sides have their turn: ours binds, decodes, appends and commits in one tick of a new environment.
What either side has at the end is compared.

Source: design page "the public face" (benchmarks).
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.bench.measured import opened
from strandline.testing import topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS: Final = 8
MESSAGES: Final = 1_000_000
ROUNDS: Final = 3
COLUMNS: Final = "id BIGINT, customer BIGINT, amount DECIMAL(12, 2), at TIMESTAMP, note STRING"
_START_MS: Final = 1_700_000_000_000


def measure_kafka(
    session: SparkSession, directory: Path, servers: str, *, messages: int = MESSAGES, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Fill a topic of JSON messages, read it with both, drop it, and return every figure.

    ``rows_per_s`` and ``spark_rows_per_s``: medians of the rounds; ``ratio``: the first ÷ the second; ``wrong``: by how
    many rows, or by how much of their sums, the two differ.
    """
    client, topic = topics.admin(servers), f"strandline-bench-{time.time_ns()}"  # noqa: TID251 - a name of our own
    topics.make(client, topic, PARTITIONS, {})
    try:
        topics.produce(topics.producer(servers), topic, _values(messages), range(PARTITIONS))
        ends = topics.ends(client, topic)
        ours, spark, wrong = list[float](), list[float](), 0
        for number in range(rounds + 1):  # the first one warms both up
            into = directory / f"round-{number}"
            taken, sums = asyncio.run(_ours(session, into / "ours", servers, topic))
            plain, theirs = _plain(session, into / "spark", servers, topic, ends)
            wrong += sum(abs(a - b) for a, b in zip(sums, theirs, strict=True))
            if number:
                ours.append(messages / taken)
                spark.append(messages / plain)
    finally:
        topics.drop(client, topic)
    rates = statistics.median(ours), statistics.median(spark)
    return {
        "messages": messages,
        "partitions": PARTITIONS,
        "rows_per_s": round(rates[0]),
        "spark_rows_per_s": round(rates[1]),
        "ratio": round(rates[0] / rates[1], 3),
        "rows_per_s_of_rounds": [round(each) for each in ours],
        "spark_rows_per_s_of_rounds": [round(each) for each in spark],
        "wrong": wrong,
    }


def _values(messages: int) -> Iterator[str]:
    for number in range(messages):
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime((_START_MS + number) // 1000))
        amount = f"{number % 10_000}.{number % 100:02}"
        yield (
            f'{{"id": {number}, "customer": {number % 5_003}, "amount": {amount}, "at": "{at}", '
            f'"note": "order {number}"}}'
        )


async def _ours(session: SparkSession, into: Path, servers: str, topic: str) -> tuple[float, tuple[int, int]]:
    """Return the seconds of the tick that reads the topic, and what is there then: rows, and the sum of their ids."""
    into.mkdir(parents=True)
    async with opened(session, into) as env:
        await env.execute(
            f"CREATE SOURCE events ({COLUMNS}) USING kafka OPTIONS "
            f"(servers '{servers}', topic '{topic}', format 'json')"
        )
        tick = await env.tick()
        if tick.problems:
            raise RuntimeError(f"the source has problems: {dict(tick.problems)}")
        ids = (await env.rows("events")).column("id").to_pandas()
    return tick.ms / 1000, (len(ids), int(ids.sum()))


def _plain(
    session: SparkSession, into: Path, servers: str, topic: str, ends: dict[int, int]
) -> tuple[float, tuple[int, int]]:
    """Return the same of plain Spark."""
    begun = time.perf_counter()
    read = session.read.format("kafka").option("kafka.bootstrap.servers", servers)
    read = read.option("kafka.isolation.level", "read_committed").option("assign", json.dumps({topic: list(ends)}))
    read = read.option("startingOffsets", json.dumps({topic: dict.fromkeys(ends, 0)}))
    read = read.option("endingOffsets", json.dumps({topic: ends}))
    rows = read.load().select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("row")).select("row.*")
    rows.write.parquet(str(into))
    taken = time.perf_counter() - begun
    found = session.read.parquet(str(into)).agg(F.count("id"), F.sum("id")).first()
    assert found is not None
    return taken, (int(found[0]), int(found[1]))
