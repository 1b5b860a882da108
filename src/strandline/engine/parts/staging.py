"""Staging: an update frame becomes a durable batch that is in no shard yet.

Three ways to write, one content.  *Collected* (hint ``small``): one job gives rows and hashes as Arrow; if they fit
they become an inline part, else one Parquet part written by this process.  *Spark-written*: executors write Parquet,
sorted within each partition, and the digest is computed in the same job.  Which way was taken shows neither in the rows
nor in the digest.

Nothing staged is named by anything durable, so a failure deletes the prefix and leaves no trace.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra import types
from strandline.algebra.schema import DIFF, ERROR, RESERVED, TIME, Schema, quote
from strandline.engine.frames import forms, inline
from strandline.engine.frames.ddl import type_text
from strandline.engine.frames.rows import Frame, Local, dataframe, later
from strandline.engine.parts.part_store import Described, Parts, Range
from strandline.engine.sql import consolidate
from strandline.errors import CorruptionError, InvalidUsage
from strandline.frontier import TIME_MAX, Frontier
from strandline.persist.handles.contents import StageRequest
from strandline.persist.shard.batch import INLINE_PART_BYTES_MAX, NOTHING, Digest, InlinePart, Part, Staged

SMALL_ROWS_MAX: Final = 200_000
"""More rows than this are not collected: writing them costs more than a Spark job's overhead."""
DRIVER_PART: Final = "part-driver.zstd.parquet"
WRITE_OPTIONS: Final = {
    "compression": "zstd",
    "parquet.page.write-checksum.enabled": "true",
    "mapreduce.fileoutputcommitter.marksuccessfuljobs": "false",  # the append is what says that a batch is whole
}
_ROWS: Final = "rows"
_DIFFS: Final = "diffs"
_ERRORS: Final = "errors"
_LEAST: Final = "least"
_GREATEST: Final = "greatest"
_VIEWS: Final = itertools.count()


@dataclass(frozen=True, slots=True)
class Stager:
    """Writes batches for one engine.  Its calls block; the engine runs them in its worker threads."""

    session: SparkSession
    store: Parts

    def stage(self, frame: Frame, request: StageRequest) -> Staged:
        """Normalise, consolidate and write ``frame``.  Raises `InvalidUsage` for wrong columns, types or times."""
        types.columns(request.schema)  # refuses types that cannot be kept, before any job
        if isinstance(frame, Local) and frame.table.num_rows == 0:
            return _staged(request, (), 0, 0, NOTHING, plain=True)
        # The times of a window's updates count from its origin.  Collected rows get their real times here, so that
        # the plan (and the code that Spark generates for it) is the same at every step.
        origin = 0 if isinstance(frame, Local) or not request.small else frame.origin
        lazy = dataframe(frame, self.session, origin)
        if request.small:
            collected = small(lazy, request).toArrow()
            if is_whole(collected):
                return self.collected(later(collected, origin), request)
        updates = _read(lazy, request, lambda normal: normal)
        return self._stage_bulk(updates.withColumn(TIME, F.expr(f"{TIME} + {origin}L")) if origin else updates, request)

    def measure(self, frame: Frame, schema: Schema) -> Staged:
        """Return the sums over ``frame``, which carries ``__error``, as a batch of all times without parts."""
        request = StageRequest("", schema, 0, TIME_MAX, "")
        updates = dataframe(frame, self.session)
        sums = {**_sums(updates, request), _LEAST: f"min({DIFF})", _GREATEST: f"max({DIFF})"}
        found = updates.agg(*_named(sums)).collect()[0].asDict()
        total = found[_DIFFS] or 0
        part = InlinePart(b"", found[_ROWS])  # stands for those that hold them
        plain = found[_LEAST] in {1, None} and found[_GREATEST] in {1, None}
        digest = consolidate.digest_of(found, total)
        return _staged(request, (part,), found[_ROWS], total, digest, plain=plain, errors=found[_ERRORS])

    def collected(self, found: pa.Table, request: StageRequest) -> Staged:
        """Write the rows of `small`, their times those that the batch is to have: at most `SMALL_ROWS_MAX` rows."""
        collected = inline.in_order(
            found, [*consolidate.sort_columns(request.schema, request.sort), *consolidate.LANES]
        )
        digest = consolidate.digest_of_table(collected)
        table = inline.without_idle_error(collected.drop_columns(list(consolidate.LANES)))
        rows = table.num_rows
        if rows == 0:
            return _staged(request, (), 0, 0, NOTHING, plain=True)
        _check_times(_range(table[TIME]), request)
        encoded = inline.encode(table)
        part: Part
        if len(encoded) <= min(INLINE_PART_BYTES_MAX, request.inline_bytes_max):
            part = InlinePart(encoded, rows)
        else:
            described = self.store.write(f"{_directory(request)}/{DRIVER_PART}", inline.parquet(table))
            part = described.sorted_by(request.sort)
        plain = _range(table[DIFF]) == Range(1, 1)
        errors = rows - table[ERROR].null_count if ERROR in table.column_names else 0
        return _staged(request, (part,), rows, pc.sum(table[DIFF]).as_py(), digest, plain=plain, errors=errors)

    def _stage_bulk(self, updates: DataFrame, request: StageRequest) -> Staged:
        # The sums are observed in the stage that writes, after every shuffle.  Spark merges what a task of a job's
        # *last* stage observed exactly once per partition, however often the task was retried or speculated; in an
        # earlier stage it would count repeats.
        observation = Observation()
        observed = updates.observe(observation, *_named(_sums(updates, request)))
        order = consolidate.sort_columns(request.schema, request.sort)
        ordered = observed.sortWithinPartitions(*map(quote, order))
        try:
            ordered.write.options(**WRITE_OPTIONS).parquet(self.store.uri(_directory(request)))
            described = self.store.describe(_directory(request))
            return _described(described, observation.get, request)
        except BaseException:
            self.store.delete_prefix(_directory(request))
            raise


