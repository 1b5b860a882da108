"""Rewriting parts without a change of their content, and net changes as a stream of Arrow batches.

A merge of few updates is done in this process, in Arrow, without a job: most merges are of a handful of inline parts.
A merge of many is read and staged like any other frame, by Spark.  The digest of the result is the sum of its inputs'
digests, whatever schema they were written under; no hash is computed.

Net changes (`netted`) are handed to Python in batches of bounded size.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _local_iterator_from_socket

from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Distributed, Frame, Local, dataframe
from strandline.engine.parts.part_store import Parts
from strandline.engine.parts.scan import Scanner
from strandline.engine.parts.staging import DRIVER_PART, Stager
from strandline.engine.session.collecting import Messages
from strandline.engine.sql import consolidate
from strandline.frontier import MINIMUM, TIME_MAX, Frontier
from strandline.persist.handles.contents import Contents, Half, StageRequest
from strandline.persist.shard.batch import (
    INLINE_PART_BYTES_MAX,
    NOTHING,
    Batch,
    InlinePart,
    Part,
    Staged,
    narrowed,
)
from strandline.plane import NET_BATCH_BYTES, NET_BATCH_ROWS

HERE_ROWS_MAX: Final = 200_000
"""Merges of more updates than this go to Spark."""


def _ranged(frame: Frame, sort: Sequence[str]) -> Frame:
    """Return the rows by ranges of their sort columns, so that each part that is written has a range of its own.

    Adding up equal updates needs no other exchange after it.
    """
    if not sort or not isinstance(frame, Distributed):
        return frame
    return dataclasses.replace(frame, dataframe=frame.dataframe.repartitionByRange(*map(quote, sort)))


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Merges and trims for one engine.  Its calls block; the engine runs them in its worker threads."""

    store: Parts
    scanner: Scanner
    stager: Stager

    def merge(self, contents: Contents, request: StageRequest) -> Staged:
        """See `Engine.merge`."""
        contents = replace(contents, half=Half.BOTH)
        digest = sum((batch.digest for batch in contents.batches), NOTHING)
        few = sum(part.rows for batch in contents.batches for part in batch.parts) <= HERE_ROWS_MAX
        if few and inline.can_group(inline.update_schema(contents.schema).empty_table()):
            made = self._here(contents, request)
        else:
            # What is advanced may lie beyond the upper of its batch.
            beyond = replace(request, upper=max(request.upper, contents.advance + 1), small=False)
            made = self.stager.stage(_ranged(self.scanner.read(contents), request.sort), beyond)
        lower, upper = contents.batches[0].lower, contents.batches[-1].upper
        return replace(made, lower=lower, upper=upper, digest=digest, since=Frontier(contents.advance))

    def trim(self, staged: Staged, schema: Schema, lower: Frontier, upper: Frontier) -> Staged:
        """See `Engine.trim`."""
        parts = narrowed(staged, lower, upper)
        batch = Batch(lower, upper, MINIMUM, parts, staged.rows, staged.diffs, staged.digest, staged.plain)
        shown = Contents("being trimmed", schema, (batch,), 0, TIME_MAX, 0, Half.BOTH)
        sums = self.stager.measure(self.scanner.read(shown), schema)
        return replace(sums, lower=lower, upper=upper, parts=parts if sums.rows else ())

    def _here(self, contents: Contents, request: StageRequest) -> Staged:
        merged = inline.consolidated(pa.concat_tables(self.scanner.tables(contents)))
        if request.sort:
            merged = inline.in_order(merged, consolidate.sort_columns(request.schema, request.sort))
        table = inline.without_idle_error(merged)
        parts = self._written(table, request) if table.num_rows else ()
        diffs = table[DIFF]
        errors = table.num_rows - table[ERROR].null_count if ERROR in table.column_names else 0
        return Staged(
            MINIMUM,
            Frontier(TIME_MAX),
            parts,
            table.num_rows,
            pc.sum(diffs).as_py() or 0,
            NOTHING,
            plain=pc.all(pc.equal(diffs, 1)).as_py() is not False,
            errors=errors,
            sort=request.sort,
        )

    def _written(self, table: pa.Table, request: StageRequest) -> tuple[Part, ...]:
        encoded = inline.encode(table)
        if len(encoded) <= min(INLINE_PART_BYTES_MAX, request.inline_bytes_max):
            return (InlinePart(encoded, table.num_rows),)
        described = self.store.write(f"{request.prefix.rstrip('/')}/{DRIVER_PART}", inline.parquet(table))
        return (described.sorted_by(request.sort),)


PARTITION_ROWS: Final = 200_000
PARTITION_BYTES: Final = 64 * 1024 * 1024
"""What a partition of the result should be at most: the JVM holds one while it is handed over."""
EXPANSION: Final = 6
"""How many times larger rows are in Arrow than in the stored parts, which are compressed."""
_ROWS_CONF: Final = "spark.sql.execution.arrow.maxRecordsPerBatch"
_planning = threading.Lock()  # held while the conf that a plan reads is ours


