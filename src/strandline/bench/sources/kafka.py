"""From a topic to a durable collection, beside plain Spark that reads the same offsets by ``from_json`` into Parquet.

In each round both sides have their turn: ours binds, decodes, appends and commits in one tick of a new environment.
What either side has at the end is compared.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.bench.sources.beside import COLUMNS, ROUNDS, Turns, taken, texts, written
from strandline.bench.sources.endpoint import FOLLOWED, LANES, Upstream
from strandline.testing import topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 8
MESSAGES: Final = 1_000_000


def measure_kafka(
    session: SparkSession, directory: Path, servers: str, *, messages: int = MESSAGES, rounds: int = ROUNDS
) -> dict[str, Any]:
    """Fill a topic of JSON messages, read it with both, drop it, and return every figure (`Turns.figures`)."""
    turns = Turns(messages)
    with _topic(servers, PARTITIONS) as topic:
        topics.produce(topics.producer(servers), topic, texts(range(messages)), range(PARTITIONS))
        ends = topics.ends(topics.admin(servers), topic)
        source = f"CREATE SOURCE events ({COLUMNS}) FROM KAFKA (servers = '{servers}', topic = '{topic}') FORMAT JSON"
        for number in range(rounds + 1):
            into = directory / f"round-{number}"
            turns.ours.append(asyncio.run(taken(session, into / "ours", source)))
            begun = time.perf_counter()
            turns.spark.append(written(session, _plain(session, servers, topic, ends), into / "spark", begun))
    return {"messages": messages, "partitions": PARTITIONS, **turns.figures()}


@contextmanager
def followed(servers: str) -> Iterator[Upstream]:
    """Make a topic whose records are followed to an endpoint; a lane is a partition.  It goes with the context."""
    with _topic(servers, LANES) as topic:
        producer = topics.producer(servers)

        def put(rows: range) -> None:
            values = (json.dumps({"id": n, "lane": n % LANES, "amount": n % 1_000}) for n in rows)
            topics.produce(producer, topic, values, range(LANES))

        source = f"FROM KAFKA (servers = '{servers}', topic = '{topic}') FORMAT JSON"
        yield Upstream((f"CREATE SOURCE events ({FOLLOWED}) {source}",), put)


@contextmanager
def _topic(servers: str, partitions: int) -> Iterator[str]:
    client, topic = topics.admin(servers), f"strandline-bench-{time.time_ns()}"  # noqa: TID251 - a name of our own
    topics.make(client, topic, partitions, {})
    try:
        yield topic
    finally:
        topics.drop(client, topic)


def _plain(session: SparkSession, servers: str, topic: str, ends: dict[int, int]) -> DataFrame:
    read = session.read.format("kafka").option("kafka.bootstrap.servers", servers)
    read = read.option("kafka.isolation.level", "read_committed").option("assign", json.dumps({topic: list(ends)}))
    read = read.option("startingOffsets", json.dumps({topic: dict.fromkeys(ends, 0)}))
    read = read.option("endingOffsets", json.dumps({topic: ends}))
    return read.load().select(F.from_json(F.col("value").cast("string"), COLUMNS).alias("row")).select("row.*")
