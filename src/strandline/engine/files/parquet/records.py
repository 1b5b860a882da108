"""Parquet files decoded by Arrow: those that Spark does not read as declared, and small ones.

A value that its column does not hold is an error of its row, with the row's number in its file (from 1): an unsigned
number beyond the column's range, a time with nanoseconds, a text that is not UTF-8.  Behind a page that is damaged
nothing of a file is read: that is one error, and the rows before it are rows.

A job gives each file to one task.  An object's bytes come to it through Spark, which knows how to reach the store.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from strandline.algebra.formats import DatedFile
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.algebra.stored_values import converted
from strandline.algebra.undecoded import VALUE_CHARS_MAX, of_record
from strandline.engine.files.file_bytes import S3A
from strandline.engine.files.file_paths import PATH, file_path, load, paths_table
from strandline.engine.files.parquet.columns import ParquetColumns, examined, is_ancient, opened
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Local, dataframe

BATCH_ROWS: Final = 65_536
_CONTENT: Final = "content"
_NAME: Final = "name"
_PREFIX: Final = "prefix"
_INSTANT: Final = pa.timestamp("us", "UTC")
_PER_MICROSECOND: Final = np.uint64(1_000)


@dataclass(frozen=True, slots=True)
class ParquetFiles:
    """What Arrow decodes of files; plain data, so that Spark can send it to its workers."""

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
