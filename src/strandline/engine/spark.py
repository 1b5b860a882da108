"""`SparkEngine`: the data plane on Spark.

Every call that may block (a job, a file system) runs in one of a few worker threads, so the caller's event loop stays
free and the number of concurrent Spark jobs is bounded.  Frames are lazy: rows move when something is staged, collected
or compared.

Contract suite: `strandline.testing.contracts.engine_contract`.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra.nodes import First, Node, stored_columns
from strandline.algebra.notation import Excerpt
from strandline.algebra.scalar import Condition
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.engine.arrangements.cache import Arrangements, peeked, peeked_at_once
from strandline.engine.asked.catalyst import Loops, carried
from strandline.engine.frames import inline, transforms
from strandline.engine.frames.failures import hand_out, translated
from strandline.engine.frames.rows import Distributed, Frame, Local, Planned, dataframe, unwrap, wrap
from strandline.engine.frames.transforms import Shared, derived, narrowed
from strandline.engine.parts.aside import Arrivals, Aside, OfThisMachine, Places
from strandline.engine.parts.merge import Netted, Rewriter, netted
from strandline.engine.parts.part_store import Parts, verified
from strandline.engine.parts.scan import Scanner, reach
from strandline.engine.parts.staging import Stager, is_whole
from strandline.engine.prepared.plans import Plans, are_few, only, small_plan
from strandline.engine.session.collecting import Cancellable, cancel_jobs, collected, jobs_of_queries, tag_jobs
from strandline.engine.session.executors import Executors
from strandline.engine.session.start import require_running
from strandline.engine.sql import answers, edits, error_half
from strandline.engine.sql.analysis import described
from strandline.engine.sql.rendering import render
from strandline.engine.union import earliest, union
from strandline.errors import InvalidUsage
from strandline.frontier import Frontier
from strandline.persist.handles.contents import Contents, Rows, StageRequest
from strandline.persist.shard.batch import BlobPart, Staged
from strandline.plane import Described, Differences, Edit, Errors, in_hurry, present

ANSWER_CONF: Final = (
    "spark.sql.ansi.enabled",
    "spark.sql.caseSensitive",
    "spark.sql.session.timeZone",
    "spark.sql.legacy.timeParserPolicy",
    "spark.sql.storeAssignmentPolicy",
)
"""What a query's answer depends on besides its text and its inputs."""
JOBS_MAX: Final = 8
"""Concurrent calls into Spark; more only queue inside it."""
ASKED_MAX: Final = 16
"""Concurrent calls into Spark for queries: they have threads of their own, so that no tick waits for one."""
PEEKS_MAX: Final = 2
"""Concurrent peeks: they have threads of their own, because all others may wait for Spark."""
_opened = itertools.count()
_T = TypeVar("_T")


