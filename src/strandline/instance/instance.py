"""The instance: runs tables, ingestions, dataflows and materializations, each as it was commanded.

A failure belongs to one item: whatever opening, ingesting, stepping or delivering it raises is that item's problem, and
the others go on.  Only `FencedError` comes out of a call: another environment has taken over.

An instance is used by one coroutine at a time; it spawns nothing but questions to upstreams (`Patience`).  What it
reads and writes of a shard goes through the client, what it knows of upstreams and endpoints through `Connectors` and
`Drivers`.  It may be read-only: then sources bind nothing, sinks mint nothing and endpoints get nothing, until it is
allowed to write.

Long because what runs is started, brought on, reported and ended in one place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final

from strandline.compute.tick import SideBySide, TickReport, tick
from strandline.errors import ConfigError, FencedError
from strandline.frontier.antichain import Frontier, as_time, meet
from strandline.instance import beginnings, live
from strandline.instance.beginnings import Beginning
from strandline.instance.commands import (
    Collection,
    Command,
    Output,
    RunDataflow,
    RunIngestion,
    RunMaterialization,
    RunTable,
    inputs_of,
    outputs_of,
)
from strandline.instance.connections import Connectors, Drivers
from strandline.instance.dataflows import Dataflows
from strandline.instance.error_half import ErrorBudgets
from strandline.instance.problems import Problems
from strandline.instance.reports import Report, SourceFigures, ViewStatus
from strandline.instance.tables import Change, OpenTable, Statement, Times, commit
from strandline.instance.tasks import start_task
from strandline.materialize.runtime import Status, Task, unwatched
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.read import ReadHandle
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.persist.together.transactions import Transactions
from strandline.plane.engine import Engine
from strandline.sources.envelopes.choice import sort_of
from strandline.sources.ingest import Ingestion
from strandline.sources.question import Patience
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard, Stalled


@dataclass(frozen=True)
class Equipment:
    """What an instance works with."""

    client: PersistClient
    engine: Engine
    connectors: Connectors
    drivers: Drivers
    together: SideBySide
    patience: Patience
    """How long a tick waits for an upstream."""


class Instance:
    """What runs of one environment in this process, under one epoch."""

    def __init__(
        self,
        equipment: Equipment,
        epoch: int,
        transactions: Transactions,
        problems: Problems,
        *,
        may_write: bool = True,
    ) -> None:
        """``problems``: where the items' problems are noted.  ``may_write``: False until `allow_writes`."""
        self._equipment: Final = equipment
        self._client = equipment.client
        self._epoch = epoch
        self._transactions = transactions
        self._problems = problems
        self._commanded: dict[str, Command] = {}
        self._open: set[str] = set()  # what is commanded and could be opened
        self._readers: dict[str, ReadHandle] = {}  # by shard
        self._tables: dict[str, OpenTable] = {}
        self._ingestions: dict[str, Ingestion] = {}
        self._dataflows = Dataflows(equipment.client, equipment.engine, epoch, may_write=may_write)
        self._tasks: dict[str, Task] = {}
        self._budgets = ErrorBudgets(equipment.engine, self._reader)
        self._last_tick = TickReport()
        self.watch: Callable[[Status], None] = unwatched
        """Called after every batch that a task has read or sent; it must not raise or block."""

    # ---- what runs -----------------------------------------------------------------------------------------------

    def runs(self, name: str) -> bool:
        """Return whether the item ``name`` is open here, or fed by a source that is."""
        return name in self._open or self._feeds(name) is not None

    def allow_writes(self) -> None:
        """Let what runs here write from the next tick on: sinks append what they owe."""
        self._dataflows.allow_writes()

    async def end(self, commands: Mapping[str, Command]) -> None:
        """Stop every item whose command is not equal to one of ``commands``.  Raises what an endpoint raises."""
        for name, known in list(self._commanded.items()):
            if commands.get(name) != known:
                await self.stop(name)
        read = {each.shard: each for command in commands.values() for each in inputs_of(command)}
        self._readers = {shard: reader for shard, reader in self._readers.items() if shard in read}
        for shard, reader in self._readers.items():
            reader.kept = read[shard].kept  # that may have changed, and is no part of what is compared

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
                await self._dataflows.start(name, command, readers)
            case RunMaterialization():
                await self._start_task(name, command)
        self._open.add(name)

    async def stop(self, name: str) -> None:
        """Take an item out of ticks.  Raises what an upstream or an endpoint raises."""
        self._commanded.pop(name, None)
        self._open.discard(name)
        self._dataflows.stop(name)
        self._tables.pop(name, None)
        ingestion, task = self._ingestions.pop(name, None), self._tasks.pop(name, None)
        self._problems.pop(name, None)
        if ingestion is not None:
            await ingestion.close()
        if task is not None:
            await task.close()

    async def close(self) -> None:
        """End all that holds a connection.  Raises what an upstream or an endpoint raises, once all are ended."""
        async with AsyncExitStack() as ending:
            for task in self._tasks.values():
                ending.push_async_callback(task.close)
            for ingestion in self._ingestions.values():
                ending.push_async_callback(ingestion.close)

    async def _start_table(self, name: str, command: RunTable) -> None:
        output = command.output
        writer = await self._transactions.register(output.shard, output.schema.ddl)
        self._tables[name] = OpenTable(output, writer, await self._reader(output))

    async def _start_ingestion(self, name: str, command: RunIngestion) -> None:
        client, engine = self._client, self._equipment.engine
        reader = await self._equipment.connectors.reader(command, client, self._epoch)
        async with AsyncExitStack() as failing:
            failing.push_async_callback(reader.close)
            remap = await RemapShard.open(await client.records(command.remap, self._epoch), self._epoch)
            outputs = [await self._output(each, sort_of(reader.records(each.table))) for each in command.outputs]
            self._ingestions[name] = await Ingestion.open(
                client.clock, engine, reader, remap, outputs, self._equipment.patience
            )
            failing.pop_all()

    async def _output(self, output: Output, sort: tuple[str, ...]) -> OutputShard:
        fed = output.collection
        data = await self._client.writer(fed.shard, self._epoch, schema=fed.schema.ddl, sort=sort)
        return OutputShard(output.table, fed.schema, data)

    async def _start_task(self, name: str, command: RunMaterialization) -> None:
        readers = [await self._reader(each) for each in command.inputs]
        endpoint = self._equipment.drivers(command.endpoint, command.options)
        self._tasks[name] = await start_task(
            command, readers, self._client, self._equipment.engine, endpoint, self._epoch, self._watched
        )

    async def _reader(self, collection: Collection) -> ReadHandle:
        if collection.shard not in self._readers:
            reader = await self._client.reader(
                collection.shard, collection.schema, collection.name, kept=collection.kept
            )
            if reader is None:
                raise unopened(collection.name)
            self._readers[collection.shard] = reader
        return self._readers[collection.shard]

    def _watched(self, status: Status) -> None:
        self.watch(status)

    # ---- going on ------------------------------------------------------------------------------------------------

    async def ingest(self, time: int, *, step: bool = True, wait: bool = False) -> None:
        """Bind ``time`` at every source and seal the tables through it; ``step``: make sources' data durable too.

        ``wait``: for every upstream's answer, however long that takes.
        """
        if not self._dataflows.may_write:
            return
        sources = [self._ingest(name, each, time, step=step, wait=wait) for name, each in self._ingestions.items()]
        await self._equipment.together([*sources, self._seal(time)])

    async def _ingest(self, name: str, ingestion: Ingestion, time: int, *, step: bool, wait: bool) -> None:
        async with self._problems.of(name):
            exceeded = await self._budgets.exceeded(self._outputs(name))
            if not exceeded:
                await ingestion.tick(time, wait=wait)
            if step:
                await self._equipment.together([self._step(name, ingestion, table) for table in ingestion.tables])
            self._problems.note(name, exceeded or ingestion.status.stalled)

    async def _step(self, source: str, ingestion: Ingestion, table: str) -> None:
        """Let an output catch up: one that is an item of its own has problems of its own."""
        name = self._item(source, table)
        if name == source:
            await ingestion.catch_up(table)
            return
        async with self._problems.of(name):
            await ingestion.catch_up(table)
            self._problems.note(name, ingestion.status.outputs[table].stalled)

    def _item(self, source: str, table: str) -> str:
        """Return the name of the item that an output of ``source`` is."""
        return next((out.collection.name.lower() for out in self._outputs(source) if out.table == table), source)

    def _outputs(self, source: str) -> tuple[Output, ...]:
        command = self._commanded.get(source)
        return command.outputs if isinstance(command, RunIngestion) else ()

    def _feeds(self, name: str) -> tuple[Ingestion, str] | None:
        """Return what feeds the item ``name``, and what its upstream calls it; None if no source does."""
        for source, ingestion in self._ingestions.items():
            for table in ingestion.tables:
                if self._item(source, table) == name:
                    return ingestion, table
        return None

    async def _seal(self, time: int) -> None:
        async with self._problems.of(TRANSACTIONS):
            await self._transactions.advance(time)
            self._problems.note(TRANSACTIONS, "")

    async def maintain(self, upper: Frontier) -> TickReport:
        """Step every stage of every view up to ``upper``, or to where its inputs are known."""
        report = self._last_tick = await tick(
            self._client, self._equipment.engine, self._dataflows.runs, upper, self._equipment.together
        )
        for name in self._dataflows.views:
            problems = [report.problem(run.name) for run in self._dataflows.runs_of(name)]
            self._problems.note(name, next(filter(None, problems), ""))
        return report

    async def deliver(self) -> dict[str, FencedError]:
        """Let every endpoint follow its collections; return, by name, the sessions that an endpoint has ended.

        A newer session was opened there: by an environment that has taken over, or, late, by a process that is dead.
        The controller finds out which.  The next `start` opens such an item anew.
        """
        ended: dict[str, FencedError] = {}
        if self._dataflows.may_write:
            await self._equipment.together([self._deliver(name, task, ended) for name, task in self._tasks.items()])
        return ended

    async def _deliver(self, name: str, task: Task, ended: dict[str, FencedError]) -> None:
        async with self._problems.of(name):
            try:
                await task.advance()
            except FencedError as error:
                ended[name] = error
                self._open.discard(name)
            else:
                self._problems.note(name, task.status.waits)

    async def catch_up(self, source: str) -> Frontier | None:
        """Make durable all that is bound of a source's collection; return how far it is, or None if it is not open.

        Raises `SourceError` or `Unavailable` if it stands still.
        """
        found = self._feeds(source)
        if found is None:
            return None
        ingestion, table = found
        outcome = await ingestion.catch_up(table)
        if isinstance(outcome, Stalled):
            raise outcome.error
        return ingestion.upper_of(table)

    async def dismiss(self, source: str, errors: Rows, time: int) -> None:
        """Withdraw errors of a source's collection at ``time``, once it has caught up; see `Ingestion.dismiss`."""
        found = self._feeds(source)
        assert found is not None, f"{source!r} caught up a moment ago"
        ingestion, table = found
        await ingestion.dismiss(errors, time, table)

    async def commit(self, changes: Sequence[Change | Statement], times: Times, token: str | None) -> int:
        """Commit changes of tables at one of ``times`` and return it; see `tables.commit`."""
        tables, engine = {each.output.shard: each for each in self._tables.values()}, self._equipment.engine
        return await commit(changes, tables, engine=engine, transactions=self._transactions, times=times, token=token)

    def audit(self, view: str) -> None:
        """Make the next step of every stage of ``view`` recompute it in full and append what is wrong."""
        for run in self._dataflows.runs_of(view):
            run.audit()

    @property
    def bound(self) -> int:
        """The first time that is bound at no source here: the next tick's must not be before it."""
        return max((as_time(each.bound) for each in self._ingestions.values()), default=0)

    # ---- reports -------------------------------------------------------------------------------------------------

    def report(self) -> Report:
        """Return how far everything that runs here is."""
        frontiers = {name: Frontier(task.status.position) for name, task in self._tasks.items()}
        for command in self._commanded.values():
            for written in outputs_of(command):
                state = self._client.known(written.shard)
                if state is not None:
                    frontiers[written.name.lower()] = state.upper
        frontiers |= {  # a source that is no collection itself is as far as all that it feeds
            name: meet((each.bound, each.upper)) for name, each in self._ingestions.items() if name not in frontiers
        }
        sources = {name: each.status for name, each in self._ingestions.items()}
        notices = {name: list(each.notices) for name, each in sources.items() if each.notices}
        tasks = {name: task.status for name, task in self._tasks.items()}
        steps = {name: done.rows_read for name, done in self._last_tick.stepped.items()}
        sinks = self._dataflows.sinks
        views = {n: ViewStatus(each.fingerprint, each.counters.rows) for n, each in sinks.items() if not each.fresh}
        return Report(frontiers, notices, sources, views, tasks, steps)

    def needed(self) -> dict[str, Frontier]:
        """Return, by shard, the time from which on what runs here must be able to read it."""
        commands = {name: each for name, each in self._commanded.items() if isinstance(each, RunIngestion)}
        found = {commands[name].remap: each.needed for name, each in self._ingestions.items() if name in commands}
        for run in self._dataflows.runs:
            needed = run.needed
            for shard in (*run.reads, run.sink.writer.shard):
                found[shard] = meet((found.get(shard, needed), needed))
        return found

    def under_way(self) -> dict[str, int]:
        """Return since when (milliseconds) something is done here for an item that has not returned, by its name."""
        found = {name: each.since_ms for name, each in self._problems.under_way.items()}
        for view in self._dataflows.views:
            begun = [run.stepping_ms for run in self._dataflows.runs_of(view) if run.stepping_ms is not None]
            found |= {view: min(begun)} if begun else {}
        return found

    def counters(self) -> dict[str, int]:
        """Return the live counters of what runs here (`live.py`)."""
        return live.counters(self._dataflows, self._tasks, self.sources(), self.beginnings())

    def sources(self) -> dict[str, SourceFigures]:
        """Return what was done for each collection that a source feeds, by its item's name."""
        return {
            self._item(source, table): SourceFigures(
                of.read_records, of.reread_records, of.durable_records, of.error_records, status.behind
            )
            for source, ingestion in self._ingestions.items()
            for status in (ingestion.status,)
            for table, of in status.outputs.items()
        }

    def beginnings(self) -> tuple[Beginning, ...]:
        """Return what is read or computed for the first time, from memory alone: any thread may ask."""
        under_way = self.under_way()
        sources = [
            beginning
            for source, ingestion in self._ingestions.items()
            for beginning in beginnings.of_source(source, ingestion, self._outputs(source), under_way)
        ]
        return (*sources, *beginnings.of_views(self._dataflows, under_way))


def unopened(name: str) -> ConfigError:
    """Return the error of reading a collection whose shard no environment has made yet."""
    return ConfigError(f"collection {name!r} is defined and was never opened for writing; run the environment once")
