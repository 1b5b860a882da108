"""From rows in memory to a topic, beside plain Spark's Kafka writer.

Both write the same rows as JSON, with a key: ours in one transaction of Kafka for each of ours, with headers by which a
consumer could tell a message that it has seen; the peer by one ``df.write.format("kafka")`` of all rows, which Spark
has in memory, on all processors and without transactions.  Making the texts is timed on both sides.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.bench.endpoints import prepared as rows_of
from strandline.bench.endpoints.prepared import COLLECTION, SCHEMA, Prepared, Total
from strandline.bench.endpoints.turns import Route, measured, pushed
from strandline.materialize.drivers.kafka.kind import KIND
from strandline.materialize.protocol.task import Binding
from strandline.options import understood
from strandline.store.clock import SystemClock
from strandline.testing import topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITIONS: Final = 4


def measure_kafka(
    session: SparkSession, directory: Path, servers: str, *, rows: int, transactions: int, rounds: int
) -> dict[str, Any]:
    """Return the figures of pushing to topics of their own, which go afterwards."""
    prepared = rows_of.appends(rows, transactions)
    frame = session.createDataFrame(pa.concat_tables([each.rows for each in prepared.transactions])).cache()
    try:
        frame.count()
        return {"pushes": measured(prepared, _rounds(session, directory, servers, prepared, frame, rounds))}
    finally:
        frame.unpersist()


def _rounds(
    session: SparkSession, directory: Path, servers: str, prepared: Prepared, frame: DataFrame, rounds: int
) -> Iterator[Mapping[str, Route]]:
    client, run = topics.admin(servers), time.time_ns()  # noqa: TID251 - a name of our own
    settings = {"servers": servers, "checkpoints": f"strandline-bench-{run}-checkpoints"}
    for number in range(rounds):
        ours, plain = (f"strandline-bench-{run}-{number}-{side}" for side in ("ours", "plain"))
        for topic in (ours, plain):
            topics.make(client, topic, PARTITIONS, {})
        driver = KIND.open(understood("a cluster", KIND.options, settings), SystemClock())
        binding = Binding(COLLECTION, ours, ("id",), SCHEMA, delta=True)
        try:
            yield {
                "ours": Route(
                    partial(pushed, driver, binding, prepared, directory / f"{number}"),
                    partial(_total, session, servers, ours),
                ),
                "plain": Route(partial(_written, frame, servers, plain), partial(_total, session, servers, plain)),
            }
        finally:
            for topic in (ours, plain):
                topics.drop(client, topic)
    topics.drop(client, settings["checkpoints"])


def _written(frame: DataFrame, servers: str, topic: str) -> float:
    begun = time.perf_counter()
    key, value = F.to_json(F.struct("id")).alias("key"), F.to_json(F.struct("*")).alias("value")
    writing = frame.select(key, value).write.format("kafka")
    writing.option("kafka.bootstrap.servers", servers).option("topic", topic).save()
    return time.perf_counter() - begun


def _total(session: SparkSession, servers: str, topic: str) -> Total:
    read = session.read.format("kafka").option("kafka.bootstrap.servers", servers)
    read = read.option("kafka.isolation.level", "read_committed")
    messages = read.option("assign", json.dumps({topic: list(range(PARTITIONS))})).load()
    text = F.col("value").cast("string")
    ids, amounts = (F.get_json_object(text, f"$.{name}").cast("decimal(14,2)") for name in ("id", "amount"))
    found = messages.agg(F.count("value"), F.sum(ids), F.sum(amounts)).first()
    assert found is not None
    return Total(int(found[0]), int(found[1] or 0), int(100 * (found[2] or 0)))
