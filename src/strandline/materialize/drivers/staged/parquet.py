"""Rows as Parquet files of a place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.materialize.drivers.staged.place import Place
from strandline.materialize.drivers.staged.table import aligned

SUFFIX: Final = ".parquet"
READ_ROWS: Final = 65_536
"""So many rows of a file are handed over at a time."""


def write(place: Place, name: str, rows: Iterator[pa.Table], schema: pa.Schema) -> int:
    """Write ``rows`` as a new file; return how many they are.  Without rows there is no file."""
    some = (each for each in rows if each.num_rows)  # a row group without rows has no statistics
    first = next(some, None)
    if first is None:
        return 0
    count = int(first.num_rows)
    with place.create(name) as sink, pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        writer.write_table(aligned(first, schema))
        for each in some:
            writer.write_table(aligned(each, schema))
            count += each.num_rows
    return count


def read(place: Place, name: str, schema: pa.Schema, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yield the rows of a file, in bounded tables of these columns of ``schema``; one that is not there is NULL.

    Raises `FileNotFoundError`.
    """
    wanted = pa.schema([schema.field(schema.names.index(each)) for each in columns])
    with place.open(name) as source:
        file = pq.ParquetFile(source)
        there = file.schema_arrow.names
        # Of a column that is not there, the number of rows must be known all the same.
        asked = [each for each in columns if each in there] or there[:1]
        for batch in file.iter_batches(READ_ROWS, columns=asked):
            yield aligned(pa.Table.from_batches([batch]), wanted)
