"""The core of an environment: one writer of one location, and what it keeps going.

`Core.open` takes the location over (tenure), fences older epochs, applies what was committed, and opens every item of
the catalog (`writing.py`).  `Core.tick` brings everything to one new time: sources bind and read, tables are sealed,
stages step, endpoints follow.  The three parts of a tick (`ingest`, `maintain`, `deliver`) may be called apart: how
ticks are grouped into steps changes no update (law D).

A core is used by one coroutine at a time (the client holds a lock); the loops of its instance run beside its calls.
`FencedError` from any call means that another environment has taken over: close it.  `ConfigError` from a tick means
that the engine has ended: only another process can continue.  Any other failure is a *problem* of one item; `status`
reports it, here and in other processes, and the other items go on.

What Spark has answered about the texts of views is a value of the location, beside the catalog: so a restart plans
without Spark (`recall`, `keep`).  Spark would give every answer again (`compute/plan/scalars/remembered.py`), so a
store that fails to read or write it stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, suppress
from typing import Final

from strandline.algebra.schema import Schema
from strandline.compute.plan.scalars.remembered import Answers
from strandline.compute.tick import TickReport
from strandline.controller.assembly import Assembly
from strandline.controller.commanded import collection, state_keys
from strandline.controller.health import MERGES, TICK, Health
from strandline.controller.instances.running import Running
from strandline.controller.introspection import acknowledged
from strandline.controller.introspection.acknowledged import Acknowledged
from strandline.controller.location.catalog import KEY, Catalog, CatalogStore, Holder
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Collected, Item, Materialization, SourceTable, Table, View, kind_of
from strandline.controller.location.tenure import OPENING, Claim, Opening, abandon, admit
from strandline.controller.location.version import Versions
from strandline.controller.readers import Readers
from strandline.controller.retention import RELEASING, Retention
from strandline.controller.standing import complete
from strandline.controller.syncing import Syncs
from strandline.controller.writing import CATALOG, Oracle, Writing
from strandline.errors import (
    AsOfError,
    CorruptionError,
    FencedError,
    InvalidUsage,
    NothingStored,
    StoreError,
    StrandlineError,
    Unavailable,
)
from strandline.frontier import EMPTY, MINIMUM, Frontier, as_time, meet
from strandline.instance import live
from strandline.instance.beginnings import Beginning
from strandline.instance.commands import Advance, Collection, Command, RunIngestion, RunMaterialization
from strandline.instance.connections import Equipment
from strandline.instance.instance import Instance
from strandline.instance.problems import Problems
from strandline.instance.protocol.messages import Hello
from strandline.instance.reports import ENDED
from strandline.instance.tables import Change, Statement
from strandline.instance.tasks import reached
from strandline.persist.client import PersistClient
from strandline.persist.handles.location import KEY as LOCATION
from strandline.persist.handles.location import read_mark
from strandline.persist.handles.register import Register
from strandline.persist.notices import LocalNotifier, Notifier, Polling, PushClient, PushServer
from strandline.persist.shard.patience import Deadline
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.persist.together.transactions import Transactions, open_transactions
from strandline.plane import Queries
from strandline.sources.question import Patience

ANSWERS: Final = "answers"


async def recall(register: Register, answers: Answers) -> None:
    """Know what was answered before, if it is kept for this authority."""
    if answers.recalls:
        with suppress(StoreError, Unavailable, CorruptionError):
            if (kept := await register.read()) is not None:
                answers.recall(kept)


async def keep(register: Register, answers: Answers) -> None:
    """Have later processes know what was answered here; nothing is written if nothing was learned."""
    if answers.learned and (encoded := answers.encode()) is not None:
        with suppress(StoreError, Unavailable):
            await register.update(lambda _: encoded)


class Core:
    """An environment of one location.  ``writing`` is None unless its mode is full."""

    def __init__(
        self, assembly: Assembly, client: PersistClient, catalogs: CatalogStore, config: Config, mode: Mode
    ) -> None:
        self.assembly = assembly
        self.engine = assembly.engine
        self._patience = Patience(assembly.beside, config.tick_ms / 1000)
        self.client = client
        self.catalogs = catalogs
        self.config = config
        self.mode = mode
        self.writing: Writing | None = None
        self.queries = Queries(assembly.clock)
        self.problems = Problems(assembly.clock)
        self.health = Health(client, catalogs, self.problems)
        self.readers = Readers(client, catalogs, config, mode)
        self.versions = Versions(assembly.clock, assembly.ids, client.consensus, catalogs)
        self._syncs = Syncs(assembly.clock, assembly.ids, client.consensus)
        self.acknowledged = Acknowledged(assembly.clock, assembly.ids, client.consensus)
        self.opening = Opening(assembly.clock, assembly.ids, client.consensus, assembly.processes)
        self._answers = Register(ANSWERS, assembly.clock, assembly.ids, client.consensus)
        self._claimed: tuple[int, Holder] | None = None  # the generation that the catalog may say is this environment's

    @classmethod
    async def open(
        cls,
        assembly: Assembly,
        config: Config,
        mode: Mode,
        edit: Callable[[Catalog], Catalog] = lambda each: each,
        seen: Callable[[Catalog], Catalog] = lambda each: each,
    ) -> Core:
        """Open a location.  Where that fails, release it.

        ``edit``: how the catalog changes with the take-over, in one write.  ``seen``: see `CatalogStore`.

        Raises:
            ConfigError: another process holds it (the message names it), and ``config.take_over`` is not set; or it is
                only to be read, and nothing was stored there yet.
        """
        blob, consensus = assembly.blob, assembly.consensus
        notifier = _notifier(assembly, mode)
        client = PersistClient(
            assembly.clock, assembly.ids, blob, consensus, assembly.engine, notifier=notifier, merges_apart=True
        )
        catalogs = CatalogStore(Register(KEY, assembly.clock, assembly.ids, consensus), seen)
        core = cls(assembly, client, catalogs, config, mode)
        if mode is not Mode.FULL:
            if not (await catalogs.read()).epoch and not {*await consensus.list_keys()} - {LOCATION, OPENING}:
                opens = await core.opening.process(catalogs.current.holder)
                how = "open it for writing to make one" if opens is None else f"{opens} starts, and makes one"
                raise NothingStored(f"nothing was stored at this location yet; {how}")
            return core
        await recall(core._answers, assembly.answers)
        with suppress(StoreError, Unavailable):
            await core.acknowledged.read()
        try:
            await core._take_over(edit)
            if isinstance(notifier, PushServer):
                await notifier.serve(core._metrics)
        except BaseException:
            with suppress(StrandlineError):  # the first error is the one that is raised
                await core.close()
            raise
        return core

    async def close(self) -> None:
        """Release the location, so that the next environment opens it without an operator, and the holds of readers.

        Raises what an endpoint or a store raises; this process may open the location again all the same.
        """
        await self.readers.close()
        if isinstance(self.client.notifier, PushServer | PushClient):
            self.client.notifier.close()
        async with AsyncExitStack() as ending:  # each is ended whatever the others raise
            ending.push_async_callback(self._release)
            if self.writing is not None:
                ending.push_async_callback(self.writing.running.close)

    async def _release(self) -> None:
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
        """Read the catalog as it is now: a process that only reads gets no notice of changes by others."""
        if self.writing is None:
            await self.catalogs.read()

    def require_writing(self) -> Writing:
        """Return what only a writer has.  Raises `InvalidUsage` in a read-only environment."""
        if self.writing is None:
            raise InvalidUsage("this environment was opened read-only; open it for writing to change anything")
        return self.writing

    # ---- opening -----------------------------------------------------------------------------------------------------

    async def _take_over(self, edit: Callable[[Catalog], Catalog]) -> None:
        claim = Claim(
            self.config.deployment, self.config.reentrant, self.config.take_over, self.assembly.clock.now_ms()
        )

        def admitted(before: Catalog) -> Holder:
            holder = admit(before, claim, self.assembly.processes)
            self._claimed = (before.epoch + 1, holder)  # from here on the change may have happened, known or not
            return holder

        catalog = await self.catalogs.succeed(admitted, edit)
        transactions = await open_transactions(self.client, catalog.epoch)
        floor = transactions.upper.at or 0
        have = self.assembly
        self.writing = Writing(
            catalog.epoch,
            transactions,
            Oracle(have.clock, floor),
            await self._running(catalog, transactions),
            Retention(self.client, self.config, catalog.epoch),
            have,
            self.client,
            self.catalogs,
            self.config,
            self.problems,
            self._forget,
        )
        await self.writing.place()
        async with self.problems.of(CATALOG):
            await self.writing.fence_dropped()
        for item in list(catalog.items.values()):
            await self.writing.start(item)
        await self.writing.close_dropped()

    async def _running(self, catalog: Catalog, transactions: Transactions) -> Running:
        have = self.assembly
        here = Instance(self.equipment(), catalog.epoch, transactions, self.problems)
        mark = await read_mark(have.blob, have.clock)
        hello = Hello(catalog.epoch, catalog.writes, "" if mark is None else mark.id)
        return Running(here, self.problems, hello, have.dial, self._alone, have.beside, have.clock)

    def _alone(self, command: Command) -> bool:
        match command:
            case RunIngestion():
                return not self.assembly.connectors.shares(command)
            case _:
                return isinstance(command, RunMaterialization)

    def equipment(self) -> Equipment:
        """Return what an instance that runs in this process is given."""
        return self.assembly.equipment(self.client, self._patience)

    def _forget(self, shard: str) -> None:
        self.readers.forget(shard)
        self.client.forget(shard)

    async def remember(self) -> None:
        """Know what the process that writes has learned of the texts of views, so that to plan them needs no Spark."""
        if self.writing is None:
            await recall(self._answers, self.assembly.answers)

    def live(self) -> dict[str, int]:
        """Return the live counters of what runs here (`instance/live.py`)."""
        return {} if self.writing is None else self.writing.running.counters()

    async def states(self) -> acknowledged.States:
        """Return what is said of items: as this process knows it, if it writes, else as it was published last.

        Raises what a store raises.
        """
        await self.acknowledged.read()
        if self.writing is not None:
            return self.parted(self.health.problems(), self.writing.running.report().notices)
        return self.parted(await self.health.published(), await self.health.last_notices())

    def parted(self, problems: Mapping[str, str], notices: Mapping[str, Sequence[str]]) -> acknowledged.States:
        """Part what was met, from memory alone, as `acknowledged.states` does; what is acknowledged is left out."""
        return acknowledged.states(
            problems, notices, lambda name, said: self.acknowledged.seen(self.catalog.find(name), said)
        )

    def beginnings(self) -> tuple[Beginning, ...]:
        """Return what is read or computed here for the first time, from memory alone: any thread may ask."""
        try:
            return () if self.writing is None else tuple(self.writing.running.beginnings())
        except RuntimeError:  # something came or went while it was looked at
            return ()

    def _metrics(self) -> dict[str, int]:
        return {**self.client.metrics.counts(), **live.sendable(self.live())}

    # ---- going on ----------------------------------------------------------------------------------------------------

    async def tick(self, ts: int | None = None, *, wait: bool = False, deadline: Deadline | None = None) -> int:
        """Bring everything to one new time and return it.

        An item that cannot follow stands still and has a problem; the others go on.  ``wait``: for every upstream's
        answer, however long that takes; else for an interval.  ``deadline``: when to return at the latest; what is on
        its way then goes on, and what was on its way before is not waited for.

        Raises `FencedError` if another environment has taken over, `ConfigError` if the engine has ended for good or
        has no executor to wait for.
        """
        with self.problems.waiting(TICK):
            self.health.time = None
            return await self._tick(ts, deadline, wait=wait)

    async def _tick(self, ts: int | None, deadline: Deadline | None, *, wait: bool) -> int:
        self.engine.require_executors()
        if self.problems:  # those of an engine that has ended no tick would mend
            await self.engine.require_running()
        writing = self.require_writing()
        await writing.reconcile()
        time = await self.ingest(ts, None if deadline is None else deadline.half(), wait=wait)
        await self.maintain(deadline)
        while await writing.create():
            await self.maintain(deadline)
        if await writing.succeed():  # a caller is to find the new queries, so they come to a time of their own now
            return await self._tick(None, deadline, wait=wait)
        await self.deliver(deadline)
        await self._confirm()
        await self._release_history(time)
        await self.client.mend()
        await self.acknowledged.follow(self.catalog, writing.running.report().notices, self.problems.keys())
        await self.health.publish(writing.running, writing.epoch, time)
        await keep(self._answers, self.assembly.answers)
        return time

    async def idle(self) -> bool:
        """Return whether a tick would find nothing new: it would only say of everything that it is as it was.

        So as long as nothing comes, ticks may be left out.  What another environment does is learned by the next one.
        """
        writing, time = self.require_writing(), self.health.time
        if time is None or self.problems or not writing.settled or writing.transactions.upper != Frontier(time + 1):
            return False
        frontiers, now = writing.running.report().frontiers, Frontier(writing.oracle.now())
        due = any(self._refreshed(item) <= now for item in self.catalog.items.values())
        if due or complete(self.catalog, {}, frontiers, time, writing.instance.report().notices) < time:
            return False
        return await writing.running.idle()

    def _refreshed(self, item: Item) -> Frontier:
        """Return the next refresh of a view that has a schedule; empty: it has none to come."""
        if not isinstance(item, View) or item.refresh is None:
            return EMPTY
        state = self.client.known(item.shard)
        return EMPTY if state is None else state.upper

    async def _confirm(self) -> None:
        """Learn whether another environment has taken over, where this tick sealed no time: else the seal shows it.

        Who was succeeded does not know all items.  Where that cannot be learned, the catalog has a problem.
        """
        if TRANSACTIONS in self.problems:
            async with self.problems.of(CATALOG):
                await self.catalogs.confirm(self.require_writing().epoch)

    async def watch(self) -> None:
        """Publish what a tick that runs long waits for; see `Health.watch`."""
        if self.writing is not None:
            await self.health.watch(self.writing.running, self.writing.epoch)

    async def ingest(
        self, ts: int | None = None, deadline: Deadline | None = None, *, step: bool = True, wait: bool = False
    ) -> int:
        """Bind a new time everywhere and return it; ``step``: make data durable too; see `tick` for the others."""
        writing = self.require_writing()
        time = self.health.time = writing.oracle.next(ts)
        hurried = await self._syncs.hurried(self.catalog, writing.running.report().frontiers)
        await writing.running.ingest(Advance(time, step=step, wait=wait, hurried=hurried), deadline)
        return time

    async def hurry(self, name: str) -> int:
        """Ask for an endpoint to come to where its collections are now as soon as it can; return which time that is.

        Raises `DefinitionError` with candidates if there is no such materialization, and what a store raises.
        """
        item = self.catalog.one(name, Materialization, "materialization")
        uppers = [(await (await self.readers.of(each.collection)).refresh()).upper for each in item.bindings]
        upto = max(self.assembly.clock.now_ms(), as_time(meet(uppers)))
        if item.scheduled:
            await self._syncs.ask(item, upto, self.catalog)
        return upto

    async def arrived(self, name: str, upto: int) -> int | None:
        """Return how far an endpoint has come; None: not to ``upto``, which `hurry` has returned, as far as is known.

        Raises as `hurry`.
        """
        item = self.catalog.one(name, Materialization, "materialization")
        position = self.reached(item)
        if self.writing is None:
            position = await reached(item.log, state_keys(item, self.catalog), self.client)
            if item.scheduled and not await self._syncs.waits(item):
                position = max(position, upto)
        return position if position >= upto else None

    def reached(self, item: Materialization) -> int:
        """Return how far an endpoint has come as the one that writes knows; 0: that is another process.

        A recovery log may say less of what had nothing to commit.
        """
        report = None if self.writing is None else self.writing.running.report()
        return 0 if report is None else as_time(report.frontiers.get(item.name.lower(), MINIMUM))

    async def maintain(self, deadline: Deadline | None = None) -> TickReport:
        """Step every stage of every view up to where its inputs are known; ``deadline``: see `tick`.

        Return what has happened in this process.  Raises `FencedError` if replicas obey another environment.
        """
        writing, upper = self.require_writing(), Frontier(self.require_writing().oracle.floor)
        report = await writing.running.maintain(upper, deadline)
        if writing.running.stale:
            async with self.problems.of(CATALOG):
                await self.catalogs.confirm(writing.epoch)
        return report

    async def deliver(self, deadline: Deadline | None = None) -> None:
        """Let every endpoint follow its collections; ``deadline``: see `tick`."""
        instance = self.require_writing().instance
        await instance.deliver(deadline)
        for name, error in instance.ended().items():
            async with self.problems.of(name):
                await self.catalogs.confirm(self.require_writing().epoch)
                # The location is ours, so a dead session's Open has landed.
                raise Unavailable(ENDED.said(why=error))

    async def _release_history(self, time: int) -> None:
        writing = self.require_writing()
        async with self.problems.of(RELEASING):
            if writing.retention.due(time):
                await self.catalogs.confirm(writing.epoch)  # a successor may go on from what would be released
                await writing.retention.follow(self.catalog, writing.running, time)
            self.problems.note(RELEASING, "")

    async def merge(self) -> None:
        """Carry out the large merges that are due: beside ticks, not in them (`persist/upkeep/compact.py`).

        Raises nothing: what fails is a problem, and the next commit finds a newer epoch if there is one.
        """
        with suppress(FencedError):
            async with self.problems.of(MERGES):
                if self.writing is not None:
                    await self.client.merge()
                    self.problems.note(MERGES, "")

    async def commit(self, changes: Sequence[Change | Statement], token: str | None) -> int:
        """Commit changes of tables at one time and return it.

        Raises `AsOfError` if a statement names a view or source that cannot be brought to where the tables are.
        """
        writing = self.require_writing()
        await self._level({name for change in changes if isinstance(change, Statement) for name in change.over})
        return await writing.instance.commit(changes, writing.oracle, token)

    async def _level(self, names: AbstractSet[str]) -> None:
        """Tick until all that a statement reads is complete at the time of the tables, at which it reads everything."""
        if not await self._behind(names):
            return
        await self.tick(wait=True)
        for name in await self._behind(names):
            problem = self.problems.get(name, "it does not follow")
            raise AsOfError(
                f"{name!r} is behind the tables ({problem}), so no statement can read both at one time; "
                "nothing was changed"
            )

    async def _behind(self, names: AbstractSet[str]) -> list[str]:
        """Return those that are not complete at the last time at which all tables are."""
        last = Frontier(max(0, as_time(self.require_writing().transactions.upper) - 1))
        derived = [name for name in sorted(names) if not isinstance(self.catalog.collection(name), Table)]
        return [name for name in derived if (await (await self.readers.of(name)).refresh()).upper <= last]

    def table(self, name: str) -> Collection:
        """Return a table that is open for writing, as a `Change` names it.

        Raises `DefinitionError` if there is no such collection, `InvalidUsage` if it is not a table, `Unavailable` if
        it could not be opened; the next tick tries again.
        """
        instance = self.require_writing().instance
        item = self.catalog.collection(name)
        if isinstance(item, SourceTable):
            raise InvalidUsage(f"{item.name!r} is a table that source {item.source!r} feeds; nothing else writes to it")
        if not isinstance(item, Table):
            raise InvalidUsage(f"{item.name!r} is a {kind_of(item)}; only tables can be written to")
        if not instance.runs(name.lower()):
            raise Unavailable(f"table {item.name!r} is not open yet: {self.problems.get(name.lower(), 'try again')}")
        return collection(item, self.config)

    def schemas(self) -> Mapping[str, Schema]:
        """The schema of every collection, by name."""
        return {n: i.schema for n, i in self.catalog.items.items() if isinstance(i, Collected)}


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
