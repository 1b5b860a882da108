"""`sources.reader.MessageDecoder` on Spark: few messages in this process, many by Spark's own Kafka connector.

Both ways are the same expressions, and for Avro and Protobuf the same Python function (`records`), over frames of raw
messages that differ in where they come from.  So the same bytes give the same rows.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.messages import KEPT, RAW, MessageFormat, Metadata, Range, TopicRanges, check
from strandline.algebra.schema import ERROR, TIME, Schema
from strandline.engine.frames import inline
from strandline.engine.frames.failures import as_ours, is_sparks
from strandline.engine.frames.rows import Distributed, Local, dataframe, wrap
from strandline.engine.messages import records, texts
from strandline.engine.messages.parsed import parts
from strandline.engine.messages.shapes import shaped
from strandline.engine.prepared.plans import Here
from strandline.engine.session.cluster import PYTHON_KEY
from strandline.engine.session.workers import Workers
from strandline.errors import DefinitionError
from strandline.persist.handles.contents import Rows

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
    """Return the messages of the ranges (lazy): the columns of `algebra.messages.RAW`.

    Spark's Kafka connector reads them, all ranges in one read, each message with its time (`time_of`).
    """
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
    """Return the time of the message at (partition, offset); NULL if it is in no range.

    The time follows by comparisons, which form a tree if a partition has many times.
    """
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


HERE_ROWS_MAX: Final = 100_000
"""More messages than this are decoded by a Spark job, though they are in this process."""


class SparkMessages:
    """Decodes messages in ``session``."""

    def __init__(self, session: SparkSession, workers: Workers | None = None) -> None:
        """``workers``: the Python of executors, if that is another than this one."""
        self._session = session
        self._workers = workers
        self._here = Here(session)

    @property
    def connector(self) -> bool:
        """Whether Spark's Kafka connector is on the class path."""
        return is_there(self._session)

    async def messages(self, raw: pa.Table, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        """Return the rows of these messages, decoded here and now without a Spark job.

        They are as `SourceReader.read` says, in no order; those of keys have the columns of `algebra.messages`.  A
        message that cannot be decoded is an error; ``locate``: that says where it is and why.

        Raises `DefinitionError` if the format cannot make rows of ``schema``.
        """
        check(form, schema)
        return await asyncio.to_thread(partial(self._messages, raw, schema, form, locate=locate))

    async def ranges(self, topic: TopicRanges, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        """Return the rows of the messages of these ranges (lazy), as `messages` does.

        Raises `DefinitionError` too if Spark's connector is not on the class path.
        """
        check(form, schema)
        return await asyncio.to_thread(partial(self._ranges, topic, schema, form, locate=locate))

    def _messages(self, raw: pa.Table, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        given = conformed(raw, form)
        own = records.decoding(schema, form)
        if given.num_rows > HERE_ROWS_MAX:
            if own is not None and self._lack() is not None:
                given, own = own.table(given), None
            return _decoded(dataframe(Local(given, plain=True), self._session), own, schema, form, locate=locate)
        table = given if own is None else own.table(given)
        key = (schema, repr(form), locate)
        try:
            found = self._here.run(key, table, partial(_finished, schema=schema, form=form, locate=locate))
        except Exception as error:
            ours = as_ours(error)
            if ours is None:
                raise
            raise ours from error
        for idle in (ERROR, KEPT):
            if idle in found.column_names and found[idle].null_count == found.num_rows:
                found = found.drop_columns([idle])
        return wrap(Local(found, plain=True))

    def _ranges(self, topic: TopicRanges, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        if not self.connector:
            raise DefinitionError(
                "Spark's Kafka connector is not on the class path: add spark-sql-kafka-0-10 to spark.jars"
            )
        if not topic.messages:
            return self._messages(_EMPTY, schema, form, locate=locate)
        own = records.decoding(schema, form)
        if own is not None and (lack := self._lack()) is not None:
            raise DefinitionError(
                f"executors cannot decode the messages of topic {topic.topic!r}, since {lack}; name a Python that can "
                f"in {PYTHON_KEY}, or leave out kafka_jars, so that this process reads the topic"
            )
        frame = raw(self._session, topic, headers=Metadata.HEADERS in form.included.values())
        return _decoded(frame, own, schema, form, locate=locate)

    def _lack(self) -> str | None:
        return None if self._workers is None else self._workers.lack_of_decoders()


def decoded(raw: DataFrame, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
    """Return the rows of a frame of raw messages (lazy)."""
    return _decoded(raw, records.decoding(schema, form), schema, form, locate=locate)


def _decoded(
    raw: DataFrame, own: records.Decoding | None, schema: Schema, form: MessageFormat, *, locate: bool
) -> Rows:
    parsed = raw if own is None else own.frame(raw)
    return wrap(Distributed(_finished(parsed, schema=schema, form=form, locate=locate), plain=True))


def conformed(raw: pa.Table, form: MessageFormat) -> pa.Table:
    """Return raw messages with the columns of `RAW`, those that are wanted, in their types."""
    headers = Metadata.HEADERS in form.included.values()
    wanted = {name: kind for name, kind in RAW.items() if name != "headers" or headers}
    target = pa.schema([pa.field(name, arrow(types.parse(name, kind))) for name, kind in wanted.items()])
    return inline.conform(raw, target)


def _finished(frame: DataFrame, *, schema: Schema, form: MessageFormat, locate: bool) -> DataFrame:
    for part in parts(form, schema):
        if not part.coding.encoding.binary:
            frame = texts.parse(frame, part, form, locate=locate)
    return shaped(frame, schema, form, locate=locate)


_EMPTY: Final = pa.table({name: pa.nulls(0, arrow(types.parse(name, kind))) for name, kind in RAW.items()})
