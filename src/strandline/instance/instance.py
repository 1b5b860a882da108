"""The instance: runs tables, ingestions, dataflows, materializations and indexes, each as it was commanded.

A failure belongs to one item: whatever opening, ingesting, stepping or delivering it raises is that item's problem, and
the others go on.  Only `FencedError` comes out of a call: another environment has taken over.

Nothing waits for another item's turn: a source, a table's sealing, a wave of views, a long step and an endpoint have
loops of their own (`running/`), which go on beside the callers of an instance.  These are one coroutine at a time.  A
caller that has something brought to a time may wait for it, for as long as it likes.

What an instance reads and writes of a shard goes through the client, what it knows of upstreams and endpoints through
`Connectors` and `Drivers`.  It may be read-only: then sources bind nothing, sinks mint nothing and endpoints get
nothing, until it is allowed to write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import chain

import pyarrow as pa

from strandline.compute.sink.correction import Disagreement
from strandline.compute.tick import TickReport
from strandline.errors import ConfigError, FencedError, StoreError, Unavailable
from strandline.frontier import Frontier, as_time, meet
from strandline.instance import beginnings, live
from strandline.instance.beginnings import Beginning
from strandline.instance.commands import (
    Advance,
    Collection,
    Command,
    Output,
    RunDataflow,
    RunIndex,
    RunIngestion,
    RunMaterialization,
    RunTable,
    inputs_of,
    outputs_of,
)
from strandline.instance.connections import Equipment
from strandline.instance.error_half import ErrorBudgets
from strandline.instance.indexes.index import Indexes
from strandline.instance.problems import Problems
from strandline.instance.reports import Report, SourceFigures, ViewStatus
from strandline.instance.running.deliveries import Announcer, Deliveries
from strandline.instance.running.sources import Sources
from strandline.instance.running.views import Views
from strandline.instance.tables import Change, OpenTable, Statement, Times, commit
from strandline.instance.tasks import start_task
from strandline.materialize.status import Status, unwatched
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.patience import Deadline
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.persist.together.transactions import Transactions
from strandline.sources.envelopes import sort_of
from strandline.sources.ingest import Ingestion
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard, Stalled


class Instance:
    """What runs of one environment in this process, under one epoch."""

    def __init__(
        self,
        equipment: Equipment,
        epoch: int,
        transactions: Transactions | None,
        problems: Problems,
        *,
        may_write: bool = True,
    ) -> None:
        """``transactions``: None if it runs no table and no source.  ``problems``: where the items' problems are noted.

        ``may_write``: False until `allow_writes`.
        """
        beside, engine = equipment.patience.beside, equipment.engine
        self._equipment = equipment
        self._client = equipment.client
        self._epoch = epoch
        self._transactions = transactions
        self._problems = problems
        self._commanded: dict[str, Command] = {}
        self._open: set[str] = set()  # what is commanded and could be opened
        self._readers: dict[str, ReadHandle] = {}  # by shard
        self._tables: dict[str, OpenTable] = {}
        budgets = ErrorBudgets(engine, self._reader)
        self._deliveries = Deliveries(beside, problems)
        self._indexes = Indexes(beside, problems, engine)
        self._sources = Sources(beside, equipment.together, problems, budgets, transactions, self._follow)
        self._views = Views(
            equipment,
            problems,
            epoch,
            may_write=may_write,
            moved=self._deliver,
            behind=lambda: chain(self._fed(), self._elsewhere()),
        )
        self.watch: Callable[[Status], None] = unwatched
        """Called after every batch that a task has read or sent; it must not raise or block."""
        self._moved: Callable[[], None] = lambda: None
        self._elsewhere: Callable[[], Iterable[str]] = tuple

    # ---- what runs -----------------------------------------------------------------------------------------------

    def runs(self, name: str) -> bool:
        """Return whether the item ``name`` is open here, or fed by a source that is."""
        return name in self._open or self._sources.feeding(name) is not None

    def allow_writes(self) -> None:
        """Let what runs here write from the next tick on: sinks append what they owe."""
        self._views.dataflows.allow_writes()

    async def end(self, commands: Mapping[str, Command]) -> None:
        """Stop every item whose command is not equal to one of ``commands``.  Raises what an endpoint raises."""
        for name, known in list(self._commanded.items()):
            if commands.get(name) != known:
                await self.stop(name)
        read = {each.shard: each for command in commands.values() for each in inputs_of(command)}
        self._readers = {shard: reader for shard, reader in self._readers.items() if shard in read}
        for shard, reader in self._readers.items():
            _as_it_is(reader, read[shard])

    async def start(self, name: str, command: Command) -> None:
        """Open an item under this epoch, unless it is open; end it first if it was commanded otherwise.

        Raises what keeps it from opening; then it is not.
        """
        if self._commanded.get(name, command) != command:
            await self.stop(name)
        if name in self._open:
            return
        self._commanded[name] = command
        match command:
            case RunTable():
                await self._start_table(name, command)
            case RunIngestion():
                await self._start_ingestion(name, command)
            case RunDataflow():
                readers = {each: await self._reader(collection) for each, collection in command.inputs.items()}
                await self._views.start(name, command, readers)
            case RunMaterialization():
                await self._start_task(name, command)
            case RunIndex():
                self._indexes.start(name, command, await self._reader(command.of))
        self._open.add(name)

    async def stop(self, name: str) -> None:
        """End an item.  Raises what an upstream or an endpoint raises."""
        known = self._commanded.pop(name, None)
        self._open.discard(name)
        self._tables.pop(name, None)
        if isinstance(known, RunDataflow):
            await self._views.stop(name)
        self._problems.pop(name, None)
        await self._sources.stop(name)
        await self._deliveries.stop(name)
        await self._indexes.stop(name)

    def forget(self, shard: str) -> None:
        """Forget what is known of a shard that nothing here reads or writes any longer."""
        self._readers.pop(shard, None)
        self._client.forget(shard)

    async def halt(self) -> None:
        """End all turns that are under way: from here on nothing goes on beside the caller."""
        await self._deliveries.halt()
        await self._indexes.halt()
        await self._views.halt()
        await self._sources.halt()

    async def close(self) -> None:
        """End all that goes on.  Raises what an upstream or an endpoint raises, once all are ended."""
        await self.halt()
        async with AsyncExitStack() as ending:
            ending.push_async_callback(self._deliveries.close)
            ending.push_async_callback(self._sources.close)

    async def sealed(self) -> None:
        """Return when no sealing of tables is under way: transactions are used by one coroutine at a time."""
        await self._sources.sealed()

    async def _start_table(self, name: str, command: RunTable) -> None:
        output = command.output
        await self.sealed()
        assert self._transactions is not None, "an instance that runs tables has transactions"
        writer = await self._transactions.register(output.shard, output.schema.ddl)
        self._tables[name] = OpenTable(output, writer, await self._reader(output))

    async def _start_ingestion(self, name: str, command: RunIngestion) -> None:
        client, engine = self._client, self._equipment.engine
        reader = await self._equipment.connectors.reader(command, client, self._epoch)
        async with AsyncExitStack() as failing:
            failing.push_async_callback(reader.close)
            remap = await RemapShard.open(await client.records(command.remap, self._epoch), self._epoch)
            outputs = [await self._output(each, sort_of(reader.records(each.table))) for each in command.outputs]
            patience = self._equipment.patience
            self._sources.add(
                name,
                command,
                await Ingestion.open(client.clock, engine, reader, remap, outputs, patience, name=command.name),
            )
            failing.pop_all()

    async def _output(self, output: Output, sort: tuple[str, ...]) -> OutputShard:
        fed = output.collection
        data = await self._client.writer(fed.shard, self._epoch, schema=fed.schema.ddl, sort=sort, widens=True)
        return OutputShard(output.table, fed.schema, data)

    async def _start_task(self, name: str, command: RunMaterialization) -> None:
        readers = [await self._reader(each) for each in command.inputs]
        endpoint = self._equipment.drivers(command.endpoint, command.options)
        await self._deliveries.stop(name)  # the one whose session was ended
        task, pace = await start_task(
            command,
            readers,
            self._client,
            self._equipment.engine,
            endpoint,
            self._epoch + command.fence,
            self._watched,
            self._equipment.patience.beside,
        )
        self._deliveries.add(name, task, pace, self._announcer(name, command))

    def _announcer(self, name: str, command: RunMaterialization) -> Announcer | None:
        if not command.trigger:
            return None
        have = self._equipment
        trigger, beside = have.triggers(command.trigger), have.patience.beside
        return Announcer(name, command.log, trigger, self._client.clock, beside, self._problems)

    async def _reader(self, collection: Collection) -> ReadHandle:
        if collection.shard not in self._readers:
            reader = await self._client.reader(
                collection.shard, collection.schema, collection.name, kept=collection.kept
            )
            if reader is None:
                raise ConfigError(f"it waits for collection {collection.name!r}, which could not be opened yet")
            self._readers[collection.shard] = reader
        return _as_it_is(self._readers[collection.shard], collection)

    def _watched(self, status: Status) -> None:
        self.watch(status)

    # ---- going on ------------------------------------------------------------------------------------------------

    async def look(self, *, shared: bool = False) -> None:
        """Learn how far collections are that other processes write and something here reads.

        One that cannot be looked at now stays where it was known to be: what reads it says that it waits for it.
        ``shared``: another process runs the same, so it may write whatever is written here.
        """
        commanded = () if shared else self._commanded.values()
        written = {each.shard for command in commanded for each in outputs_of(command)}

        async def refreshed(reader: ReadHandle) -> None:
            with suppress(StoreError, Unavailable):
                await reader.refresh()

        others = [reader for shard, reader in self._readers.items() if shard not in written]
        if others:
            await self._equipment.together([refreshed(reader) for reader in others])

    async def ingest(self, aim: Advance, deadline: Deadline | None = None) -> None:
        """Bind a time at every source, make data durable, and seal the tables through it.

        Returns when all are there, or at the deadline (None: however long it takes); then those that are late go on,
        and are followed when they are there.
        """
        self._deliveries.hurry(aim.hurried)
        if self._views.may_write:
            await self._sources.bring(aim, deadline)

    async def maintain(self, upper: Frontier, deadline: Deadline | None = None) -> TickReport:
        """Step every stage of every view up to ``upper``, or to where its inputs are known; ``deadline``: as `ingest`.

        Indexes follow.  Return what has happened to the views until then.
        """
        report = await self._views.bring(upper, deadline)
        await self._indexes.bring(deadline)
        return report

    async def deliver(self, deadline: Deadline | None = None) -> None:
        """Let every endpoint follow its collections; ``deadline``: as `ingest`."""
        if self._views.may_write:
            await self._deliveries.bring(deadline)

    def ended(self) -> dict[str, FencedError]:
        """Return, by name, the sessions that an endpoint has ended since this was asked last.

        A newer session was opened there: by an environment that has taken over, or, late, by a process that is dead.
        The controller finds out which.  The next `start` opens such an item anew.
        """
        found = dict(self._deliveries.ended)
        self._deliveries.ended.clear()
        self._open -= found.keys()
        return found

    def follow(self, moved: Callable[[], None], elsewhere: Callable[[], Iterable[str]] = tuple) -> None:
        """Have ``moved`` called whenever something has moved here that no caller waited for.

        ``elsewhere``: the collections that others still bring to where views here are to come.
        """
        self._moved, self._elsewhere = moved, elsewhere

    def _fed(self) -> Iterator[str]:
        """Yield the tables, and the items of sources, that are on their way to where they were last brought to."""
        yield from self._sources.under_way()
        if self._sources.sealing:
            yield from self._tables

    def _follow(self) -> None:
        """Have what came late be followed."""
        self._views.wake()
        self._moved()

    def _deliver(self) -> None:
        self._indexes.wake()
        if self._views.may_write:
            self._deliveries.wake()
        self._moved()

    async def peek(
        self, index: str, keys: pa.Table, as_of: int, limit: int | None = None, timeout_s: float | None = None
    ) -> pa.Table:
        """Return the rows that an index finds; see `Index.peek`.

        It waits for no turn of anything.  Raises `Unavailable` if the index does not run here.
        """
        return await self._indexes.peek(index, keys, as_of, limit, timeout_s)

    async def idle(self) -> bool:
        """Return whether nothing goes on here, and sources have all that upstream has."""
        return not self.going_on() and not self._deliveries.due and await self._sources.idle()

    async def catch_up(self, item: str) -> Frontier | None:
        """Make durable all that is bound of a source's collection; return how far it is, or None if it is not open.

        Raises `SourceError` or `Unavailable` if it stands still.
        """
        found = self._sources.feeding(item)
        if found is None:
            return None
        source, table = found
        ingestion = await self._sources.at_rest(source)
        outcome = await ingestion.catch_up(table)
        if isinstance(outcome, Stalled):
            raise outcome.error
        return ingestion.upper_of(table)

    async def dismiss(self, item: str, errors: Rows, time: int) -> None:
        """Withdraw errors of a source's collection at ``time``, once it has caught up; see `Ingestion.dismiss`."""
        found = self._sources.feeding(item)
        assert found is not None, f"{item!r} caught up a moment ago"
        source, table = found
        ingestion = await self._sources.at_rest(source)
        await ingestion.dismiss(errors, time, table)

    async def commit(self, changes: Sequence[Change | Statement], times: Times, token: str | None) -> int:
        """Commit changes of tables at one of ``times`` and return it; see `tables.commit`."""
        await self._sources.sealed()
        assert self._transactions is not None, "an instance that runs tables has transactions"
        tables, engine = {each.output.shard: each for each in self._tables.values()}, self._equipment.engine
        return await commit(changes, tables, engine=engine, transactions=self._transactions, times=times, token=token)

    async def audit(self, view: str) -> None:
        """Make the next step of every stage of ``view`` recompute it in full and append what is wrong."""
        await self._views.at_rest()
        for run in self._views.dataflows.runs_of(view):
            run.audit()

    @property
    def bound(self) -> int:
        """The first time that is bound at no source here: the next tick's must not be before it."""
        return max((as_time(each.ingestion.bound) for each in self._sources.open.values()), default=0)

    # ---- reports -------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """Return how far everything that runs here is."""
        sources = {name: source.ingestion for name, source in self._sources.open.items()}
        frontiers = {name: Frontier(task.status.position) for name, task in self._deliveries.tasks.items()}
        for command in self._commanded.values():
            for written in outputs_of(command):
                state = self._client.known(written.shard)
                if state is not None:
                    frontiers[written.name.lower()] = state.upper
        frontiers |= {name: index.upper for name, index in self._indexes.open.items()}
        frontiers |= {  # a source that is no collection itself is as far as all that it feeds
            name: meet((each.bound, each.upper)) for name, each in sources.items() if name not in frontiers
        }
        statuses = {name: each.status for name, each in sources.items()}
        notices = {name: list(each.notices) for name, each in statuses.items() if each.notices}
        notices |= self._deliveries.notices()
        tasks = {name: task.status for name, task in self._deliveries.tasks.items()}
        steps = {name: done.rows_read for name, done in self._views.report.stepped.items()}
        sinks = self._views.dataflows.sinks
        views = {n: ViewStatus(each.fingerprint, each.counters.rows) for n, each in sinks.items() if not each.fresh}
        opened = self._sources.open.items()
        added = {each.item(t): columns for name, each in opened for t, columns in statuses[name].added.items()}
        return Report(frontiers, notices, statuses, views, tasks, steps, added)

    def needed(self) -> dict[str, Frontier]:
        """Return, by shard, the time from which on what runs here must be able to read it."""
        found = {each.command.remap: each.ingestion.needed for each in self._sources.open.values()}
        for run in self._views.dataflows.runs:
            needed = run.needed
            for shard in (*run.reads, run.sink.writer.shard):
                found[shard] = meet((found.get(shard, needed), needed))
        for shard, needed in self._indexes.needed():
            found[shard] = meet((found.get(shard, needed), needed))
        return found

    def writers(self) -> dict[str, tuple[str, ...]]:
        """Return, by shard, the names by which the shards of views know what is appended here."""
        writers = [run.sink.writer for run in self._views.dataflows.runs]
        return {each.shard: each.names for each in writers if each.names}

    def disagreements(self) -> dict[str, Disagreement]:
        """Return, by shard, the last race in which another replica computed other rows than what runs here."""
        sinks = [run.sink for run in self._views.dataflows.runs]
        return {each.writer.shard: each.disagreed for each in sinks if each.disagreed is not None}

    def under_way(self) -> dict[str, int]:
        """Return since when (milliseconds) something is done here for an item that has not returned, by its name."""
        found = {name: each.since_ms for name, each in self._problems.under_way.items()}
        dataflows = self._views.dataflows
        for view in dataflows.views:
            begun = [run.stepping_ms for run in dataflows.runs_of(view) if run.stepping_ms is not None]
            found |= {view: min(begun)} if begun else {}
        return found

    def going_on(self) -> dict[str, int | None]:
        """Return the items that are on their way to where they were last brought to, and since when that takes long.

        By name, in milliseconds; None: it does not.
        """
        begun = self.under_way()
        sealing = {name: begun.get(TRANSACTIONS) for name in self._tables}
        return {
            name: self._problems.long_since(begun.get(name, sealing.get(name)))
            for names in (self._fed(), self._views.under_way(), self._deliveries.under_way(), self._indexes.under_way())
            for name in names
        }

    def counters(self) -> dict[str, int]:
        """Return the live counters of what runs here (`live.py`)."""
        found = live.counters(self._views.dataflows, self._deliveries.tasks, self.sources(), self.beginnings())
        return found | live.of_indexes(self._indexes.open)

    def sources(self) -> dict[str, SourceFigures]:
        """Return what was done for each collection that a source feeds, by its item's name."""
        return {
            source.item(table): SourceFigures(
                of.read_records, of.reread_records, of.durable_records, of.error_records, status.behind
            )
            for source in self._sources.open.values()
            for status in (source.ingestion.status,)
            for table, of in status.outputs.items()
        }

    def beginnings(self) -> tuple[Beginning, ...]:
        """Return what is read or computed for the first time, from memory alone: any thread may ask."""
        under_way = self.under_way()
        sources = [
            beginning
            for name, source in self._sources.open.items()
            for beginning in beginnings.of_source(name, source.ingestion, source.outputs, under_way)
        ]
        return (*sources, *beginnings.of_views(self._views.dataflows, under_way))


def unopened(name: str) -> ConfigError:
    """Return the error of reading a collection whose shard no environment has made yet."""
    return ConfigError(
        f"collection {name!r} is defined, and no process has opened it for writing yet: start `strandline run`; if it "
        "runs, `strandline status` says what keeps it from opening it"
    )


def _as_it_is(reader: ReadHandle, collection: Collection) -> ReadHandle:
    """Have a handle read what its collection is now: it may have got columns or another name since."""
    reader.name, reader.kept, reader.schema = collection.name, collection.kept, collection.schema
    return reader
