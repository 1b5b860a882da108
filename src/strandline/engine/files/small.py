"""Small files, decoded in this process: the driver reads the bytes, and Spark's own expressions run in no job.

A line goes through the very expressions that it goes through in a job (`json_lines.parsed`, or
`csv_lines.parsed`), so the same bytes give the same rows; a property test compares.  What this cannot
promise is left to a job: text that is not UTF-8, is compressed or whose records span lines; Parquet that Spark reads
and that has a type or a time which Arrow may read differently.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame

from strandline.algebra import types
from strandline.algebra.csv_header import BLANK
from strandline.algebra.formats import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.engine.files import csv_lines, json_lines
from strandline.engine.files.file_bytes import FileBytes
from strandline.engine.files.file_layout import Layout
from strandline.engine.files.parquet.columns import examined, is_ancient, opened
from strandline.engine.files.parquet.records import ParquetFiles

SMALL_BYTES_MAX: Final = 1 << 20
"""Files of a step with more bytes than this in all are Spark's to read."""
ROWS_MAX: Final = 50_000
LINE: Final = json_lines.LINE
_COMPRESSED: Final = (".gz", ".bz2", ".zst", ".lz4", ".snappy", ".deflate")
_NEWLINE: Final = re.compile("\r\n|\r|\n")
"""Where Hadoop's reader of text ends a line."""
_BOM: Final = "\ufeff"
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


def parquet(layout: Layout, schema: Schema, of: FileBytes) -> pa.Table | None:
    """Return the rows of Parquet files as updates, errors among them; None: a job must read them."""
    kinds = [kind for _, kind in types.columns(schema)]
    if layout.by_spark and not all(isinstance(kind, types.Decimal) or kind in _ALIKE for kind in kinds):
        return None
    tables = []
    for file in layout.files:
        with of.open(file.path) as data:
            stored = opened(data)
            if stored.metadata.num_rows > ROWS_MAX or (layout.by_spark and examined(stored, schema).old_calendar):
                return None
        found = ParquetFiles(schema).table(file, partial(of.open, file.path))
        if layout.by_spark and not _as_spark(found):
            return None
        tables.append(found)
    return pa.concat_tables(tables)


def _as_spark(found: pa.Table) -> bool:
    """Tell whether Spark is sure to read the same of a file: it alone says what of a damaged one can be read."""
    ancient = (is_ancient(chunk) for column in found.columns for chunk in column.chunks)
    return found[ERROR].null_count == found.num_rows and not any(ancient)
