"""Parquet files: which of them Spark reads as declared, and Arrow's decoding of the others and of small ones.

Spark fails the job of all files on a column whose type it does not know (no value, half floats, UUIDs), whose name
differs from that of another column in case alone, or that is encoded or compressed in a way that Spark lacks.  It
reads unsigned integers, times of day and maps as types that are not the declared ones, and drops nanoseconds.  So
Spark gets the files whose columns are stored as declared; Arrow reads the others, by the rules of `algebra.stored`;
and a file with a column that neither reads is refused.

Times of 96 bits (INT96) are instants with nanoseconds.  By default Spark writes microseconds in them, and Spark reads
those; Arrow reads the times of other writers, because it sees all digits.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses
from pyspark.sql.pandas.types import from_arrow_schema

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.messages import VALUE_CHARS_MAX, DatedFile, of_record
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.algebra.stored import Fit, ParquetSchema, converted, located, same
from strandline.engine.files.paths import PATH, S3A, FileBytes, file_path, load, paths_table
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Local, dataframe

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


BATCH_ROWS: Final = 65_536
_CONTENT: Final = "content"
_NAME: Final = "name"
_PREFIX: Final = "prefix"
_INSTANT: Final = pa.timestamp("us", "UTC")
_PER_MICROSECOND: Final = np.uint64(1_000)


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """What Arrow decodes of files; plain data, so that Spark can send it to its workers.

    A value that its column does not hold is an error of its row, with the row's number in its file (from 1): an
    unsigned number beyond the column's range, a time with nanoseconds, a text that is not UTF-8.  After a damaged page
    nothing more of a file is read: that is one error, and the rows before it are rows.

    A job gives each file to one task, which gets an object's bytes through Spark, because Spark knows how to reach the
    store.
    """

    schema: Schema

    def frame(self, session: SparkSession, files: Sequence[DatedFile]) -> DataFrame:
        """Return the rows of these files as updates (lazy), errors among them."""
        told = _told(files)
        if files[0].path.startswith(S3A):
            loaded = load(session.read, "binaryFile", files)
            content = loaded.select(file_path(loaded).alias(PATH), _CONTENT)
            spread = content.join(F.broadcast(paths_table(session, files, told)), PATH)
        else:
            paths = pa.table({PATH: pa.array([file.path for file in files], pa.string()), **told})
            spread = dataframe(Local(paths, plain=True), session).repartition(len(files))
        return spread.mapInArrow(self.batches, from_arrow_schema(inline.update_schema(self.schema)))

    def batches(self, files: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield updates; this is what runs in Spark's workers."""
        for batch in files:
            for told in batch.to_pylist():
                yield from self._updates(told, _source(told))

    def table(self, file: DatedFile, source: Callable[[], pa.NativeFile]) -> pa.Table:
        """Return the updates of one file."""
        return pa.Table.from_batches(self.of(file, source), inline.update_schema(self.schema))

    def of(self, file: DatedFile, source: Callable[[], pa.NativeFile]) -> Iterator[pa.RecordBatch]:
        """Yield the updates of one file, in this process."""
        (told,) = pa.table(_told([file])).to_pylist()
        return self._updates(told, source)

    def _updates(self, told: dict[str, Any], source: Callable[[], pa.NativeFile]) -> Iterator[pa.RecordBatch]:
        with source() as data:
            file = opened(data)
            columns = examined(file, self.schema)
            read = _read(file, columns, source)
            first = 1
            while True:
                try:
                    stored = next(read, None)
                except (pa.ArrowException, OSError) as error:
                    if isinstance(error, OSError) and error.errno is not None:
                        raise  # the machine refused the file; its bytes may be whole
                    reason = f"from here on it cannot be read as Parquet: {error}"
                    yield self._errors(told, {first: (reason, "")})
                    return
                if stored is None:
                    return
                yield from self._of(stored, told, columns, first)
                first += len(next(iter(stored.values())))

    def _of(
        self, stored: dict[str, pa.Array], told: dict[str, Any], columns: ParquetColumns, first: int
    ) -> Iterator[pa.RecordBatch]:
        """Yield the updates of one batch, whose first row has the number ``first``."""
        found, wrong = dict[str, pa.Array](), dict[int, str]()
        for column, (name, kind) in zip(self.schema, types.columns(self.schema), strict=True):
            found[name], refused = _fitting(stored[name], kind, columns.old_calendar)
            for row in refused:
                text = (_shown(stored[name], row) or "")[:VALUE_CHARS_MAX]
                wrong.setdefault(row, f"column `{name}`: '{text}' is not a valid {column.type}")
        rows = len(next(iter(stored.values())))
        same = {ERROR: pa.nulls(rows, pa.string())}
        same |= {name: pa.repeat(pa.scalar(told[name], pa.int64()), rows) for name in (TIME, DIFF)}
        updates = pa.RecordBatch.from_pydict(found | same, inline.update_schema(self.schema))
        if wrong:
            good = np.ones(rows, np.bool_)
            good[list(wrong)] = False
            updates = updates.filter(pa.array(good))
        if updates.num_rows:
            yield updates
        if wrong:
            raws = {row: {name: _shown(values, row) for name, values in stored.items()} for row in wrong}
            texts = {row: json.dumps(raw, ensure_ascii=False) for row, raw in raws.items()}
            yield self._errors(told, {first + row: (wrong[row], texts[row]) for row in sorted(wrong)})

    def _errors(self, told: dict[str, Any], reasons: dict[int, tuple[str, str]]) -> pa.RecordBatch:
        rows = [
            {ERROR: of_record(told[_NAME], number, told[_PREFIX] + reason, raw), TIME: told[TIME], DIFF: 1}
            for number, (reason, raw) in reasons.items()
        ]
        return pa.RecordBatch.from_pylist(rows, inline.update_schema(self.schema))