def small(lazy: DataFrame, request: StageRequest) -> DataFrame:
    """Return the normalised, consolidated rows with their hashes, in one partition: at most `SMALL_ROWS_MAX` + 1."""
    has_error = ERROR in lazy.columns
    # Spark numbers the limits in the code it generates, so a limit in the middle of a plan is compiled at each step
    # with all that is fused to it.  As a plan's root, on one partition, it is no generated code.
    limited = f"SELECT /*+ COALESCE(1) */ * FROM ({{}}) LIMIT {SMALL_ROWS_MAX + 1}"
    return _read(
        lazy, request, lambda normal: limited.format(consolidate.hashed(request.schema, normal, has_error=has_error))
    )


def is_whole(found: pa.Table) -> bool:
    """Return whether rows of `small` are all that there are."""
    return bool(found.num_rows <= SMALL_ROWS_MAX)


def _read(lazy: DataFrame, request: StageRequest, text: Callable[[str], str]) -> DataFrame:
    """Return the frame of ``text``, which is made of the SQL of the normalised, consolidated rows of ``lazy``."""
    kinds = types.columns(request.schema)
    _check_columns(lazy, kinds, request)
    normalise = not request.normalised and any(forms.has_floats(kind) for _, kind in kinds)
    normal = consolidate.normal_columns(request.schema, lazy.columns, normalise=normalise)
    # One text, and not a frame made of a frame: Spark looks through the whole of a plan for each of these.
    view = f"{RESERVED}staged_{next(_VIEWS)}"
    lazy.createOrReplaceTempView(view)
    try:
        updates = f"SELECT {', '.join(normal)} FROM {view}"
        if not request.normalised:
            updates = consolidate.consolidated(request.schema, updates, has_error=ERROR in normal)
        return lazy.sparkSession.sql(text(updates))
    finally:
        lazy.sparkSession.catalog.dropTempView(view)


def _described(described: Sequence[Described], sums: dict[str, int | None], request: StageRequest) -> Staged:
    """Return the batch of Spark-written parts, once footers and observed sums agree."""
    rows = sum(d.part.rows for d in described)
    if rows != sums[_ROWS]:
        raise CorruptionError(f"{request.prefix}: Spark wrote {sums[_ROWS]} rows and its files hold {rows}")
    for one in described:
        _check_times(one.times, request)
    plain = all(d.diffs == Range(1, 1) for d in described)
    parts = tuple(d.sorted_by(request.sort) for d in described)
    total = sums[_DIFFS] or 0
    return _staged(
        request, parts, rows, total, consolidate.digest_of(sums, total), plain=plain, errors=sums[_ERRORS] or 0
    )


def _sums(updates: DataFrame, request: StageRequest) -> dict[str, str]:
    """Return SQL of the sums over a batch's normalised updates, by name."""
    has_error = ERROR in updates.columns
    errors = f"count({ERROR})" if has_error else "count(CAST(NULL AS string))"
    digest = consolidate.digest_sums(request.schema, has_error=has_error)
    return {_ROWS: "count(1)", _ERRORS: errors, _DIFFS: f"sum({DIFF})", **digest}


def _named(sums: dict[str, str]) -> list[Column]:
    return [F.expr(f"{sql} AS {name}") for name, sql in sums.items()]


def _check_columns(lazy: DataFrame, kinds: Sequence[tuple[str, types.Type]], request: StageRequest) -> None:
    """Refuse a frame whose columns are not the schema's; only one that carries errors may lack some."""
    found = {field.name.lower(): type_text(field.dataType) for field in lazy.schema.fields}
    for ours in (TIME, DIFF):
        if found.get(ours) != "bigint":
            raise InvalidUsage(f"shard {request.shard!r}: updates need a bigint column {ours}; found {found.get(ours)}")
    for name, kind in kinds:
        text = found.get(name.lower())
        if text is None:
            if ERROR not in found:
                raise InvalidUsage(f"shard {request.shard!r}: the frame lacks column {name!r}; it has {sorted(found)}")
        elif types.parse(name, text) != kind:
            raise InvalidUsage(
                f"shard {request.shard!r}: column {name!r} has type {text}, the collection another: {kind}"
            )


def _check_times(times: Range, request: StageRequest) -> None:
    if times.least < request.lower or times.greatest >= request.upper:
        raise InvalidUsage(
            f"shard {request.shard!r}: times {times.least} to {times.greatest} "
            f"do not lie in [{request.lower}, {request.upper})"
        )


def _range(column: pa.ChunkedArray) -> Range:
    bounds = pc.min_max(column).as_py()
    return Range(bounds["min"], bounds["max"])


def _directory(request: StageRequest) -> str:
    return request.prefix.rstrip("/")


def _staged(
    request: StageRequest,
    parts: tuple[Part, ...],
    rows: int,
    diffs: int,
    digest: Digest,
    *,
    plain: bool,
    errors: int = 0,
) -> Staged:
    bounds = Frontier(request.lower), Frontier(request.upper)
    return Staged(*bounds, parts, rows, diffs, digest, plain, errors, sort=request.sort)
