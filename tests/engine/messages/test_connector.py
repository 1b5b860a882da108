"""The time of a message follows from where it stands; a connector that is not there is said to be missing."""

from __future__ import annotations

import asyncio

import pyarrow as pa
import pytest

from strandline.algebra.messages import MessageEncoding, MessageFormat, Range, TopicRanges
from strandline.algebra.schema import Column, Schema
from strandline.engine.frames.rows import Local, dataframe
from strandline.engine.messages.decoder import SparkMessages, time_of
from strandline.errors import DefinitionError

pytestmark = pytest.mark.spark


def test_each_message_has_the_time_of_its_range(spark):
    """Damage: a message is counted at two times, or at none."""
    ranges = (
        *(Range(100 + n, "0", 3 * n, 3 * n + 3) for n in range(9)),
        Range(105, "1", 10, 12),
        Range(107, "1", 14, 15),
        Range(103, "2", 4, 4),
    )
    places = [(partition, offset) for partition in range(3) for offset in range(30)]
    table = pa.table(
        {
            "partition": pa.array([partition for partition, _ in places], pa.int32()),
            "offset": pa.array([offset for _, offset in places], pa.int64()),
        }
    )
    frame = dataframe(Local(table, plain=True), spark)
    found = frame.select("partition", "offset", time_of(ranges).alias("time")).collect()
    expected = {(int(each.partition), offset): each.time for each in ranges for offset in range(each.lower, each.upper)}
    assert {(row.partition, row.offset): row.time for row in found if row.time is not None} == expected


def test_a_read_without_a_connector_says_what_is_missing(spark):
    """Damage: the operator reads of a class that is not found."""
    decoder = SparkMessages(spark)
    if decoder.connector:
        pytest.skip("the connector is on the class path")
    topic = TopicRanges("t", (Range(1, "0", 0, 1),), {})
    schema = Schema((Column("k", "int"),))
    with pytest.raises(DefinitionError, match="spark-sql-kafka-0-10"):
        asyncio.run(decoder.ranges(topic, schema, MessageFormat(MessageEncoding.JSON), locate=False))
