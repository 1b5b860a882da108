"""The core of an environment: one writer of one location, and what it keeps going.

`Core.open` takes the location over (tenure), fences older epochs, applies what was committed, and opens every item of
the catalog where its last incarnation left it.  `Core.tick` brings everything to one new time: sources bind and read,
tables are sealed, stages step, endpoints follow.  The three halves of a tick (`ingest`, `maintain`, `deliver`) may be
called apart: how ticks are grouped into steps changes no update (law D).

A core is used by one coroutine at a time (the client holds a lock); it spawns nothing.  `FencedError` from any call
means that another environment has taken over: close it.  Whatever else fails is a *problem* of one item, told by
`status`, here and in other processes; the other items go on.

Source: design pages "the map" (path of a row), "environment" and "persist" (modes and locks).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass

import msgspec

from strandline.algebra.schema import Schema
from strandline.compute.tick import TickReport, tick
from strandline.environment import live
from strandline.environment.assembly import Assembly
from strandline.environment.catalog import (
    KEY,
    Catalog,
    CatalogStore,
    Collected,
    Holder,
    Item,
    Materialization,
    Source,
    Table,
    View,
)
from strandline.environment.config import Config, Mode
from strandline.environment.dataflows import Dataflows, Definition, define, stage_shards
from strandline.environment.dropped import bury
from strandline.environment.oracle import Oracle
from strandline.environment.problems import NOTICES, PROBLEMS, Board
from strandline.environment.retention import LETTING_GO, Retention, policy_of
from strandline.environment.standing import standing
from strandline.environment.tables import Change, OpenTable, Statement, commit
from strandline.environment.tasks import start_task
from strandline.environment.tenure import Claim, abandon, admit
from strandline.errors import (
    AsOfError,
    ConfigError,
    FencedError,
    InvalidUsage,
    StoreError,
    StrandlineError,
    Unavailable,
    reason,
)
from strandline.frontier.antichain import Frontier, as_time
from strandline.materialize.runtime import Materialization as Task
from strandline.materialize.runtime import Status, unwatched
from strandline.persist.client import PersistClient
from strandline.persist.location import KEY as LOCATION
from strandline.persist.notify import LocalNotifier, Notifier, Polling
from strandline.persist.push import PushClient, PushServer
from strandline.persist.read import ReadHandle
from strandline.persist.register import Register
from strandline.persist.transactions import SHARD as TRANSACTIONS
from strandline.persist.transactions import Transactions, open_transactions
from strandline.sources.ingest import Ingestion
from strandline.sources.remap import RemapShard

CATALOG = "catalog"
"""What problems of knowing the catalog, and of closing what it dropped, are noted under."""
MERGES = "(merges)"
"""The same for the large merges beside ticks."""
STATUS = "(status)"
"""The same for the lists by which other processes read problems and notices."""


@dataclass
class Writing:
    """What only the environment that writes has."""

    epoch: int
    transactions: Transactions
    oracle: Oracle
    dataflows: Dataflows
    tables: dict[str, OpenTable]
    ingestions: dict[str, Ingestion]
    tasks: dict[str, Task]
    retention: Retention


class Core:
    """An environment of one location.  ``writing`` is None unless its mode is full."""

    def __init__(
        self, assembly: Assembly, client: PersistClient, catalogs: CatalogStore, config: Config, mode: Mode
    ) -> None:
        self.assembly = assembly
        self.engine = assembly.engine
        self.client = client
        self.catalogs = catalogs
        self.config = config
        self.mode = mode
        self.writing: Writing | None = None
        self.problems: dict[str, str] = {}
        self.board = Board(Register(PROBLEMS, assembly.clock, assembly.ids, client.consensus), str)
        self.noticeboard = Board(Register(NOTICES, assembly.clock, assembly.ids, client.consensus), list[str])
        self._standing: dict[str, str] = {}  # what is behind the last tick without a problem of its own
        self._running: dict[str, str] = {}  # the items that are open here, and their ids
        self.watch: Callable[[Status], None] = unwatched
        """Called after every batch that a task has read or sent; it must not raise or block."""
        self.last_tick: TickReport = TickReport()
        self._readers: dict[str, ReadHandle] = {}
        self._held: dict[str, ReadHandle] = {}
        self._claimed: tuple[int, Holder] | None = None  # the generation that the catalog may say is this environment's

    @classmethod
    async def open(cls, assembly: Assembly, config: Config, mode: Mode) -> Core:
        """Open a location.  Where that fails, the location is let go of.

        Raises:
            ConfigError: somebody else holds it (named), and ``config.take_over`` is not set; or it is only to be read,
                and nothing was stored there yet.
        """
        blob, consensus = assembly.blob, assembly.consensus
        notifier = _notifier(assembly, mode)
        client = PersistClient(
            assembly.clock, assembly.ids, blob, consensus, assembly.engine, notifier=notifier, merges_apart=True
        )
        catalogs = CatalogStore(Register(KEY, assembly.clock, assembly.ids, consensus))
        core = cls(assembly, client, catalogs, config, mode)
        if mode is not Mode.FULL:
            if not (await catalogs.read()).epoch and not {*await consensus.list_keys()} - {LOCATION}:
                raise ConfigError("nothing was stored at this location yet; open it for writing to make one")
            return core
        try:
            await core._take_over()
            if isinstance(notifier, PushServer):
                await notifier.serve(core._told)
        except BaseException:
            with suppress(StrandlineError):  # what went wrong first is what is told
                await core.close()
            raise
        return core

    async def close(self) -> None:
        """Let go of the location, so that the next environment need not ask, and of what was held for reading.

        Raises what an endpoint or a store raises; this process may open the location again all the same.
        """
        with suppress(StoreError, Unavailable):  # a lease that cannot be given up ends by itself
            for reader in self._held.values():
                await reader.close()
        if isinstance(self.client.notifier, PushServer | PushClient):
            self.client.notifier.close()
        async with AsyncExitStack() as ending:  # each is ended whatever the others raise
            ending.push_async_callback(self._let_go)
            for task in () if self.writing is None else self.writing.tasks.values():
                ending.push_async_callback(task.close)

    async def _let_go(self) -> None:
        claimed, self._claimed, self.writing = self._claimed, None, None
        if claimed is None:
            return
        try:
            await self.catalogs.leave(*claimed)
        except BaseException:
            abandon(claimed[1])
            raise

    @property
    def catalog(self) -> Catalog:
        """The catalog as last seen: as it is, where this environment writes; else as it was at the last `look`."""
        return self.catalogs.current

    async def settle(self) -> None:
        """Learn what became of the last definition, where its answer was lost: before another one is made.

        Raises what the stores raise, and `FencedError` if another environment has taken over.
        """
        await self.catalogs.settle(self.require_writing().epoch)

    async def look(self) -> None:
        """See the catalog as it is now: whoever only reads is not told that others change it."""
        if self.writing is None:
            await self.catalogs.read()

    def require_writing(self) -> Writing:
        """Return what only a writer has.  Raises `InvalidUsage` in a read-only environment."""
        if self.writing is None:
            raise InvalidUsage("this environment was opened read-only; open it for writing to change anything")
        return self.writing

    async def reader(self, name: str) -> ReadHandle:
        """Return the reading handle of a collection.

        Raises `DefinitionError` with candidates if there is no such collection.
        """
        item = self.catalog.collection(name)
        key = item.shard
        if key not in self._readers:
            reader = await self.client.reader(item.shard, item.schema, item.name, kept=self.kept(item))
            if reader is None:
                raise _unopened(item)
            self._readers[key] = reader
        self._readers[key].kept = self.kept(item)  # that may have changed since
        return self._readers[key]

    async def holding_reader(self, name: str) -> ReadHandle:
        """Return a reading handle of a collection that holds what it hands out, where this mode may hold anything.

        Raises as `reader`.
        """
        if self.mode is Mode.INDEPENDENT:
            return await self.reader(name)
        item = self.catalog.collection(name)
        known = self._held.get(item.shard)
        if known is not None:
            try:
                await _beat(known)
            except AsOfError:  # this process slept for longer than its lease
                del self._held[item.shard]
            else:
                return known
        reader = await self.client.leased_reader(item.shard, item.schema, item.name, kept=self.kept(item))
        if reader is None:
            raise _unopened(item)
        self._held[item.shard] = reader
        return reader

    async def beat(self) -> None:
        """Show that the readers that hold something are there, and let go of the past that none of them may ask for."""
        for shard, reader in list(self._held.items()):
            try:
                await _beat(reader)
            except AsOfError:
                self._held.pop(shard, None)
            except StrandlineError:
                continue  # the next beat may come through

    # ---- opening -----------------------------------------------------------------------------------------------------

    async def _take_over(self) -> None:
        claim = Claim(
            self.config.deployment, self.config.reentrant, self.config.take_over, self.assembly.clock.now_ms()
        )

        def admitted(before: Catalog) -> Holder:
            holder = admit(before, claim, self.assembly.processes)
            self._claimed = (before.epoch + 1, holder)  # from here on the change may have happened, told or not
            return holder

        catalog = await self.catalogs.succeed(admitted)
        transactions = await open_transactions(self.client, catalog.epoch)
        floor = transactions.upper.at or 0
        self.writing = Writing(
            catalog.epoch,
            transactions,
            Oracle(self.assembly.clock, floor),
            Dataflows(self.client, self.engine, catalog.epoch),
            {},
            {},
            {},
            Retention(self.client, self.config, catalog.epoch),
        )
        for item in list(catalog.items.values()):
            await self.start(item)
        await self.bury()

    async def bury(self) -> None:
        """Close what was dropped, here or by somebody who died over it; what cannot be closed now is a problem."""
        writing = self.require_writing()
        buried, problems = await bury(self.catalog.dropped, writing.transactions)
        for shard in self.catalog.dropped:
            self._note(shard, problems.get(shard, ""))
        if buried:
            await self.catalogs.change(writing.epoch, lambda catalog: catalog.closed(buried))

    async def start(self, item: Item) -> None:
        """Open an item of the catalog under this epoch.

        What keeps it from opening is its own problem; the other items go on, and every tick tries to open it again.
        """
        name = item.name.lower()
        async with self._own_problem(name):
            await self._start(item)
            self._running[name] = _id(item)
            self._note(name, "")

    async def stop(self, name: str) -> None:
        """Let an item that the catalog holds no longer take no part in ticks.  Raises what an endpoint raises."""
        writing = self.require_writing()
        self._running.pop(name, None)
        writing.dataflows.stop(name)
        writing.tables.pop(name, None)
        writing.ingestions.pop(name, None)
        task = writing.tasks.pop(name, None)
        self.problems.pop(name, None)
        if task is not None:
            await task.close()

    async def _start(self, item: Item) -> None:
        match item:
            case Table():
                await self._start_table(item)
            case Source():
                await self._start_source(item)
            case View():
                await self._start_view(item)
            case Materialization():
                await self._start_task(item)
        present = self.catalog.find(item.name)  # opening a view may have changed the shards of its stages
        if present is not None and not isinstance(present, Materialization):
            await self.require_writing().retention.hold(present)

    def _watched(self, status: Status) -> None:
        self.watch(status)

    def live(self) -> dict[str, int]:
        """Return the live counters of what runs here (`environment/live.py`)."""
        writing = self.writing
        return {} if writing is None else live.counters(writing.dataflows, writing.tasks)

    def _told(self) -> dict[str, int]:
        return {**self.client.metrics.counts(), **live.told(self.live())}

    async def _reconcile(self) -> None:
        """Run what the catalog holds, and nothing else, what is read before what reads it; close what was dropped.

        So the next tick opens what could not be opened, and does what a CREATE or DROP of unknown outcome came to.
        """
        async with self._own_problem(CATALOG):
            await self.catalogs.settle(self.require_writing().epoch)
            for name, known in list(self._running.items()):
                item = self.catalog.find(name)
                if item is None or _id(item) != known:
                    await self.stop(name)
            if self.catalog.dropped:
                await self.bury()
            self._note(CATALOG, "")
        for name, item in list(self.catalog.items.items()):
            if name not in self._running:
                await self.start(item)

    @asynccontextmanager
    async def _own_problem(self, name: str) -> AsyncIterator[None]:
        """Make what fails inside the problem of the item ``name`` alone, a bug of ours included, fencing excepted."""
        try:
            yield
        except FencedError:
            raise
        except Exception as error:  # noqa: BLE001 - one item's failure never stops another
            self._note(name, reason(error))

    async def _start_table(self, table: Table) -> None:
        writing = self.require_writing()
        writer = await writing.transactions.register(table.shard, table.schema.ddl)
        reader = await self.reader_of(table)
        writing.tables[table.name.lower()] = OpenTable(table.name, table.schema, writer, reader)

    async def _start_source(self, source: Source) -> None:
        writing = self.require_writing()
        reader = await self.assembly.connectors.reader(source, self.client, writing.epoch)
        remap = await RemapShard.open(await self.client.records(source.remap, writing.epoch), writing.epoch)
        data = await self.client.writer(source.shard, writing.epoch, schema=source.schema.ddl)
        writing.oracle.passed(as_time(remap.remap.upper))  # else nothing is bound until the clock gets there
        writing.ingestions[source.name.lower()] = await Ingestion.open(source.schema, reader, remap, data, self.engine)

    async def _start_view(self, view: View) -> None:
        writing = self.require_writing()
        planned, stages = define(
            view.name, view.sql, self.catalog, self.assembly.analyst, distrusted=bool(view.distrusted)
        )
        shards = stage_shards(stages, self.catalog, self.assembly.ids)
        if shards != view.stages:  # this version plans otherwise than the one that defined the view
            view = msgspec.structs.replace(view, stages=shards)
            await self.catalogs.change(writing.epoch, lambda catalog: catalog.with_item(view))
        readers = {name: await self.reader(name) for name in planned.imports}
        read = {name: self.catalog.collection(name) for name in readers}
        forgiven = frozenset(name for name, item in read.items() if isinstance(item, Source) and item.forgiven)
        await writing.dataflows.start(Definition(view, planned, stages), readers, forgiven)

    async def _start_task(self, item: Materialization) -> None:
        writing = self.require_writing()
        readers = [await self.reader(bound.collection) for bound in item.bindings]
        endpoint = self.assembly.drivers(item.endpoint, item.endpoint_options)
        writing.tasks[item.name.lower()] = await start_task(
            item, self.catalog, readers, self.client, self.engine, endpoint, writing.epoch, self._watched
        )

    async def reader_of(self, item: Collected) -> ReadHandle:
        """Return the reading handle of an item that is open for writing here."""
        reader = await self.client.reader(item.shard, item.schema, item.name, kept=self.kept(item))
        assert reader is not None, f"{item.name!r} was opened for writing a moment ago"
        self._readers[item.shard] = reader
        return reader

    # ---- going on ----------------------------------------------------------------------------------------------------

    async def tick(self, ts: int | None = None) -> int:
        """Bring everything to one new time and return it.

        An item that cannot follow stands still and has a problem; the others go on.

        Raises `FencedError` if another environment has taken over.
        """
        await self._reconcile()
        time = await self.ingest(ts)
        await self.maintain()
        await self.deliver()
        positions = {name: task.status.position for name, task in self.require_writing().tasks.items()}
        shards = [item.shard for item in self.catalog.items.values() if not isinstance(item, Materialization)]
        uppers = {shard: state.upper for shard in shards if (state := self.client.known(shard)) is not None}
        self._standing = standing(self.catalog, self.problems, uppers, positions, Frontier(time))
        await self._let_go_of_history(time)
        async with self._own_problem(STATUS):
            await self.board.tell(self.all_problems())
            await self.noticeboard.tell(self.notices())
            self._note(STATUS, "")
        return time

    async def ingest(self, ts: int | None = None, *, step: bool = True) -> int:
        """Bind a new time at every source and seal the tables through it; ``step``: make sources' data durable too."""
        writing = self.require_writing()
        time = writing.oracle.next(ts)
        sources = [self._ingest(name, each, time, step=step) for name, each in writing.ingestions.items()]
        await self.assembly.together([*sources, self._seal(time)])
        return time

    async def _ingest(self, name: str, ingestion: Ingestion, time: int, *, step: bool) -> None:
        async with self._own_problem(name):
            await ingestion.tick(time)
            if step:
                await ingestion.catch_up()
            self._note(name, ingestion.status.stalled)

    async def _seal(self, time: int) -> None:
        async with self._own_problem(TRANSACTIONS):
            await self.require_writing().transactions.advance(time)
            self._note(TRANSACTIONS, "")

    async def maintain(self) -> TickReport:
        """Step every stage of every view up to where its inputs are known."""
        writing = self.require_writing()
        upper = Frontier(writing.oracle.floor)
        report = self.last_tick = await tick(self.client, writing.dataflows.runs, upper, self.assembly.together)
        for name in writing.dataflows.definitions:
            problems = [report.problem(run.name) for run in writing.dataflows.runs_of(name)]
            self._note(name, next(filter(None, problems), ""))
        return report

    async def deliver(self) -> None:
        """Let every endpoint follow its collections."""
        await self.assembly.together([self._deliver(name, task) for name, task in self.require_writing().tasks.items()])

    async def _deliver(self, name: str, task: Task) -> None:
        async with self._own_problem(name):
            try:
                await task.advance()
            except FencedError as error:
                await self.catalogs.confirm(self.require_writing().epoch)
                self._running.pop(name, None)  # the location is ours, so a dead session's Open landed: open it anew
                raise Unavailable(f"the endpoint ended the session ({error}); the next tick opens another") from error
            self._note(name, task.status.waits)

    async def _let_go_of_history(self, time: int) -> None:
        writing = self.require_writing()
        async with self._own_problem(LETTING_GO):
            await writing.retention.follow(self.catalog, writing.dataflows, time)
            self._note(LETTING_GO, "")

    async def merge(self) -> None:
        """Carry out the large merges that are due: beside ticks, not in them (`persist/compact.py`).

        Raises nothing: what fails is a problem, and the next commit finds out who has taken over.
        """
        with suppress(FencedError):
            async with self._own_problem(MERGES):
                if self.writing is not None:
                    await self.client.merge()
                    self._note(MERGES, "")

    async def commit(self, changes: Sequence[Change | Statement], token: str | None) -> int:
        """Commit changes of tables at one time and return it.

        Raises `AsOfError` if a statement names a view or source that cannot be brought to where the tables are.
        """
        writing = self.require_writing()
        await self._level({name for change in changes if isinstance(change, Statement) for name in change.over})
        return await commit(
            changes,
            engine=self.engine,
            transactions=writing.transactions,
            oracle=writing.oracle,
            token=token,
        )

    async def _level(self, names: AbstractSet[str]) -> None:
        """Have what a statement reads complete at the one time that it reads everything at: where the tables are."""
        if not await self._behind(names):
            return
        await self.tick()
        for name in await self._behind(names):
            problem = self.problems.get(name, "it does not follow")
            raise AsOfError(
                f"{name!r} is not complete where the tables are ({problem}), so no statement can read both; "
                "nothing was changed"
            )

    async def _behind(self, names: AbstractSet[str]) -> list[str]:
        """Return those that are not complete at the last time at which all tables are."""
        last = Frontier(max(0, as_time(self.require_writing().transactions.upper) - 1))
        derived = [name for name in sorted(names) if not isinstance(self.catalog.collection(name), Table)]
        return [name for name in derived if (await (await self.reader(name)).refresh()).upper <= last]

    def table(self, name: str) -> OpenTable:
        """Return a table that is open for writing.

        Raises `DefinitionError` if there is no such collection, `InvalidUsage` if it is not a table, `Unavailable` if
        it could not be opened; the next tick tries again.
        """
        tables = self.require_writing().tables
        item = self.catalog.collection(name)
        if not isinstance(item, Table):
            raise InvalidUsage(f"{item.name!r} is a {type(item).__name__.lower()}; only tables can be written to")
        if name.lower() not in tables:
            raise Unavailable(f"table {item.name!r} is not open yet: {self.problems.get(name.lower(), 'try again')}")
        return tables[name.lower()]

    def kept(self, item: Collected) -> str:
        """Return for how long the history of a collection is kept, as its author wrote it."""
        return policy_of(item, self.config).text

    def schemas(self) -> Mapping[str, Schema]:
        """The schema of every collection, by name."""
        return {n: i.schema for n, i in self.catalog.items.items() if not isinstance(i, Materialization)}

    def all_problems(self) -> dict[str, str]:
        """Return what stands in the way of each item, or of the transactions, by its name.

        That is what was met here since it was opened: at ticks, and when shards were compacted and collected.
        """
        owners = {TRANSACTIONS: TRANSACTIONS}
        for name, item in self.catalog.items.items():
            if not isinstance(item, Materialization):
                owners |= dict.fromkeys(item.shards, name)
        found = {name: item.distrusted for name, item in self.catalog.items.items() if isinstance(item, View)}
        found = {name: why for name, why in found.items() if why} | self._standing | self.problems
        for shard, problem in self.client.problems().items():
            if (owner := owners.get(shard)) is not None:  # else it was dropped
                found[owner] = "; ".join(filter(None, (found.get(owner), f"shard {shard!r}: {problem}")))
        return found

    def notices(self) -> dict[str, list[str]]:
        """Return what sources wait for, though nothing is wrong, by their names."""
        ingestions = self.require_writing().ingestions
        return {name: list(each.status.notices) for name, each in ingestions.items() if each.status.notices}

    def _note(self, name: str, problem: str) -> None:
        if problem:
            self.problems[name] = problem
        else:
            self.problems.pop(name, None)


async def _beat(reader: ReadHandle) -> None:
    """Show that a reader is there; what it handed out is held by the versions that it is in, whatever since is.

    How long history stays is for the environment that writes to say: a reader holds what it may be planning now.
    """
    await reader.downgrade_since(Frontier(max(0, as_time(reader.state.upper) - 1)))


def _id(item: Item) -> str:
    """Return what tells an item from another one that had its name, and from itself before it must be opened anew."""
    if isinstance(item, Materialization):
        return " ".join((item.id, *(str(bound.backfill) for bound in item.bindings)))
    return f"{item.shard} distrusted" if isinstance(item, View) and item.distrusted else item.shard


def _unopened(item: Collected) -> ConfigError:
    return ConfigError(
        f"collection {item.name!r} is defined and was never opened for writing; run the environment once"
    )


def _notifier(assembly: Assembly, mode: Mode) -> Notifier:
    match mode:
        case Mode.FULL if assembly.address is not None:
            return PushServer(assembly.address, assembly.ids)
        case Mode.FULL:
            return LocalNotifier()
        case Mode.READ if assembly.address is not None:
            return PushClient(assembly.address, assembly.clock, assembly.ids)
        case _:
            return Polling(assembly.clock)