def _told(files: Sequence[DatedFile]) -> dict[str, pa.Array]:
    return {
        _NAME: pa.array([file.name for file in files], pa.string()),
        _PREFIX: pa.array([file.reason_prefix for file in files], pa.string()),
        TIME: pa.array([file.time for file in files], pa.int64()),
        DIFF: pa.array([file.diff for file in files], pa.int64()),
    }


def _source(told: dict[str, Any]) -> Callable[[], pa.NativeFile]:
    content, path = told.get(_CONTENT), told[PATH]
    return (lambda: pa.OSFile(path)) if content is None else (lambda: pa.BufferReader(content))


def _read(
    file: pq.ParquetFile, columns: ParquetColumns, source: Callable[[], pa.NativeFile]
) -> Iterator[dict[str, pa.Array]]:
    """Yield the declared columns, a batch of rows at a time.

    Of times of 96 bits Arrow gives microseconds or, in a range of 584 years beyond which they wrap, nanoseconds.  Both
    together say all digits of each: those that have some behind the microsecond are given as nanoseconds, in texts.
    """
    whole = file.iter_batches(BATCH_ROWS, columns=[columns.names[name] for name in columns.names])
    if not columns.nanoseconds:
        for batch in whole:
            yield {name: batch.column(own) for name, own in columns.names.items()}
        return
    with source() as again:
        wanted = [columns.names[name] for name in sorted(columns.nanoseconds)]
        for batch, digits in zip(whole, pq.ParquetFile(again).iter_batches(BATCH_ROWS, columns=wanted), strict=True):
            found = {name: batch.column(own) for name, own in columns.names.items()}
            for name in columns.nanoseconds:
                found[name] = _instants(found[name], digits.column(columns.names[name]))
            yield found


def _instants(micros: pa.Array, nanos: pa.Array) -> pa.Array:
    """Return times as microseconds; as texts with all their digits, if one has more."""
    wrapped = [pc.fill_null(values.cast(pa.int64()), 0).to_numpy(zero_copy_only=False) for values in (micros, nanos)]
    beyond = wrapped[1].view(np.uint64) - wrapped[0].view(np.uint64) * _PER_MICROSECOND
    if not beyond.any():
        return micros.cast(_INSTANT)
    texts = pc.replace_substring(micros.cast(_INSTANT).cast(pa.string()), "Z", "")
    digits = pa.array([f"{n:03}Z" if n else "Z" for n in beyond.tolist()])
    return pc.binary_join_element_wise(texts, digits, "")


def _fitting(values: pa.Array, kind: types.Type, old_calendar: bool) -> tuple[pa.Array, list[int]]:
    """Return values of ``kind``, and the numbers of the rows whose value is none, where there is NULL."""
    try:
        found = converted(values, kind)
        if not (old_calendar and is_ancient(found)):
            return found, []
    except pa.ArrowInvalid:
        pass
    if len(values) == 1:
        return pa.nulls(1, arrow(kind)), [0]
    half = len(values) // 2
    left, right = (_fitting(part, kind, old_calendar) for part in (values.slice(0, half), values.slice(half)))
    return pa.concat_arrays([left[0], right[0]]), [*left[1], *(half + row for row in right[1])]


def _shown(values: pa.Array, row: int) -> str | None:
    """Return the text of a value, which Python may have no object for; None: it is NULL."""
    one = values.slice(row, 1)
    if one.null_count:
        return None
    try:
        return str(one.cast(pa.string())[0].as_py())
    except (pa.ArrowException, UnicodeDecodeError):
        return " ".join(str(one).split())