class Netted:
    """The batches of `netted`, for several threads that take turns: `next` and `close` may meet."""

    def __init__(self, batches: Iterator[pa.RecordBatch]) -> None:
        self._batches: Iterator[pa.RecordBatch] | None = batches
        self._turn = threading.Lock()

    def next(self) -> pa.RecordBatch | None:
        """Return the next batch, or None at the end."""
        with self._turn:
            return None if self._batches is None else next(self._batches, None)

    def close(self) -> None:
        """Release what is left in the JVM."""
        with self._turn:
            self._batches = None


def netted(
    frame: Frame, contents: Contents, session: SparkSession, *, key: Sequence[str], times: bool
) -> Iterator[pa.RecordBatch]:
    """Yield the updates of ``frame``, which was read from ``contents``, added up; see `Engine.net`.

    What is small and in this process is added up in Arrow.  All else is one Spark job that adds up and orders the
    rows, and then one small job per partition of its result: the JVM holds one partition at a time, Python one batch.
    No row becomes a Python object.

    Trap: PySpark has no public call for this (``toArrow`` collects everything, ``toLocalIterator`` makes objects), so
    `_served` asks the Dataset for its Arrow batches as ``toArrow`` does, and serves them as ``toLocalIterator`` does.
    """
    names = inline.data_columns(frame.names)
    kept = [*names, *([TIME] if times else [])]
    if isinstance(frame, Local) and inline.can_group(frame.table):
        yield from _sliced(_ordered(inline.summed(frame.table.select([*kept, DIFF])), key, times=times))
        return
    sums = dataframe(frame, session).groupBy(*map(quote, kept)).agg({DIFF: "sum"})
    sums = sums.toDF(*kept, DIFF).where(f"{DIFF} <> 0")
    partitions = 1 + max(contents.rows // PARTITION_ROWS, contents.size * EXPANSION // PARTITION_BYTES)
    together, every = [*map(quote, key)], [*map(quote, names)]
    if key:  # by time in each key, and what has one time in an order that is always the same
        order = [*together, TIME, *every] if times else together
        sums = sums.repartition(partitions, *together).sortWithinPartitions(*order)
    elif times:  # ranges of all columns: a first sync may have one time only
        sums = sums.repartitionByRange(partitions, TIME, *every).sortWithinPartitions(TIME)
    yield from _served(sums, session, _batch_rows(contents))


def _ordered(sums: pa.Table, key: Sequence[str], *, times: bool) -> pa.Table:
    """Return the rows of one key together, in the order of time, also those whose values have no order.

    Of one key, what has one time is in an order that is always the same.
    """
    columns = [_codes(sums[name]) for name in key]
    if times:
        columns.append(sums[TIME])
        ties = [_orderable(sums[name]) for name in sums.column_names if key and name not in {*key, TIME, DIFF}]
        columns += [column for tie in ties for column in (pc.is_valid(tie), tie)]  # NULL first, as in Spark
    if not columns:
        return sums
    by = pa.table({str(n): column for n, column in enumerate(columns)})
    return sums.take(pc.sort_indices(by, [(name, "ascending") for name in by.column_names]))


def _codes(column: pa.ChunkedArray) -> pa.Array:
    """Return a number per value, equal for values that SQL calls not distinct."""
    return column.combine_chunks().dictionary_encode("encode").indices


def _orderable(column: pa.ChunkedArray) -> pa.Array:
    """Return the values, or the texts of those that Arrow cannot order."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    return pa.array(map(repr, array.to_pylist()), pa.string()) if pa.types.is_nested(array.type) else array


def _sliced(table: pa.Table) -> Iterator[pa.RecordBatch]:
    width = max(1, table.nbytes // max(1, table.num_rows))
    yield from table.combine_chunks().to_batches(max(1, min(NET_BATCH_ROWS, NET_BATCH_BYTES // width)))


def _batch_rows(contents: Contents) -> int:
    width = max(1, contents.size * EXPANSION // max(1, contents.rows))
    return max(1, min(NET_BATCH_ROWS, NET_BATCH_BYTES // width))


def _served(rows: DataFrame, session: SparkSession, batch_rows: int) -> Iterator[pa.RecordBatch]:
    schema = to_arrow_schema(
        rows.schema,
        timezone="UTC",
        prefers_large_types=session.conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true",
    )
    with _planning:
        before = str(session.conf.get(_ROWS_CONF))
        session.conf.set(_ROWS_CONF, batch_rows)
        try:
            batches = rows._jdf.toArrowBatchRdd()  # noqa: SLF001 - see the docstring
        finally:
            session.conf.set(_ROWS_CONF, before)
    jvm: Any = session.sparkContext._jvm  # noqa: SLF001
    prefetch = False
    for encoded in _local_iterator_from_socket(jvm.PythonRDD.toLocalIteratorAndServe(batches, prefetch), Messages()):
        yield pa.ipc.read_record_batch(pa.py_buffer(encoded), schema)
