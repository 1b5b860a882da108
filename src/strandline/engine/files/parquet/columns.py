"""The declared columns in a Parquet file, and who reads them: Spark, or Arrow where Spark would fail or misread them.

Spark fails the job of all files on a column whose type it does not know (no value, half floats, UUIDs), that another
one differs from in case alone, or that is encoded or compressed in a way it lacks.  It reads unsigned integers, times
of day and maps as types that are not the declared ones, and drops nanoseconds.  So Spark gets the files whose columns
lie in them as declared; Arrow reads the others, by what `algebra.stored` says; and a file of which neither reads a
column is refused.

Times of 96 bits (INT96) are instants with nanoseconds.  Spark writes microseconds in them, by default: those are read
by Spark.  Other writers' are read by Arrow, which sees all digits.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.algebra import types
from strandline.algebra.formats import DatedFile
from strandline.algebra.parquet_schema import ParquetSchema
from strandline.algebra.schema import Schema
from strandline.algebra.stored import Fit, located, same
from strandline.engine.files.file_bytes import FileBytes

_WIDER: Final = {
    "smallint": frozenset({pa.int8()}),
    "int": frozenset({pa.int8(), pa.int16()}),
    "bigint": frozenset({pa.int8(), pa.int16(), pa.int32()}),
    "double": frozenset({pa.float32(), pa.int8(), pa.int16(), pa.int32()}),
}
"""Types that Spark reads as a wider one without loss."""
_SPARKS_CODECS: Final = frozenset({"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4", "LZ4_RAW"})
_SPARKS_ENCODINGS: Final = frozenset(
    {
        *("PLAIN", "RLE", "BIT_PACKED", "PLAIN_DICTIONARY", "RLE_DICTIONARY"),
        *("DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"),
    }
)
_MODERN: Final = dt.date(1900, 1, 1)
"""From here on all calendars and all time zones' rules are the same to Spark and to Arrow."""


@dataclass(frozen=True, slots=True)
class ParquetColumns:
    """Where the declared columns are.

    ``names``: what each is called there.  ``nanoseconds``: times of 96 bits that others than Spark wrote.
    ``old_calendar``: dates before 1900 may be of the calendar that Spark had before version 3.
    """

    names: Mapping[str, str]
    by_spark: bool
    nanoseconds: frozenset[str]
    old_calendar: bool


def opened(source: pa.NativeFile) -> pq.ParquetFile:
    """Return the file with pages that are checked, and times of 96 bits as microseconds."""
    return pq.ParquetFile(source, page_checksum_verification=True, coerce_int96_timestamp_unit="us")


def unreadable(file: DatedFile, schema: Schema, of: FileBytes) -> tuple[str, bool]:
    """Say why the declared columns cannot be read from a file, or nothing; and whether Spark reads them."""
    try:
        with of.open(file.path) as source:
            return "", examined(opened(source), schema).by_spark
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the machine refused the file; its bytes may be whole
        return f"it cannot be read as Parquet: {error}", False
    except ValueError as error:
        return str(error), False


def names_of(file: DatedFile, of: FileBytes) -> Sequence[str]:
    """Return the columns of a file; none if it is damaged: `unreadable` says so."""
    try:
        with of.open(file.path) as source:
            return list(opened(source).schema_arrow.names)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        return ()


def examined(file: pq.ParquetFile, schema: Schema) -> ParquetColumns:
    """Return where the columns of ``schema`` are.  Raises `ValueError` saying which one cannot be read."""
    there = ParquetSchema(file)
    names = located(schema, there.stored, Fit.BY_VALUE)
    by_spark, nanoseconds = True, set()
    for name, kind in types.columns(schema):
        number = there.stored.get_field_index(names[name])
        stored = there.stored.field(number).type
        if there.hides_digits(number):
            raise ValueError(f"column `{name}` has times of 96 bits inside: only Spark's are read")
        if there.has_nanoseconds(number):
            nanoseconds.add(name)
        wider = _WIDER.get(kind.name, frozenset()) if isinstance(kind, types.Atom) else frozenset()
        decodes = _spark_decodes(file, name, there.leaves[number])
        by_spark = by_spark and decodes and (same(kind, stored) or stored in wider)
    return ParquetColumns(names, by_spark, frozenset(nanoseconds), there.old_calendar)


def _spark_decodes(file: pq.ParquetFile, name: str, leaves: Sequence[int]) -> bool:
    """Tell whether Spark knows how a column is encoded and compressed.  Raises `ValueError` if Arrow knows neither."""
    codecs, encodings = set[str](), set[str]()
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        for leaf in leaves:
            chunk = group.column(leaf)
            codecs.add(chunk.compression)
            encodings |= set(chunk.encodings)
    for codec in sorted(codecs - _SPARKS_CODECS):
        if not pa.Codec.is_available(codec.lower()):
            raise ValueError(f"column `{name}` is compressed by {codec}, which cannot be read here; use zstd")
    return codecs <= _SPARKS_CODECS and encodings <= _SPARKS_ENCODINGS


def damaged_pages(file: DatedFile, schema: Schema, of: FileBytes) -> str | None:
    """Say which damage the pages of the declared columns have; None if Arrow can read them all."""
    declared = {name.lower() for name in schema.names}
    try:
        with of.open(file.path) as source:
            stored = opened(source)
            for number in range(stored.num_row_groups):
                stored.read_row_group(number, [n for n in stored.schema_arrow.names if n.lower() in declared])
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the machine refused the file; its bytes may be whole
        return f"it cannot be read as Parquet: {error}"
    return None


def is_ancient(values: pa.Array) -> bool:
    """Tell whether a date or a time before 1900 is among the values, at any depth."""
    if pa.types.is_list(values.type):
        return is_ancient(values.flatten())
    if pa.types.is_struct(values.type):
        return any(map(is_ancient, values.flatten()))
    if not pa.types.is_date32(values.type) and not pa.types.is_timestamp(values.type):
        return False
    least = pc.min(values.cast(pa.date32(), safe=False)).as_py() if values.null_count < len(values) else None
    return least is not None and bool(least < _MODERN)
