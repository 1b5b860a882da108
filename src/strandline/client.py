"""The environment as programs use it: plain calls, over one event loop in one thread.

`open` is the door.  Every call is synchronous and returns when what it says is true; calls from several threads take
turns.

Source: design page "the public face" (Python).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar, cast

import pyarrow as pa

from strandline.algebra.excerpt import within
from strandline.algebra.schema import Schema
from strandline.compute.explain import Explanation
from strandline.controller.asking import backfill, housekeeping, inquiry
from strandline.controller.asking.holding import Hold
from strandline.controller.asking.inquiry import Verification
from strandline.controller.asking.progress import progress
from strandline.controller.asking.selfcheck import SelfCheck
from strandline.controller.asking.skip import skip
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.apply import Applied, apply
from strandline.controller.defining.project import Project
from strandline.controller.language import arguments, statements
from strandline.controller.location.catalog import Item, Materialization, View
from strandline.controller.location.config import config_from
from strandline.engine.sql.edits import Edit
from strandline.errors import (
    AsOfError,
    CollectionError,
    DefinitionError,
    Determinate,
    InvalidUsage,
    Position,
    Unavailable,
)
from strandline.frontier.antichain import MINIMUM, Frontier
from strandline.instance.tables import Change, OpenTable, Statement
from strandline.materialize.runtime import Status
from strandline.persist.handles.definite import read_definitely
from strandline.persist.handles.plane import Rows
from strandline.persist.shard.holds import BEAT_MS
from strandline.wiring.assemble import SparkAssembly, assemble
from strandline.wiring.loop import LoopThread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Data: TypeAlias = "DataFrame | pa.Table | Sequence[Mapping[str, Any]]"
T = TypeVar("T")

MERGE_EVERY_S: Final = 5.0
"""How often large merges that are due are carried out, beside whatever else goes on."""


def open(  # noqa: A001  # the public name is `strandline.open`
    location: str,
    *,
    spark: SparkSession | None = None,
    consensus: str | None = None,
    read_only: bool = False,
    config: Mapping[str, Any] | None = None,
    mode: str | None = None,
) -> Environment:
    """Open the environment at ``location`` and return it; a context manager.

    Args:
        location: where collections are kept: ``file:///path``, ``memory://`` or ``s3://bucket/prefix``.
        spark: a session to work beside (its conf is not changed); None builds one from ``config["spark"]``.
        consensus: None (SQLite inside a file location, a bucket's own conditional puts), ``sqlite:///path``,
            ``postgresql://…`` or ``object-store``; or a reference (``env:NAME``).
        read_only: take nothing over, write no data: ``mode="read"``.
        config: see `strandline.controller.location.config.Config`.
        mode: ``full`` (the default), ``read`` (leases and notices, no data) or ``independent`` (no write, no connection
            and no hold: no other process sees it); see `strandline.controller.location.config.Mode`.

    Raises:
        ConfigError: the location is not writable, is held by another environment (named), or Java is missing or too
            old.
    """
    arguments.text(location, "location")
    if consensus is not None:
        arguments.text(consensus, "consensus")
    if spark is not None and not hasattr(spark, "newSession"):
        arguments.refuse("spark", "a SparkSession", spark)
    if config is not None:
        arguments.instance(config, Mapping, "config", "a mapping of settings")
    settings, wanted = config_from(config), arguments.opening(mode, read_only=read_only)
    assembly = assemble(location, spark=spark, consensus=consensus, config=settings, mode=wanted)
    loop = LoopThread()
    try:
        core = loop.run(Core.open(assembly, settings, wanted))
    except BaseException:
        loop.stop()
        assembly.close()
        raise
    loop.repeat(assembly.clock, BEAT_MS / 1000, core.beat)
    loop.repeat(assembly.clock, MERGE_EVERY_S, core.merge)
    return Environment(core, assembly, loop)


@dataclass(frozen=True)
class Collection:
    """A table, source or view at the moment it was asked for; its readings are Spark DataFrames."""

    name: str
    schema: Schema
    since: int | None
    upper: int | None
    _env: Environment

    def snapshot(self, as_of: int | None = None) -> DataFrame:
        """Return the contents at ``as_of`` (default: the latest complete time)."""
        return self._env._snapshot(self.name, arguments.maybe_time(as_of, "as_of"))

    def changes(self, lower: int, upper: int) -> DataFrame:
        """Return the updates with ``lower <= time < upper``: the columns, ``__time`` and ``__diff``.

        Raises `AsOfError` where they are no longer known, or not yet; `InvalidUsage` if ``lower > upper``.
        """
        return self._env._changes(self.name, *arguments.window(lower, upper))


class Transaction:
    """Several tables, one timestamp, all or nothing: committed when the block ends without an error.

    It sees the tables as they were before it: neither its reads nor its deletes see its own inserts.  If another writer
    commits meanwhile, the transaction repeats its reads, so the caller handles no conflict.  A row to delete that does
    not exist, or no longer exists, fails the whole transaction.
    """

    def __init__(self, env: Environment, token: str | None) -> None:
        self._env = env
        self._token = arguments.token(token)
        self._changes: list[Change | Statement] = []
        self._committed = False
        self._doubtful = False
        self.timestamp: int | None = None
        """The commit's time, once the block has ended; None if it changed nothing."""

    def insert(self, table: str, rows: Data) -> None:
        """Insert ``rows`` into ``table`` when the transaction commits."""
        self._add(self._env._change(table, rows, deletes=False))

    def delete(self, table: str, rows: Data) -> None:
        """Delete ``rows`` from ``table`` when the transaction commits; each must be there, as often as it is given."""
        self._add(self._env._change(table, rows, deletes=True))

    def execute(self, sql: str | statements.Statement) -> None:
        """Do an INSERT, UPDATE or DELETE when the transaction commits.

        Raises `DefinitionError` with a position where the text is wrong, `InvalidUsage` if it is another statement.
        """
        match statement := arguments.statement(sql):
            case statements.Insert():
                self._add(self._env._inserting(statement))
            case statements.Delete() | statements.Update():
                self._add(self._env._editing(statement))
            case other:
                raise InvalidUsage(
                    f"{type(other).__name__} cannot be part of a transaction: it may INSERT, UPDATE, DELETE"
                )

    def commit(self) -> int | None:
        """Commit what was gathered, and return its time (None: it is nothing); durable when it returns.

        After a commit that failed, the caller may call it again.  Without a token that is refused if the outcome is
        not known, since no store could separate the first attempt from the second.
        """
        self._refuse_committed()
        if self._changes:
            try:
                self.timestamp = self._env._run(self._env._core.commit(self._changes, self._token))
            except (Determinate, Unavailable, InvalidUsage, DefinitionError, AsOfError, CollectionError):
                raise  # it has not happened
            except BaseException:
                self._doubtful = self._token is None
                raise
        self._committed = True
        return self.timestamp

    def _add(self, change: Change | Statement) -> None:
        self._refuse_committed()
        self._changes.append(change)

    def _refuse_committed(self) -> None:
        if self._committed:
            raise InvalidUsage("this transaction is committed; begin another one")
        if self._doubtful:
            raise InvalidUsage(
                "it is not known whether this transaction was committed, and it has no token to ask by; read what its "
                "tables hold, and begin another one (with a token, a transaction can be committed again safely)"
            )


class Environment:
    """Definitions, writes, ticks, reads.  Opened by `strandline.open`; close it, or use it as a context."""

    def __init__(self, core: Core, assembly: SparkAssembly, loop: LoopThread) -> None:
        self._core = core
        self._assembly = assembly
        self._loop = loop
        self._checks = SelfCheck(core)
        self._turn = threading.RLock()
        self._closed = False
        self._holds: weakref.WeakSet[Hold] = weakref.WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the location and release it.  Everything that was acknowledged is durable already.

        Raises what an endpoint or a store raises; it is closed all the same.
        """
        with self._turn:
            if self._closed:
                return
            self._closed = True
            for hold in list(self._holds):
                hold.close()
            try:
                self._loop.quiet()
                self._loop.run(self._core.close())
            finally:
                self._loop.stop()
                self._assembly.close()

    # ---- definitions and writes --------------------------------------------------------------------------------------

    def apply(self, project: Project) -> Applied:
        """Create what ``project`` defines and is missing here; see `strandline.controller.defining.apply`."""
        arguments.instance(project, Project, "project", "a Project (strandline.controller.defining.project.load)")
        self._run(self._core.settle())
        return self._run(apply(self._core, project))

    def execute(self, sql: str | statements.Statement) -> int | None:
        """Run one statement; INSERT, UPDATE and DELETE return their commit timestamp.

        Raises `DefinitionError` with a position where the text is wrong.  Queries are asked with `query`.
        """
        statement = arguments.statement(sql)
        if isinstance(statement, statements.Create | statements.Drop):
            self._run(self._core.settle())
        match statement:
            case statements.CreateTable() as s:
                self._run(definitions.create_table(self._core, s))
            case statements.CreateSource() as s:
                self._run(definitions.create_source(self._core, s))
            case statements.CreateView() as s:
                self._run(definitions.create_view(self._core, s))
            case statements.CreateMaterialization() as s:
                self._run(definitions.create_materialization(self._core, s))
            case statements.Drop() as s:
                self._run(definitions.drop(self._core, s))
            case statements.Insert() | statements.Delete() | statements.Update() as s:
                transaction = self.begin()
                transaction.execute(s)
                return transaction.commit()
            case statements.Bracket(word):
                raise InvalidUsage(f"{word} belongs into a script; a program says: with env.transaction() as txn")
            case statements.Query():
                raise InvalidUsage("a query returns rows: ask it with env.query(…)")
        return None

    def insert(self, table: str, rows: Data, token: str | None = None) -> int:
        """Insert ``rows`` and return the commit timestamp; durable when it returns.

        The same ``token`` twice is one commit; one that ends in ``@`` and milliseconds expires (docs/streams.md).
        """
        change = self._change(table, rows, deletes=False)
        return self._run(self._core.commit([change], arguments.token(token)))

    def delete(self, table: str, rows: Data, token: str | None = None) -> int:
        """Delete ``rows`` and return the commit timestamp.

        A row that is not there fails the whole call (`InvalidUsage`).
        """
        change = self._change(table, rows, deletes=True)
        return self._run(self._core.commit([change], arguments.token(token)))

    @contextmanager
    def transaction(self, token: str | None = None) -> Iterator[Transaction]:
        """Gather inserts and deletes, and commit them at one time when the block ends without an error."""
        transaction = self.begin(token)
        yield transaction
        transaction.commit()

    def begin(self, token: str | None = None) -> Transaction:
        """Return a transaction for a caller that cannot use `transaction`; nothing happens before its `commit`."""
        return Transaction(self, token)

    # ---- going on ----------------------------------------------------------------------------------------------------

    def tick(self, ts: int | None = None) -> int:
        """Ingest sources, advance every view and endpoint to one new time, and return it.

        Between ticks views are checked within a small budget (`controller/asking/selfcheck.py`).

        Raises `FencedError` if another environment has taken over.
        """
        time = self._run(self._core.tick(arguments.maybe_time(ts, "ts")))
        self._run(self._checks.turn())
        return time

    def sync(self, ts: int, timeout: float | None = None) -> None:
        """Tick until every view's upper is past ``ts``.

        Raises `AsOfError` naming a view that is not, at the end of the tick in which ``timeout`` seconds have passed
        (None: of the first one that moved none).
        """
        self._refuse_closed()
        arguments.time(ts, "ts")
        arguments.seconds(timeout, "timeout")
        pause_s, waited = self._core.config.tick_ms / 1000, 0.0
        while behind := self._behind(ts):
            before = self._uppers()
            waited += self._timed(self.tick)
            if not self._behind(ts):
                return
            if self._uppers() == before if timeout is None else waited >= timeout:
                problems = "; ".join(f"{n}: {p}" for n, p in sorted(self._core.all_problems().items()))
                raise AsOfError(f"view {behind[0]!r} is not past {ts} yet" + (f" ({problems})" if problems else ""))
            waited += self._timed(partial(self._pause, pause_s if timeout is None else min(pause_s, timeout - waited)))

    # ---- reads -------------------------------------------------------------------------------------------------------

    def query(self, sql: str, as_of: int | None = None) -> DataFrame:
        """Return the answer to ``sql`` over collections at one time (default: the latest complete for all).

        Raises `DefinitionError` with a position where the text is wrong, `AsOfError` if the time cannot be read.
        """
        text, time, hold = arguments.query(sql), arguments.maybe_time(as_of, "as_of"), Hold()
        return self._hand_out(self._run(inquiry.query(self._core, text, time, hold)).rows, hold)

    def answer(self, sql: str, as_of: int | None = None) -> tuple[pa.Table, int | None]:
        """Return the answer to ``sql``, whole, and the time at which it is true (None: it reads no collection).

        Raises as `query`; `CollectionError` if an expression has no value for a row.
        """
        text, time, hold = arguments.query(sql), arguments.maybe_time(as_of, "as_of"), Hold()

        async def collect() -> tuple[pa.Table, int | None]:
            try:
                found = await inquiry.query(self._core, text, time, hold)
                return await self._core.engine.collect(found.rows), found.as_of
            finally:
                hold.give_back()

        return self._run(collect())

    def collection(self, name: str) -> Collection:
        """Return the collection ``name`` as it is now.  Raises `DefinitionError` with candidates if there is none."""
        arguments.text(name, "the collection's name")

        async def look() -> Collection:
            reader = await self._core.reader(name)
            state = await reader.refresh()
            return Collection(reader.name, reader.schema, state.since.at, state.upper.at, self)

        return self._run(look())

    def explain(self, name: str) -> Explanation:
        """Say how a view is maintained: plan, rule of each node, state kept, why anything is recomputed, the SQL."""
        arguments.text(name, "the view's name")

        async def explain() -> Explanation:
            return definitions.explain_view(self._core, name)

        return self._run(explain())

    def verify(self, name: str, as_of: int | None = None, repair: bool = False) -> Verification:
        """Recompute a view by plain Spark at one time and compare, both ways; ``repair`` appends the difference.

        It also compares the view's internal state with the inputs of that state, and reports a difference as
        ``view/stage``.  A materialization is compared with its collections: ``tables`` has each of them.
        """
        arguments.text(name, "the view's name")
        arguments.maybe_time(as_of, "as_of")

        async def item() -> Item | None:
            return self._core.catalog.find(name)

        if isinstance(self._run(item()), Materialization):
            if as_of is not None or repair:
                raise InvalidUsage(
                    f"{name!r} is a materialization: it is compared at the time that its endpoint has reached, and "
                    "filled again by env.backfill or `strandline backfill`"
                )
            return self._run(inquiry.verify_endpoint(self._core, name))
        found = self._verified(name, as_of)
        if found.ok or not repair:
            return found
        definitions.audit(self._core, name)
        self.tick()
        again = self._verified(name, None)
        return replace(again, repaired=again.ok)

    def status(self) -> dict[str, Any]:
        """Return what ``strandline status --json`` prints: collections, errors, problems, materializations."""
        return self._run(inquiry.status(self._core))

    def progress(self) -> dict[str, Any]:
        """Return what this environment has done since it was opened (`controller.asking.progress`)."""
        with self._turn:
            return progress(self._core)

    def watch(self, call: Callable[[Status], None]) -> None:
        """Have ``call`` made while a tick goes on, after every batch of rows that a materialization reads or sends.

        It is made on the environment's own thread: it must not block, raise, or call the environment.
        """
        self._core.require_writing().instance.watch = call

    def inspect(self, name: str) -> dict[str, Any]:
        """Return what the shard of a collection (or a shard by its id) is: state, batches, holders, bytes."""
        return self._run(housekeeping.inspect(self._core, arguments.text(name, "the collection's name")))

    def fsck(self, *, apply: bool = False) -> dict[str, Any]:
        """Read everything the location names and return what is wrong; ``apply``: remove what is leaked."""
        return self._run(housekeeping.check(self._core, apply=apply))

    def compact(self, name: str | None = None, *, apply: bool = False) -> list[dict[str, Any]]:
        """Return which shards a whole merge would change (``name``: only that one); ``apply``: merge them."""
        wanted = None if name is None else arguments.text(name, "the collection's name")
        return self._run(housekeeping.compact(self._core, wanted, apply=apply))

    def gc(self, *, apply: bool = False) -> list[dict[str, Any]]:
        """Return which shards have garbage, and how much; ``apply``: collect it."""
        return self._run(housekeeping.collect(self._core, apply=apply))

    def backfill(self, name: str, collection: str | None = None, *, apply: bool = False) -> dict[str, Any]:
        """Return what filling a materialization's tables again does; ``apply``: do it, and the next tick fills them.

        ``collection``: only the table that is bound to it.  See `strandline.controller.asking.backfill`.
        """
        arguments.text(name, "the materialization's name")
        wanted = None if collection is None else arguments.text(collection, "the collection's name")
        return self._run(backfill.backfill(self._core, name, wanted, apply=apply))

    def skip(self, source: str, as_of: int | None = None, *, apply: bool = False) -> dict[str, Any]:
        """Return a source's undecodable records at ``as_of`` (default: the latest time); ``apply``: dismiss them."""
        time = arguments.maybe_time(as_of, "as_of")
        return self._run(skip(self._core, arguments.text(source, "the source's name"), time, apply=apply))

    def release(self) -> str | None:
        """Release a location whose holder died, and return that holder; None if there is none.

        Raises `ConfigError` if it is alive.
        """
        return self._run(housekeeping.release(self._core))

    def written_by(self) -> str | None:
        """Return the holder that writes the location, unless it is known to be dead; None if there is none."""
        return self._run(housekeeping.written_by(self._core))

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        """Make a call, with the definitions as they are now."""
        with self._turn:
            try:
                self._refuse_closed()
                self._loop.run(self._core.look())
            except BaseException:
                call.close()  # it has not begun
                raise
            return self._loop.run(call)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise InvalidUsage("this environment is closed")

    def _verified(self, name: str, as_of: int | None) -> Verification:
        """Return how a view differs from its query; if it does not, how its state does."""
        found = self._run(inquiry.verify(self._core, name, as_of))
        # State has no history: it is compared at the time that it is complete at.
        state = self._run(inquiry.verify_state(self._core, name)) if found.ok and as_of is None else []
        return next((stage for stage in state if not stage.ok), found)

    def _snapshot(self, name: str, as_of: int | None) -> DataFrame:
        hold = Hold()

        async def read() -> Any:
            reader = await self._core.holding_reader(name)
            time = as_of if as_of is not None else await inquiry.latest([reader])
            return await self._core.engine.multiset(
                await inquiry.snapshot(self._core, reader, time, hold), reader.schema
            )

        return self._hand_out(self._run(read()), hold)

    def _changes(self, name: str, lower: int, upper: int) -> DataFrame:
        hold = Hold()

        async def read() -> Any:
            reader = await self._core.holding_reader(name)
            whole = Frontier(lower) == reader.state.since
            plan = partial(reader.history, upper) if whole else partial(reader.changes, lower, upper)
            contents, rows = await read_definitely(self._core.engine, reader, plan)
            hold.take(reader, contents)
            await inquiry.refuse_changes(self._core, reader, lower, upper)
            return rows

        return self._hand_out(self._run(read()), hold)

    def _hand_out(self, rows: Rows, hold: Hold) -> DataFrame:
        """Return rows as a caller's frame; their parts are held until nothing uses it, or this is closed."""
        self._holds.add(hold)
        loop = self._loop
        return self._assembly.engine.hand_out(rows, hold.check, lambda: loop.soon(hold.give_back))

    def _change(self, name: str, rows: Data, *, deletes: bool) -> Change:
        table = self._table(name)
        diff = -1 if deletes else 1
        if arguments.is_spark(rows):
            frame = self._assembly.engine.given(cast("DataFrame", rows), table.schema, diff=diff)
            return Change(table, frame, deletes, None)
        listed = arguments.arrow(rows, table.name, table.schema.names)
        frame = self._run(self._core.engine.local(listed, table.schema, time=0, diff=diff))
        return Change(table, frame, deletes, listed.num_rows)

    def _inserting(self, s: statements.Insert) -> Statement:
        table = self._table(s.table, s.at)
        for name, at in s.columns:
            _require_column(table, name, at)
        columns = tuple(name for name, _ in s.columns) or table.schema.names
        engine = self._assembly.engine
        with within(s.query.start):
            reads = inquiry.relations_of(self._core, s.query.text)

        async def read(as_of: int) -> Rows:
            hold = Hold()
            with within(s.query.start):
                found = await inquiry.query(self._core, s.query.text, as_of, hold)
                return engine.inserted(self._hand_out(found.rows, hold), columns, table.schema)

        return Statement(table, read, inquiry.collections_of(self._core, reads), deletes=False)

    def _editing(self, s: statements.Delete | statements.Update) -> Statement:
        table = self._table(s.table, s.at)
        values = {}
        for each in () if isinstance(s, statements.Delete) else s.assignments:
            _require_column(table, each.column, each.at)
            values[each.column.lower()] = each.value
        edit = Edit(s.alias, s.where, values)
        engine = self._assembly.engine
        reads = inquiry.edit_reads(self._core, table.name, edit)

        async def read(as_of: int) -> Rows:
            hold = Hold()
            _, relations = await inquiry.relations_at(self._core, reads, as_of, hold)
            rows = await engine.edited(table.name.lower(), edit, relations)
            return engine.from_dataframe(self._hand_out(rows, hold))

        return Statement(table, read, inquiry.collections_of(self._core, reads), deletes=True)

    def _table(self, name: str, at: Position | None = None) -> OpenTable:
        """Return the table called ``name``, which stands at ``at`` of a statement."""
        self._refuse_closed()
        with within(at):
            return self._core.table(arguments.text(name, "the table's name"))

    def _pause(self, seconds: float) -> None:
        self._run(self._assembly.clock.sleep(seconds))

    def _timed(self, call: Callable[[], object]) -> float:
        """Make a call and return how many seconds it took; none where the clock was set back meanwhile."""
        begun = self._assembly.clock.now_ms()
        call()
        return max(0, self._assembly.clock.now_ms() - begun) / 1000

    def _uppers(self) -> dict[str, Frontier]:
        """Return how far each view has come; one that could not be opened has not begun, as far as is known here."""
        self._core.require_writing()
        views = {name: item for name, item in self._core.catalog.items.items() if isinstance(item, View)}
        states = {name: self._core.client.known(view.shard) for name, view in views.items()}
        return {name: MINIMUM if state is None else state.upper for name, state in states.items()}

    def _behind(self, ts: int) -> list[str]:
        return sorted(name for name, upper in self._uppers().items() if upper <= Frontier(ts))


def _require_column(table: OpenTable, name: str, at: Position) -> None:
    if name.lower() not in {known.lower() for known in table.schema.names}:
        known = ", ".join(table.schema.names)
        raise DefinitionError(f"table {table.name!r} has no column {name!r}; it has {known}", at)