class SparkEngine:
    """`plane.Engine` on a session of its own (`start.adopt`), with parts in ``store``."""

    def __init__(
        self, session: SparkSession, store: Parts, place: Places = OfThisMachine, executors: Executors | None = None
    ) -> None:
        """``place``: where rows are put aside that memory is too small for; ``executors``: those of a cluster."""
        self._place = place
        self._executors = executors
        self._session = session
        self._store = store
        self._stager = Stager(session, store)
        self._scanner = Scanner(session, store)
        self._rewriter = Rewriter(store, self._scanner, self._stager)
        self._tag = f"strandline-{next(_opened)}"  # of the jobs that are begun here
        self._workers = ThreadPoolExecutor(JOBS_MAX, "strandline-spark", partial(tag_jobs, session, self._tag))
        self._askers = ThreadPoolExecutor(ASKED_MAX, "strandline-asked", partial(jobs_of_queries, session, self._tag))
        self._peekers = ThreadPoolExecutor(PEEKS_MAX, "strandline-peek")
        self._plans = Plans(session, at_once=executors is not None)
        self._arrangements = Arrangements(self._scanner.tables, self._workers)
        self._shared = Shared()
        self._loops = Loops(session)
        self._views = itertools.count()
        self._calls = itertools.count()
        self._naming = threading.Lock()  # held while views carry names that a query's author chose
        if executors is not None:
            executors.watch(self._tag)

    @property
    def session(self) -> SparkSession:
        """The session whose DataFrames this engine gives and takes."""
        return self._session

    @property
    def arranged_bytes(self) -> int:
        """The memory of all arrangements."""
        return self._arrangements.size

    @property
    def arranged_budget(self) -> int:
        """What they may take."""
        return self._arrangements.budget

    def hasten(self) -> None:
        """Let nothing wait for executors from now on: this is closed soon, and what runs is to end before."""
        if self._executors is not None:
            self._executors.hasten()

    def close(self) -> None:
        """Cancel the jobs under way, wait for the calls and refuse new ones.  The session is its builder's to stop."""
        self.hasten()
        cancel_jobs(self._session, self._tag)
        self._peekers.shutdown()
        self._askers.shutdown()
        self._workers.shutdown()
        if self._executors is not None:
            self._executors.close()
        self._plans.close()

    def spark_frame(self, rows: Rows) -> DataFrame:
        """Return ``rows`` as a lazy DataFrame, for users of Spark."""
        return dataframe(unwrap(rows), self._session)

    def hand_out(self, rows: Rows, check: Callable[[], None], give_back: Callable[[], None]) -> DataFrame:
        """Return ``rows`` as a frame for the caller; see `strandline.engine.frames.failures`."""
        return hand_out(self.spark_frame(rows), check, give_back)

    def given(self, rows: DataFrame, schema: Schema, *, diff: int) -> Rows:
        """Return a caller's DataFrame as updates at time 0 with ``diff``; see `strandline.engine.sql.edits`."""
        return wrap(Distributed(edits.given(rows, schema, diff=diff), plain=diff == 1))

    def inserted(self, answer: DataFrame, columns: Sequence[str], schema: Schema) -> Rows:
        """Return the rows of an INSERT as updates at time 0; see `strandline.engine.sql.edits`."""
        return wrap(Distributed(edits.inserted(answer, columns, schema), plain=True))

    async def edited(self, name: str, edit: Edit, relations: Mapping[str, tuple[Schema, Rows]]) -> Rows:
        """Return what ``edit`` does to the rows of the relation ``name`` as updates at time 0 (lazy).

        ``relations`` (multisets, that one too) may be read in subqueries.  Raises `DefinitionError` with a position
        where Spark refuses an expression.
        """
        schema = relations[name][0]
        found = await self._asked(
            relations, lambda rows: edits.edited(self._session.table(quote(name)), schema, edit, sorted(rows))
        )
        return wrap(Distributed(found, plain=False))

    async def edit_kinds(
        self, name: str, edit: Edit, relations: Mapping[str, tuple[Schema, Rows]], counts: Mapping[Excerpt, int]
    ) -> list[pa.DataType]:
        """Return what is to stand in the question marks of ``edit``; see `strandline.engine.sql.edits`."""
        return await self._asked(
            relations, lambda rows: edits.kinds(self._session.table(quote(name)), edit, sorted(rows), counts)
        )

    def settings(self) -> dict[str, str]:
        """Return the configuration that changes answers: part of what a view means."""
        found = {name: str(self._session.conf.get(name)) for name in ANSWER_CONF}
        return {"spark.version": self._session.version, **found}

    async def require_running(self) -> None:
        """See `ViewEngine.require_running`."""
        await self._run(partial(require_running, self._session))

    def require_executors(self) -> None:
        """See `ViewEngine.require_executors`."""
        if self._executors is not None:
            self._executors.require()

    async def executors(self) -> None:
        """Return when Spark can carry out jobs; `NoExecutor` after the time for which a job waits for executors."""
        if self._executors is None:
            return
        if self._executors.come_with_jobs:
            await self._run(self._session.range(1).count)
        else:
            await self._executors.wait()

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

    async def local(self, table: pa.Table, schema: Schema, *, time: int, diff: int) -> Rows:
        """See `Engine.local`."""
        return wrap(Local(inline.stamped(table, schema, time=time, diff=diff), plain=diff == 1))

    async def read(self, contents: Contents) -> Rows:
        """See `Engine.read`.  Contents of inline parts alone are decoded here and now, without Spark."""
        find = partial(self._scanner.read, contents)
        if not contents.here:  # what people read is read, and so checked, each time
            return wrap(await self._run(find))
        key = ("read", _of(contents), contents.net)
        return wrap(await self._run(partial(self._shared.get, key, (), find, _size)))

    async def times(self, contents: Contents) -> Mapping[int, int]:
        """See `Engine.times`."""
        find = partial(self._scanner.times, contents)
        return await self._run(partial(self._shared.get, ("times", _of(contents)), (), find, len))

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """See `Engine.evaluate`.  Over few rows that are here, nothing is done before the rows are wanted."""
        read = {name: unwrap(rows) for name, rows in frames.items()}
        columns = stored_columns(node)
        tables = {n: only(f.table, columns.get(n, frozenset())) for n, f in read.items() if isinstance(f, Local)}
        if len(tables) == len(read) and are_few(tables.values()):
            return wrap(Planned(node, tables, origin, partial(self._evaluate, node, read, origin)))
        return wrap(await self._run(partial(self._evaluate, node, read, origin)))

    async def derived(self, node: Node, drafted: Mapping[str, tuple[Schema, Rows]]) -> Rows | None:
        """See `Engine.derived`: of plans over few rows, as one plan."""
        found = derived(node, {name: (schema, unwrap(rows)) for name, (schema, rows) in drafted.items()})
        if found is None:
            return None
        read = {name: wrap(Local(table, plain=False)) for name, table in found.tables.items()}
        whole = unwrap(await self.evaluate(found.node, read, origin=found.origin))
        return wrap(replace(whole, behind=found.behind) if isinstance(whole, Planned) else whole)

    def aside(self, schema: Schema, *, time: int) -> Aside:
        """See `Engine.aside`."""
        return Aside(self._session, schema, time, place=self._place)

    def arrivals(self, schema: Schema, *, keyed: bool) -> Arrivals:
        """See `Engine.arrivals`."""
        return Arrivals(self._session, schema, keyed=keyed, place=self._place)

    async def query(self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], *, time: int) -> tuple[Schema, Rows]:
        """See `Engine.query`.  A relation that is a multiset already (no ``__diff``) is taken as it is."""
        ask = partial(answers.query, self._session, sql, time=time)
        schema, frame = await self._asked(relations, lambda rows: ask(names=sorted(rows)))
        return schema, wrap(frame)

    async def answer(
        self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], given: Sequence[pa.Scalar] = ()
    ) -> tuple[pa.Schema, Rows]:
        """See `Engine.answer`.  Relations are taken as by `query`."""
        ask = partial(answers.answer, self._session, sql, given=given)
        columns, frame = await self._asked(relations, lambda rows: ask(names=sorted(rows)))
        return columns, wrap(frame)

    async def described(
        self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], count: int, limits: Collection[int]
    ) -> Described:
        """See `Engine.described`."""
        ask = partial(described, self._session, sql, count=count, limits=limits)
        return await self._asked(relations, lambda rows: ask(names=sorted(rows)))

    async def _asked(
        self, relations: Mapping[str, tuple[Schema, Rows]], call: Callable[[Mapping[str, DataFrame]], _T]
    ) -> _T:
        """Return what ``call`` makes of multisets, which SQL may call by their names meanwhile."""
        frames = {name: unwrap(rows) for name, (_, rows) in relations.items()}

        def named() -> _T:
            with self._named(frames) as multisets:
                return call(multisets)

        return await self._run(named)

    async def union(self, schema: Schema, frames: Sequence[Rows], *, advance: int, negate: Sequence[bool]) -> Rows:
        """See `Engine.union`."""
        pairs = [(unwrap(rows), negative) for rows, negative in zip(frames, negate, strict=True)]
        find = partial(union, self._session, schema, pairs, advance)
        tables = [frame.table for frame, _ in pairs if isinstance(frame, Local)]
        if len(tables) < len(pairs):
            return wrap(await self._run(find))
        key = ("union", schema, advance, tuple(negate), tuple(frame.plain for frame, _ in pairs))
        return wrap(await self._run(partial(self._shared.get, key, tables, find, _size)))

    async def stage(self, rows: Rows, request: StageRequest) -> Staged:
        """See `Engine.stage`."""
        (staged,) = await self.stage_many([(rows, request)])
        if isinstance(staged, BaseException):
            raise staged
        return staged

    async def stage_many(self, asked: Sequence[tuple[Rows, StageRequest]]) -> list[Staged | BaseException]:
        """See `Engine.stage_many`: plans that are prepared run together, and the others each in a job of its own."""
        frames = [(unwrap(rows), request) for rows, request in asked]
        tables = await self._run(partial(self._prepared, frames))

        def stage(position: int) -> Staged:
            frame, request = frames[position]
            table = tables.get(position)
            return self._stager.stage(frame, request) if table is None else self._stager.collected(table, request)

        under_way = [self._begun(partial(stage, position)) for position in range(len(frames))]
        outcomes: list[Staged | BaseException] = []
        for future in under_way:
            try:
                outcomes.append(await future)
            except asyncio.CancelledError:
                for each in under_way:
                    each.cancel()
                raise
            except Exception as error:  # noqa: BLE001 - it is the outcome of this one
                outcomes.append(error)
        return outcomes

    def planned(self, shard: str) -> str:
        """See `Engine.planned`."""
        return self._plans.told(shard)

    async def merge(self, contents: Contents, request: StageRequest) -> Staged:
        """See `Merger.merge`."""
        return await self._run(partial(self._rewriter.merge, contents, request))

    async def verify(self, contents: Contents) -> int:
        """See `Merger.verify`."""
        return await self._run(partial(verified, self._store, contents))

    async def trim(self, staged: Staged, schema: Schema, lower: Frontier, upper: Frontier) -> Staged:
        """See `Engine.trim`."""
        return await self._run(partial(self._rewriter.trim, staged, schema, lower, upper))

    async def discard(self, staged: Staged) -> None:
        """See `Engine.discard`."""
        await self._run(partial(self._discard, staged))

    async def multiset(self, rows: Rows) -> Rows:
        """See `Engine.multiset`.  The ERR half gives its one column, ``__error``."""
        return wrap(await self._run(partial(self._multiset, unwrap(rows))))

    async def lookup(
        self,
        old: Contents,
        columns: Sequence[str],
        keys: Sequence[tuple[Rows, Sequence[str]]],
        *,
        nulls: bool,
        first: tuple[First, Rows] | None = None,
        span: bool = False,
        read: Collection[str] | None = None,
    ) -> Rows | None:
        """See `Engine.lookup`: in an arrangement, for keys that are here."""
        given = [(frame.table, tuple(named)) for rows, named in keys if isinstance(frame := unwrap(rows), Local)]
        change = None if first is None else unwrap(first[1])
        if len(given) < len(keys) or not isinstance(change, Local | None):
            return None
        ahead = None if first is None or change is None else (first[0], change.table)
        kept = tuple(name for name in old.schema.names if read is None or name in read)
        tables = [table.select([*named, *([TIME, DIFF] if span else [])]) for table, named in given]
        find: Callable[[], pa.Table | None]
        if span:
            find = partial(self._arrangements.between, old, columns[0], tables, kept)
        else:
            find = partial(self._arrangements.lookup, old, columns, tables, nulls=nulls, first=ahead, read=kept)
        names = tuple(named for _, named in given)
        key = ("lookup", _of(old), tuple(columns), nulls, names, None if ahead is None else ahead[0], span, kept)
        of = [table for table, _ in given] + ([] if ahead is None else [ahead[1]])
        found = await self._run(partial(self._shared.get, key, of, find, _bytes))
        return None if found is None else wrap(Local(found, plain=False))

    async def peek(
        self, old: Contents, columns: Sequence[str], keys: pa.Table, limit: int | None = None
    ) -> pa.Table | None:
        """See `Engine.peek`: in an arrangement; here, if that takes a moment: a thread takes turns with all others."""
        found = peeked_at_once(self._arrangements, old, columns, keys, limit)
        if found is not None:
            return found
        find = partial(peeked, self._arrangements, old, columns, keys, limit)
        return await asyncio.get_running_loop().run_in_executor(self._peekers, partial(self._told, find))

    async def prune(self, old: Contents, column: str, keys: Sequence[tuple[Rows, str]], *, nulls: bool) -> Rows | None:
        """See `Engine.prune`: by the bounds of parts and row groups."""
        given = [(unwrap(rows), name) for rows, name in keys]
        found = await self._run(partial(self._pruned, old, column, given, nulls=nulls))
        return None if found is None else wrap(found)

    async def narrowed(self, rows: Rows, conditions: Sequence[Condition]) -> Rows:
        """See `Engine.narrowed`: of rows that are here."""
        match unwrap(rows):
            case Local(table, plain) if conditions:
                found = self._shared.get(
                    ("narrowed", tuple(conditions)), [table], partial(narrowed, table, conditions), _bytes
                )
                return wrap(Local(found, plain))
        return rows

    async def restrict(self, rows: Rows, to: Rows, schema: Schema) -> Rows:
        """See `Engine.restrict`.  Rows that are here already are few: they are returned as they are."""
        frame = unwrap(rows)
        if isinstance(frame, Local):
            return rows
        return wrap(await self._run(partial(answers.restricted, frame, unwrap(to), schema, self._session)))

    async def differences(self, rows: Rows, schema: Schema, *, significant: int | None = None) -> Differences:
        """See `Engine.differences`."""
        ask = partial(answers.differences, unwrap(rows), schema, self._session, significant=significant)
        return await self._run(ask)

    async def net(
        self, contents: Contents, *, key: Sequence[str] = (), times: bool = False
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """See `Engine.net`.  A worker thread is taken for each batch, and none while the caller deals with it."""
        frame = unwrap(await self.read(contents))
        batches = Netted(netted(frame, contents, self._session, key=key, times=times))
        try:
            while (batch := await self._run(batches.next)) is not None:
                yield batch
        finally:
            await self._run(batches.close)

    async def errors(self, rows: Rows, *, of: str | None = None) -> Errors:
        """See `Engine.errors`."""
        return await self._run(partial(error_half.tally, unwrap(rows), of))

    async def cancel(self, rows: Rows, held: Rows, *, time: int) -> Rows:
        """See `Engine.cancel`."""
        return wrap(await self._run(partial(transforms.cancelled, unwrap(rows), unwrap(held), time, self._session)))

    async def keyed(
        self, records: Rows, held: Rows | None, errors: Rows | None, schema: Schema, key: Sequence[str]
    ) -> Rows:
        """See `Engine.keyed`."""
        frame = transforms.without_idle(unwrap(records))
        given = {transforms.RECORDS: wrap(frame), transforms.HELD: held, transforms.ERRORS: errors}
        there = {name: rows for name, rows in given.items() if rows is not None}
        few = isinstance(frame, Local) and are_few([frame.table])
        once = few and transforms.is_once(frame, key)
        node = transforms.plan(frame.names, schema, key, held=held is not None, errors=errors is not None, once=once)
        return await self.evaluate(node, there, origin=earliest(frame))

    async def weights(self, rows: Rows) -> Mapping[int, int]:
        """See `Engine.weights`."""
        return await self._run(partial(error_half.weights, unwrap(rows), self._session))

    async def collect(self, rows: Rows, bytes_max: int = 0, rows_max: int = 0) -> pa.Table:
        """See `Engine.collect`."""
        match unwrap(rows):
            case Local(table, _):
                return table
            case frame:
                tag = f"{self._tag}-{next(self._calls)}"
                return await self._begun(partial(self._collected, frame, tag, bytes_max, rows_max), cancellable=True)

    def _prepared(self, asked: Sequence[tuple[Frame, StageRequest]]) -> dict[int, pa.Table]:
        """Return by their positions the rows that prepared plans have for `Stager.collected`.

        Plans behind others run after these, over what they gave.
        """
        found: dict[int, pa.Table] = {}
        given: dict[int, pa.Table] = {}  # by the identity of the plan
        turns: tuple[list[int], list[int]] = ([], [])
        for position, (frame, _) in enumerate(asked):
            turns[isinstance(frame, Planned) and frame.behind is not None].append(position)
        for turn in turns:
            wanted = {position: small_plan(*asked[position], given) for position in turn}
            ready = {position: each for position, each in wanted.items() if each is not None}
            self._plans.note({asked[position][1].shard for position in turn if position not in ready})
            for position, table in zip(ready, self._plans.run(list(ready.values())) if ready else (), strict=True):
                if table is not None and is_whole(table):
                    found[position] = given[id(asked[position][0])] = table
        return found

    def _evaluate(self, node: Node, frames: Mapping[str, Frame], origin: int) -> Distributed:
        views = {name: f"__strandline_{next(self._views)}" for name in frames}
        try:
            for name, view in views.items():
                dataframe(frames[name], self._session, origin).createOrReplaceTempView(view)
            # Spark resolves the text here and now, so the plan no longer needs the views when it runs.
            return Distributed(self._session.sql(render(node, views)), plain=False, origin=origin)
        finally:
            for view in views.values():
                self._session.catalog.dropTempView(view)

    def _collected(self, frame: Frame, tag: str, bytes_max: int, rows_max: int) -> pa.Table:
        rows = dataframe(frame, self._session)
        found = self._loops.interruptible(carried(rows))
        return collected(found, self._session, tag, bytes_max, rows_max).rename_columns(rows.columns)

    def _pruned(self, old: Contents, column: str, keys: Sequence[tuple[Frame, str]], *, nulls: bool) -> Frame | None:
        kind = inline.update_schema(old.schema).field(column).type
        within = reach(column, kind, keys, self._session, nulls=nulls)
        return None if within is None else self._scanner.pruned(old, within)

    @contextmanager
    def _named(self, frames: Mapping[str, Frame]) -> Iterator[Mapping[str, DataFrame]]:
        """Let SQL call the multisets of ``frames`` by their author's names in this session: one call at a time."""
        multisets = {
            name: dataframe(self._multiset(frame) if DIFF in frame.names else frame, self._session)
            for name, frame in frames.items()
        }
        with self._naming:
            try:
                for name, rows in multisets.items():
                    rows.createOrReplaceTempView(quote(name))
                yield multisets
            finally:
                for name in multisets:
                    self._session.catalog.dropTempView(name)

    def _multiset(self, frame: Frame) -> Frame:
        names = inline.data_columns(frame.names)
        match frame:
            case Local(table, True):
                return Local(table.select(names), plain=True)
            case Local(table, _) if inline.can_group(table):
                counts = inline.counted(table)
                if (pc.sum(counts[DIFF]).as_py() or 0) <= inline.COPIES_MAX:
                    return Local(inline.copied(counts), plain=True)
                return Distributed(answers.expanded(dataframe(frame, self._session), names), plain=True)
            case Distributed(lazy, True):
                return Distributed(lazy.selectExpr(*map(quote, names)), plain=True)
            case _:
                return Distributed(answers.expanded(dataframe(frame, self._session), names), plain=True)

    def _discard(self, staged: Staged) -> None:
        for part in staged.parts:
            if isinstance(part, BlobPart):
                self._store.delete(part)

    async def _run(self, call: Callable[[], _T]) -> _T:
        """Run a blocking call in a worker thread and translate its failures into our errors."""
        return await self._begun(call)

    def _begun(self, call: Callable[[], _T], *, cancellable: bool = False) -> asyncio.Future[_T]:
        """Begin a call.  If what waits for it is cancelled, so are its jobs, if it is ``cancellable`` or a query's."""
        query = present()
        if query is None and not cancellable:
            told = partial(self._told, call, hurried=in_hurry())
            return asyncio.get_running_loop().run_in_executor(self._workers, told)
        text, workers = ("", self._workers) if query is None else (query.text, self._askers)
        made = Cancellable(self._session, f"{self._tag}-{next(self._calls)}", text, call)
        future = workers.submit(partial(self._told, made, hurried=in_hurry()))
        waited = asyncio.wrap_future(future)

        def ended(_: object) -> None:
            if waited.cancelled() and not future.cancel():  # it has begun
                asyncio.get_running_loop().run_in_executor(self._peekers, made.cancel)

        waited.add_done_callback(ended)
        return waited

    def _told(self, call: Callable[[], _T], *, hurried: bool = False) -> _T:
        """Return what the call returns; raise its failures as our errors, for which the JVM is asked: it blocks."""
        if self._executors is None:
            return translated(call)
        return self._executors.carried_out(partial(translated, call), hurried=hurried)


def _of(contents: Contents) -> tuple[object, ...]:
    """Return what tells these contents from others: they are definite."""
    return contents.shard, contents.schema, contents.lower, contents.upper, contents.advance, contents.half


def _size(frame: Frame) -> int | None:
    """Return how many bytes a frame has that is here."""
    return frame.table.nbytes if isinstance(frame, Local) else None


def _bytes(table: pa.Table | None) -> int | None:
    return None if table is None else table.nbytes
