"""Messages that are numbers: the smallest thing that a reader of messages can be tested with, without Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from strandline.algebra.messages import MessageFormat, TopicRanges
from strandline.algebra.schema import ERROR, TIME, Column, Schema
from strandline.persist.handles.contents import Rows
from strandline.testing.lists.list_engine import updates

SCHEMA = Schema((Column("n", "bigint"), Column("part", "string"), Column("at", "bigint")))


class NumberDecoder:
    """A `MessageDecoder` of numbers.  ``raw`` are the tables, and ``formats`` what it was asked to decode them by."""

    def __init__(self, *, connector: bool = False) -> None:
        self.connector = connector
        self.raw: list[pa.Table] = []
        self.formats: list[MessageFormat] = []
        self.topics: list[TopicRanges] = []

    async def messages(self, raw: pa.Table, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        """See `MessageDecoder.messages`."""
        self.raw.append(raw)
        self.formats.append(form)
        return updates(schema, [_decoded(row, locate=locate) for row in raw.to_pylist()])

    async def ranges(self, topic: TopicRanges, schema: Schema, form: MessageFormat, *, locate: bool) -> Rows:
        """See `MessageDecoder.ranges`: it only takes note of what is asked."""
        self.topics.append(topic)
        self.formats.append(form)
        return updates(schema, [])


def _decoded(row: dict[str, Any], *, locate: bool) -> dict[str, Any]:
    at = f"{row['topic']}[{row['partition']}]@{row['offset']}"
    try:
        return {"n": int(row["value"]), "part": row["partition"], "at": row["offset"], TIME: row[TIME]}
    except (TypeError, ValueError):
        error = json.dumps({"place": at, "reason": "no number"}) if locate else "somewhere"
        return {ERROR: error, TIME: row[TIME]}
