r"""Arrow tables as what COPY takes: CSV, which Arrow writes column by column, without a Python object per value.

NULL is an empty field, and an empty text is one in quotes.  Arrow quotes every text, so no line begins with ``\\.``.
A timestamp is written as UTC says it, without a zone: UTC is the session's, and with a zone Arrow takes far longer.

Source: PostgreSQL's manual, "COPY" (CSV Format), "Binary Data Types" (hex format).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import pyarrow as pa
from pyarrow import csv

from strandline.materialize.wire.values import plain

OPTIONS: Final = csv.WriteOptions(include_header=False, batch_size=1 << 16)


def csv_of(rows: pa.Table) -> memoryview:
    r"""Return rows as CSV.

    >>> bytes(csv_of(pa.table({"a": [1, None], "b": ["", None], "c": [b"\x00\xff", None]})))
    b'1,"","\\x00ff"\n,,\n'
    >>> bytes(csv_of(pa.table({"at": pa.array([0], pa.timestamp("us", "UTC"))})))
    b'1970-01-01 00:00:00.000000\n'
    """
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.table([_texts(column) for column in rows.columns], names=rows.column_names), sink, OPTIONS)
    return memoryview(sink.getvalue())


def written_ahead(parts: Iterator[pa.Table]) -> Iterator[memoryview]:
    r"""Yield each part as CSV; the next one is written meanwhile, in a thread, while the server takes this one.

    >>> [bytes(part) for part in written_ahead(iter([pa.table({"a": [1]}), pa.table({"a": [2]})]))]
    [b'1\n', b'2\n']
    """
    written = map(csv_of, parts)
    with ThreadPoolExecutor(1, "strandline-copy") as writer:
        following = writer.submit(next, written, None)
        while (part := following.result()) is not None:
            following = writer.submit(next, written, None)
            yield part


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array((None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()), pa.string())
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return column.cast(pa.int64()).cast(pa.timestamp(kind.unit))
    return plain(column).cast(pa.string()) if pa.types.is_nested(kind) else column
