"""Small files, decoded in this process: the driver reads the bytes, and Spark's own expressions run in no job.

A line goes through the very expressions that it goes through in a job (`json_lines.parsed`, or
`csv_lines.parsed`), so the same bytes give the same rows; a property test compares.  What this cannot
promise is left to a job: text that is not UTF-8, is compressed or whose records span lines; Parquet with a type or
a time that Arrow and Spark may read differently.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.formats import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.files import csv_lines, json_lines
from strandline.engine.files.file_bytes import FileBytes
from strandline.engine.files.file_layout import BLANK, Layout
from strandline.engine.frames import inline

SMALL_BYTES_MAX: Final = 1 << 20
"""Files of a step with more bytes than this in all are Spark's to read."""
ROWS_MAX: Final = 50_000
LINE: Final = json_lines.LINE
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
_NEWLINE: Final = re.compile("\r\n|\r|\n")
"""Where Hadoop's reader of text ends a line."""
_BOM: Final = "\ufeff"
_REBASED: Final = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")
_MODERN: Final = dt.date(1900, 1, 1)
"""From here on all calendars and all time zones' rules are the same to Spark and to Arrow."""
_ALIKE: Final = frozenset(
    types.Atom(name)
    for name in (
        *("boolean", "tinyint", "smallint", "int", "bigint", "float", "double"),
        *("string", "date", "timestamp"),
    )
)


def is_small(files: Sequence[DatedFile], form: FileFormat) -> bool:
    """Tell whether these files may be decoded here."""
    if form.encoding is Encoding.AVRO or form.multiline or sum(file.size for file in files) > SMALL_BYTES_MAX:
        return False
    return not form.encoding.text or not any(file.path.endswith(_COMPRESSED) for file in files)


def lines(layout: Layout, form: FileFormat, of: FileBytes) -> pa.Table | None:
    """Return the records of text files as lines with their times and diffs; None: a job must read them."""
    found, times, diffs = list[str](), list[int](), list[int]()
    for file in layout.files:
        with of.open(file.path) as opened:
            data = opened.read()
        if len(data) != file.size:
            return None
        try:
            text = bytes(data).decode()
        except UnicodeDecodeError:
            return None
        own = _NEWLINE.split(text.removeprefix(_BOM))
        if not own[-1]:
            own.pop()
        if form.encoding is Encoding.CSV:
            own = [line for line in own if line.strip(BLANK)][1 if form.header else 0 :]
        found += own
        times += [file.time] * len(own)
        diffs += [file.diff] * len(own)
    if len(found) > ROWS_MAX:
        return None
    arrays = [pa.array(found, pa.string()), pa.array(times, pa.int64()), pa.array(diffs, pa.int64())]
    return pa.table(arrays, names=[LINE, TIME, DIFF])


def parsed(frame: DataFrame, fields: Sequence[Column], form: FileFormat) -> DataFrame:
    """Return the ``fields`` of lines, `CORRUPT`, and what is beside them."""
    if form.encoding is Encoding.JSON:
        return json_lines.parsed(frame, fields, form)
    return csv_lines.parsed(frame, fields, form)


def parquet(files: Sequence[DatedFile], schema: Schema, of: FileBytes) -> pa.Table | None:
    """Return the rows of Parquet files with their times and diffs; None: a job must read them."""
    kinds = dict(types.columns(schema))
    if not all(isinstance(kind, types.Decimal) or kind in _ALIKE for kind in kinds.values()):
        return None
    tables = []
    for file in files:
        try:
            with of.open(file.path) as opened:
                stored = pq.ParquetFile(opened, page_checksum_verification=True)
                if any(key in (stored.metadata.metadata or {}) for key in _REBASED):
                    return None
                declared = {name.lower() for name in schema.names}
                wanted = [name for name in stored.schema_arrow.names if name.lower() in declared]
                if len({name.lower() for name in wanted}) < len(wanted) or stored.metadata.num_rows > ROWS_MAX:
                    return None
                if not all(map(_alike, [stored.schema_arrow.field(name).type for name in wanted])):
                    return None
                table = stored.read(columns=wanted)
            table.validate(full=True)
            found = inline.conform(table, pa.schema([(name, arrow(kind)) for name, kind in kinds.items()]))
        except (pa.ArrowException, OSError):
            return None
        if any(map(_ancient, found.columns)):
            return None
        for name, value in ((TIME, file.time), (DIFF, file.diff)):
            found = found.append_column(name, pa.repeat(pa.scalar(value, pa.int64()), found.num_rows))
        tables.append(found)
    return pa.concat_tables(tables)


_TESTS: Final = (
    pa.types.is_boolean,
    pa.types.is_signed_integer,
    pa.types.is_float32,
    pa.types.is_float64,
    pa.types.is_string,
    pa.types.is_date32,
    pa.types.is_decimal128,
)


def _alike(kind: pa.DataType) -> bool:
    if pa.types.is_timestamp(kind):
        return kind.tz is not None and kind.unit == "us"
    return any(test(kind) for test in _TESTS)


def _ancient(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_date32(column.type) and not pa.types.is_timestamp(column.type):
        return False
    least = pc.min(column.cast(pa.date32())).as_py() if column.null_count < len(column) else None
    return least is not None and bool(least < _MODERN)
