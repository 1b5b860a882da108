"""Ranges of a topic as a frame of raw messages: read by Spark's own Kafka connector, each message with its time.

One read covers all ranges.  The time of a message follows from its partition and offset by comparisons, a tree of
them where a partition has many times.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.messages import Range, TopicRanges
from strandline.algebra.schema import TIME
from strandline.engine.frames.failures import is_sparks

_PROVIDER: Final = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_EXACT: Final = {
    "failOnDataLoss": "true",
    "kafka.isolation.level": "read_committed",
}
"""What makes a read give all messages of the ranges that are committed, or fail."""


def is_there(session: SparkSession) -> bool:
    """Return whether the connector is on the class path."""
    jvm: Any = session._jvm  # noqa: SLF001 - PySpark has no name for the class path
    try:
        jvm.org.apache.spark.util.Utils.classForName(_PROVIDER, False, False)
    except Exception as error:
        if is_sparks(error):
            return False
        raise
    return True


def raw(session: SparkSession, topic: TopicRanges, *, headers: bool) -> DataFrame:
    """Return the messages of the ranges (lazy): the columns of `algebra.messages.RAW`."""
    of = _by_partition(topic.ranges)
    bounds = {
        "lower": {p: each[0].lower for p, each in of.items()},
        "upper": {p: each[-1].upper for p, each in of.items()},
    }
    given = {name: value if isinstance(value, str) else value.reveal() for name, value in topic.options.items()}
    read = (
        session.read.format("kafka")
        .options(**given)
        .options(**_EXACT)
        .option("assign", json.dumps({topic.topic: [int(partition) for partition in of]}))
        .option("startingOffsets", json.dumps({topic.topic: bounds["lower"]}))
        .option("endingOffsets", json.dumps({topic.topic: bounds["upper"]}))
        .option("includeHeaders", str(headers).lower())
        .load()
    )
    dated = read.withColumn(TIME, time_of(topic.ranges))
    if any(one.upper != other.lower for each in of.values() for one, other in pairwise(each)):
        dated = dated.where(F.col(TIME).isNotNull())
    kept = ["topic", "offset", "timestamp", "key", "value", *(["headers"] if headers else []), TIME]
    return dated.select(F.col("partition").cast("string").alias("partition"), *kept)


def time_of(ranges: Sequence[Range]) -> Column:
    """Return the time of the message at (partition, offset); NULL if it is in no range."""
    times = {each.time for each in ranges}
    of = _by_partition(ranges)
    gapless = all(one.upper == other.lower for each in of.values() for one, other in pairwise(each))
    if len(times) == 1 and gapless:
        return F.lit(times.pop()).cast("bigint")
    found: Column | None = None
    for partition, each in of.items():
        is_here = F.col("partition") == int(partition)
        time = _within(each)
        found = F.when(is_here, time) if found is None else found.when(is_here, time)
    assert found is not None, "there is a range"
    return found.cast("bigint")


def _within(ranges: Sequence[Range]) -> Column:
    """Return the time of an offset among ascending ranges."""
    if len(ranges) == 1:
        (only,) = ranges
        return F.when((F.col("offset") >= only.lower) & (F.col("offset") < only.upper), F.lit(only.time))
    middle = len(ranges) // 2
    before = F.col("offset") < ranges[middle].lower
    return F.when(before, _within(ranges[:middle])).otherwise(_within(ranges[middle:]))


def _by_partition(ranges: Sequence[Range]) -> dict[str, list[Range]]:
    found: defaultdict[str, list[Range]] = defaultdict(list)
    for each in sorted(ranges, key=lambda each: (each.partition, each.lower)):
        if each.lower < each.upper:
            found[each.partition].append(each)
    return dict(found)
