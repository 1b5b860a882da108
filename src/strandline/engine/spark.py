"""`SparkEngine`: the data plane on Spark.

Every call that may block (a job, a file system) runs in one of a few worker threads, so the caller's event loop stays free and the
number of concurrent Spark jobs is bounded.  Reads are lazy: `read` checks the parts' footers and plans a scan; rows move when
something is staged or collected.  What Spark says about damaged files and negative counts is told in `strandline.errors`.

Source: design pages "the house planned" (where things meet) and "persist".  Contract suite: `strandline.testing.engine_contract`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial, reduce
from typing import Final, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra.nodes import Node
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.engine import inline
from strandline.engine.parts import PartStore
from strandline.engine.rows import Distributed, Frame, Local, dataframe, unwrap, wrap
from strandline.engine.stage import Stager
from strandline.errors import CollectionError, CorruptionError, InvalidUsage
from strandline.persist.batch import BlobPart, InlinePart, Staged
from strandline.persist.plane import Contents, Half, Rows, StageRequest

JOBS_MAX: Final = 8
"""Concurrent calls into Spark; more only queue inside it."""
_READ_OPTIONS: Final = {"parquet.page.verify-checksum.enabled": "true"}
_COUNT: Final = "__count"
_T = TypeVar("_T")


class SparkEngine:
    """`persist.plane.Engine` on ``session``, with parts in ``store``.  ``session`` is the engine's own (`session.adopt`)."""

    def __init__(self, session: SparkSession, store: PartStore) -> None:
        self._session = session
        self._store = store
        self._stager = Stager(session, store)
        self._workers = ThreadPoolExecutor(JOBS_MAX, thread_name_prefix="strandline-spark")
        self._views = itertools.count()

    @property
    def session(self) -> SparkSession:
        """The session whose DataFrames this engine gives and takes."""
        return self._session

    def close(self) -> None:
        """Wait for the calls under way and refuse new ones.  The session is its builder's to stop."""
        self._workers.shutdown()

    def spark_frame(self, rows: Rows) -> DataFrame:
        """Return ``rows`` as a lazy DataFrame: the way out to people who hold Spark in their hands."""
        return dataframe(unwrap(rows), self._session)

    def from_dataframe(self, updates: DataFrame) -> Rows:
        """Return an update frame (columns, perhaps ``__error``, ``__time``, ``__diff``) as rows: the way in."""
        return wrap(Distributed(updates, plain=False))

    def from_arrow(self, updates: pa.Table, schema: Schema) -> Rows:
        """Return a small table of updates as rows.

        Columns are cast to ``schema``'s; ``__error`` is kept if it is there; ``__time`` and ``__diff`` must be.
        """
        missing = {TIME, DIFF} - set(updates.column_names)
        if missing:
            raise InvalidUsage(f"updates need the columns {TIME} and {DIFF}; {sorted(missing)} are missing")
        table = inline.conform(updates, inline.update_schema(schema))
        return wrap(Local(table if ERROR in updates.column_names else table.drop_columns([ERROR]), plain=False))

    async def read(self, contents: Contents) -> Rows:
        """See `Engine.read`.  Contents of inline parts alone are decoded here and now, without Spark."""
        return await self._run(partial(self._read, contents))

    async def evaluate(self, node: Node, frames: Mapping[str, Rows]) -> Rows:
        """See `Engine.evaluate`."""
        return await self._run(partial(self._evaluate, node, {name: unwrap(rows) for name, rows in frames.items()}))

    async def union(self, schema: Schema, frames: Sequence[Rows], *, advance: int, negate: Sequence[bool]) -> Rows:
        """See `Engine.union`."""
        pairs = [(unwrap(rows), negative) for rows, negative in zip(frames, negate, strict=True)]
        if not pairs:
            return self.from_arrow(inline.update_schema(schema).empty_table().drop_columns([ERROR]), schema)
        return await self._run(partial(self._union, schema, pairs, advance))

    async def stage(self, rows: Rows, request: StageRequest) -> Staged:
        """See `Engine.stage`."""
        return await self._run(partial(self._stager.stage, unwrap(rows), request))

    async def discard(self, staged: Staged) -> None:
        """See `Engine.discard`."""
        await self._run(partial(self._discard, staged))

    async def multiset(self, rows: Rows, schema: Schema) -> Rows:
        """See `Engine.multiset`.  The ERR half gives its one column, ``__error``."""
        return await self._run(partial(self._multiset, unwrap(rows)))

    async def collect(self, rows: Rows) -> pa.Table:
        """See `Engine.collect`."""
        match unwrap(rows):
            case Local(table, _):
                return table
            case Distributed(lazy, _):
                return await self._run(lazy.toArrow)

    def _read(self, contents: Contents) -> Rows:
        parts = [part for batch in contents.batches for part in batch.parts]
        blobs = [part for part in parts if isinstance(part, BlobPart)]
        small = inline.update_schema(contents.schema).empty_table()
        tables = [
            inline.decode(contents.shard, part, contents.schema) for part in parts if isinstance(part, InlinePart)
        ]
        small = inline.select(
            pa.concat_tables([small, *tables]),
            half=contents.half,
            lower=contents.lower,
            upper=contents.upper,
            advance=contents.advance,
        )
        if not blobs:
            return wrap(Local(small, contents.plain))
        for part in blobs:
            self._store.check(part)
        scan = self._scan(contents, blobs)
        if small.num_rows:
            scan = scan.unionByName(dataframe(Local(small, contents.plain), self._session))
        return wrap(Distributed(scan, contents.plain))

    def _scan(self, contents: Contents, blobs: Sequence[BlobPart]) -> DataFrame:
        ddl = ", ".join(filter(None, [contents.schema.ddl, f"{ERROR} string, {TIME} bigint, {DIFF} bigint"]))
        reader = self._session.read.schema(ddl).options(**_READ_OPTIONS)
        scan = reader.parquet(*(self._store.uri(part.key) for part in blobs))
        where = [f"{ERROR} IS {'NULL' if contents.half is Half.OK else 'NOT NULL'}", *_bounds(contents)]
        names = contents.schema.names if contents.half is Half.OK else (ERROR,)
        time = f"greatest({TIME}, {contents.advance}L) AS {TIME}" if contents.advance > 0 else TIME
        return scan.where(" AND ".join(where)).selectExpr(*map(quote, names), time, DIFF)

    def _evaluate(self, node: Node, frames: Mapping[str, Frame]) -> Rows:
        from strandline.engine.sql import render

        views = {name: f"__strandline_{next(self._views)}" for name in frames}
        try:
            for name, view in views.items():
                dataframe(frames[name], self._session).createOrReplaceTempView(view)
            # Spark resolves the text here and now, so the plan no longer needs the views when it runs.
            return wrap(Distributed(self._session.sql(render(node, views)), plain=False))
        finally:
            for view in views.values():
                self._session.catalog.dropTempView(view)

    def _union(self, schema: Schema, pairs: Sequence[tuple[Frame, bool]], advance: int) -> Rows:
        names = [*schema.names, *([ERROR] if any(ERROR in frame.names for frame, _ in pairs) else [])]
        plain = all(frame.plain and not negative for frame, negative in pairs)
        if all(isinstance(frame, Local) for frame, _ in pairs):
            target = inline.update_schema(schema)
            target = target if ERROR in names else target.remove(target.get_field_index(ERROR))
            tables = [
                inline.advanced(inline.conform(inline.negated(f.table) if negative else f.table, target), advance)
                for f, negative in pairs
                if isinstance(f, Local)
            ]
            return wrap(Local(pa.concat_tables(tables), plain))
        lazies = [self._aligned(frame, names, negative, advance) for frame, negative in pairs]
        return wrap(Distributed(reduce(DataFrame.unionAll, lazies), plain))

    def _aligned(self, frame: Frame, names: Sequence[str], negative: bool, advance: int) -> DataFrame:
        lazy = dataframe(frame, self._session)
        present = {name.lower() for name in lazy.columns}
        columns = [quote(n) if n.lower() in present else f"NULL AS {quote(n)}" for n in names]
        time = f"greatest({TIME}, {advance}L) AS {TIME}" if advance > 0 else TIME
        return lazy.selectExpr(*columns, time, f"-{DIFF} AS {DIFF}" if negative else DIFF)

    def _multiset(self, frame: Frame) -> Rows:
        names = inline.data_columns(frame.names)
        match frame:
            case Local(table, True):
                return wrap(Local(table.select(names), plain=True))
            case Local(table, _) if inline.can_group(table):
                return wrap(Local(inline.multiset(table), plain=True))
            case Distributed(lazy, True):
                return wrap(Distributed(lazy.selectExpr(*map(quote, names)), plain=True))
            case _:
                return wrap(Distributed(_expanded(dataframe(frame, self._session), names), plain=True))

    def _discard(self, staged: Staged) -> None:
        for part in staged.parts:
            if isinstance(part, BlobPart):
                self._store.delete(part)

    async def _run(self, call: Callable[[], _T]) -> _T:
        """Run a blocking call in a worker thread and tell its failures in our words."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._workers, call)
        except PySparkException as error:
            raise told(error) from error


def told(error: PySparkException) -> Exception:
    """Return our error for what Spark found wrong with stored rows; any other error as it is."""
    text = str(error)
    if inline.NEGATIVE in text:
        start = text.index(inline.NEGATIVE)
        return CollectionError(text[start:].splitlines()[0])
    if (error.getCondition() or "").startswith("FAILED_READ_FILE"):
        return CorruptionError(text.splitlines()[0])
    return error


def _bounds(contents: Contents) -> list[str]:
    """Return the filters on time that the batches' own bounds do not make unnecessary."""
    bounds = []
    if any((batch.lower.at or 0) < contents.lower for batch in contents.batches):
        bounds.append(f"{TIME} >= {contents.lower}L")
    # A compacted batch may hold times advanced to its since, which may lie beyond its upper.
    if any(
        batch.upper.at is None or batch.upper.at > contents.upper or (batch.since.at or 0) >= contents.upper
        for batch in contents.batches
    ):
        bounds.append(f"{TIME} < {contents.upper}L")
    return bounds


def _expanded(updates: DataFrame, names: Sequence[str]) -> DataFrame:
    """Return each row as often as its diffs add up to; a negative sum fails the job and names the row."""
    quoted = [quote(name) for name in names]
    row = f"to_json(struct({', '.join(quoted)}), map('ignoreNullFields', 'false'))"
    message = f"concat('{inline.NEGATIVE} ', {_COUNT}, ' times: ', {row})"
    count = f"CASE WHEN {_COUNT} < 0 THEN raise_error({message}) ELSE {_COUNT} END"
    sums = updates.groupBy(*quoted).agg({DIFF: "sum"}).withColumnRenamed(f"sum({DIFF})", _COUNT)
    copies = f"explode(array_repeat(true, CAST({count} AS int))) AS {_COUNT}"
    return sums.where(f"{_COUNT} <> 0").selectExpr(*quoted, copies).drop(_COUNT)
