"""`sources.reader.MessageDecoder` on Spark: few messages in this process, many by Spark's own Kafka connector.

Both ways are the same expressions, and for Avro and Protobuf the same Python function (`records`), over frames of raw
messages that differ in where they come from.  So the same bytes give the same rows.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.keyed import KEPT
from strandline.algebra.messages import RAW, MessageFormat, Metadata, TopicRanges, check
from strandline.algebra.schema import ERROR, Schema
from strandline.engine.frames import inline
from strandline.engine.frames.failures import as_ours
from strandline.engine.frames.rows import Distributed, Local, dataframe, wrap
from strandline.engine.messages import connector, records, texts
from strandline.engine.messages.parsed import parts
from strandline.engine.messages.shapes import shaped
from strandline.engine.prepared.here import Here
from strandline.engine.session.cluster import PYTHON_KEY
from strandline.engine.session.workers import Workers
from strandline.errors import DefinitionError
from strandline.persist.handles.contents import Rows

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
        return connector.is_there(self._session)

    async def messages(self, raw: pa.Table, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        """Return the rows of these messages, decoded here and now without a Spark job.

        They are as `SourceReader.read` says, in no order; those of keys have the columns of `algebra.keyed`.  A message
        that cannot be decoded is an error; ``locate``: that says where it is and why.

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
        frame = connector.raw(self._session, topic, headers=Metadata.HEADERS in form.included.values())
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
