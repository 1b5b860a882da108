"""Messages of a log as a table of raw messages (`algebra.messages.RAW`), each at the time of the range it lies in."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.messages import FRAME_BYTES, Range, framed_id
from strandline.algebra.schema import TIME
from strandline.sources.readers.kafka.broker import Message, Span

_ARROW: Final = pa.schema([
    ("topic", pa.string()),
    ("partition", pa.string()),
    ("offset", pa.int64()),
    ("timestamp", pa.timestamp("us", "UTC")),
    ("key", pa.binary()),
    ("value", pa.binary()),
    ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    (TIME, pa.int64()),
])  # fmt: skip
MS_MIN: Final = -62_135_596_800_000
MS_MAX: Final = 253_402_300_799_999
"""The years 1 to 9999, which a timestamp is in.  A producer that counts micro- or nanoseconds writes others."""


class Ranges:
    """Ranges of one topic, by partition and offset."""

    def __init__(self, topic: str, ranges: Sequence[Range]) -> None:
        self._topic = topic
        self._by_partition: dict[int, list[Range]] = defaultdict(list)
        for each in sorted(ranges, key=lambda each: each.lower):
            self._by_partition[int(each.partition)].append(each)

    @property
    def spans(self) -> dict[int, Span]:
        """What has to be fetched of each partition: from the first range to the last."""
        return {p: Span(these[0].lower, these[-1].upper) for p, these in sorted(self._by_partition.items())}

    def table(self, messages: Iterable[Message] = ()) -> pa.Table:
        """Return those of the messages that lie in a range."""
        columns: list[list[object]] = [[] for _ in _ARROW]
        topic, partitions = self._topic, {p: str(p) for p in self._by_partition}
        for partition, offset, at_ms, key, value, headers in messages:
            time = self._time_of(partition, offset)
            if time is None:
                continue
            at_us = None if at_ms is None or not MS_MIN <= at_ms <= MS_MAX else at_ms * 1000
            named = [{"key": name, "value": data} for name, data in headers]
            row = (topic, partitions[partition], offset, at_us, key, value, named, time)
            for column, cell in zip(columns, row, strict=True):
                column.append(cell)
        return pa.table([pa.array(column, each.type) for column, each in zip(columns, _ARROW, strict=True)], _ARROW)

    def _time_of(self, partition: int, offset: int) -> int | None:
        these = self._by_partition[partition]
        at = bisect_right(these, offset, key=lambda each: each.lower) - 1
        return these[at].time if at >= 0 and offset < these[at].upper else None


def schema_ids(data: pa.ChunkedArray) -> frozenset[int]:
    """Return the ids of schemas that these framed bytes begin with; what has no frame has none.

    >>> framed, beyond = bytes([0, 0, 0, 0, 7, 2]), bytes([0, 128, 0, 0, 0])
    >>> sorted(schema_ids(pa.chunked_array([[framed, None, b"x", b"{five}", beyond]])))
    [7]
    """
    heads = pc.unique(pc.binary_slice(data, 0, FRAME_BYTES)).to_pylist()
    return frozenset(number for head in heads if head is not None and (number := framed_id(head)) is not None)
