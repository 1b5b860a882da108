"""The core of an environment: one writer of one location, and what it keeps going.

`Core.open` takes the location over (tenure), fences older epochs, applies what was committed, and opens every item of
the catalog where its last incarnation left it.  `Core.tick` brings everything to one new time: sources bind and read,
tables are sealed, stages step, endpoints follow.  The three halves of a tick (`ingest`, `maintain`, `deliver`) may be
called apart: how ticks are grouped into steps changes no update (law D).

A core is used by one coroutine at a time (the client holds a lock); it spawns nothing itself.  `FencedError` from any
call means that another environment has taken over: close it.  `ConfigError` from a tick means that the engine has
ended: only another process goes on.  Any other failure is a *problem* of one item; `status` reports it, here and in
other processes, and the other items go on.

Long because a tick's order of calls is the environment's one main loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

import msgspec

from strandline.algebra.schema import Schema
from strandline.compute.tick import TickReport
from strandline.controller.assembly import Assembly
from strandline.controller.commanded import Plans, collection, command, commands, runs_in
from strandline.controller.location.catalog import KEY, Catalog, CatalogStore, Holder
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.dropped import close, release
from strandline.controller.location.items import (
    Collected,
    Connection,
    Item,
    SharedSource,
    SourceTable,
    Table,
    View,
    kind_of,
)
from strandline.controller.location.oracle import Oracle
from strandline.controller.location.tenure import Claim, abandon, admit
from strandline.controller.planning import Definition, define, stage_shards
from strandline.controller.published import NOTICES, PROBLEMS, Published
from strandline.controller.retention import RELEASING, Retention, policy_of
from strandline.controller.standing import standing, waiting
from strandline.errors import (
    AsOfError,
    ConfigError,
    FencedError,
    InvalidUsage,
    StoreError,
    StrandlineError,
    Unavailable,
)
from strandline.frontier.antichain import Frontier, as_time
from strandline.instance import live
from strandline.instance.beginnings import Beginning
from strandline.instance.commands import Collection
from strandline.instance.instance import Equipment, Instance, unopened
from strandline.instance.problems import Problems
from strandline.instance.tables import Change, Statement
from strandline.persist.client import PersistClient
from strandline.persist.handles.location import KEY as LOCATION
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.register import Register
from strandline.persist.notices.notify import LocalNotifier, Notifier, Polling
from strandline.persist.notices.push import PushClient, PushServer
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.persist.together.transactions import Transactions, open_transactions
from strandline.sources.question import Patience

CATALOG = "catalog"
"""What problems of knowing the catalog, and of closing what it dropped, are noted under."""
MERGES = "(merges)"
"""The same for the large merges beside ticks."""
STATUS = "(status)"
"""The same for the lists by which other processes read problems and notices."""
TICK = "(tick)"
"""What a tick that has not ended is under way as."""


@dataclass
class Writing:
    """What only the environment that writes has."""

    epoch: int
    transactions: Transactions
    oracle: Oracle
    instance: Instance
    retention: Retention
    plans: Plans


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
        self.problems = Problems(assembly.clock)
        self.published_problems = Published(Register(PROBLEMS, assembly.clock, assembly.ids, client.consensus), str)
        self.published_notices = Published(Register(NOTICES, assembly.clock, assembly.ids, client.consensus), list[str])
        self._reconciled: Catalog | None = None  # the catalog that the instance runs; None: a tick is to find out
        self._standing: dict[str, str] = {}  # what is behind the last tick without a problem of its own
        self._time: int | None = None  # the time of the tick that runs, once it has one
        self.overdue: Callable[[Mapping[str, str]], None] = lambda _: None
        """Called with what a tick that runs long waits for, as often as that is looked at; must not raise or block."""
        self.asked: set[str] = set()
        """Dropped sources, by their readers' shards, whose upstream was asked here in vain."""
        self._readers: dict[str, ReadHandle] = {}
        self._held: dict[str, ReadHandle] = {}
        self._claimed: tuple[int, Holder] | None = None  # the generation that the catalog may say is this environment's

    @classmethod
    async def open(cls, assembly: Assembly, config: Config, mode: Mode) -> Core:
        """Open a location.  Where that fails, release it.

        Raises:
            ConfigError: another process holds it (the message names it), and ``config.take_over`` is not set; or it is
                only to be read, and nothing was stored there yet.
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
        with suppress(StoreError, Unavailable):  # a lease that cannot be given up ends by itself
            for reader in self._held.values():
                await reader.close()
        if isinstance(self.client.notifier, PushServer | PushClient):
            self.client.notifier.close()
        async with AsyncExitStack() as ending:  # each is ended whatever the others raise
            ending.push_async_callback(self._release)
            if self.writing is not None:
                ending.push_async_callback(self.writing.instance.close)

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

    async def reader(self, name: str) -> ReadHandle:
        """Return the reading handle of a collection.

        Raises `DefinitionError` with candidates if there is no such collection.
        """
        item = self.catalog.collection(name)
        key = item.shard
        if key not in self._readers:
            reader = await self.client.reader(item.shard, item.schema, item.name, kept=self.kept(item))
            if reader is None:
                raise unopened(item.name)
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
            raise unopened(item.name)
        self._held[item.shard] = reader
        return reader

    async def beat(self) -> None:
        """Renew the leases of the readers that hold something, and release the past that none of them may read."""
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
            self._claimed = (before.epoch + 1, holder)  # from here on the change may have happened, known or not
            return holder

        catalog = await self.catalogs.succeed(admitted)
        transactions = await open_transactions(self.client, catalog.epoch)
        floor = transactions.upper.at or 0
        have = self.assembly
        equipment = Equipment(self.client, self.engine, have.connectors, have.drivers, have.together, self._patience)
        self.writing = Writing(
            catalog.epoch,
            transactions,
            Oracle(self.assembly.clock, floor),
            Instance(equipment, catalog.epoch, transactions, self.problems),
            Retention(self.client, self.config, catalog.epoch),
            Plans(),
        )
        for item in list(catalog.items.values()):
            await self.start(item)
        await self.close_dropped()

    async def give_up(self, released: AbstractSet[str]) -> None:
        """Ask upstreams no more for what they keep for dropped sources, named by their readers' shards."""
        await self.catalogs.change(self.require_writing().epoch, lambda catalog: catalog.released(released))
        for shard in released:
            self.problems.note(shard, "")

    async def close_dropped(self) -> None:
        """Close what was dropped, here or by a process that died meanwhile; what cannot be closed now is a problem.

        An upstream that keeps something still is not asked again here: one that is gone must not delay each tick.
        """
        writing = self.require_writing()
        if asked := [left for left in self.catalog.left if left.progress not in self.asked]:
            have = self.assembly
            found = await release(asked, self.catalog, have.connectors, self.client, writing.epoch, have.together)
            self.asked |= found.kept.keys()
            for shard, problem in (found.kept | found.unasked).items():
                self.problems.note(shard, problem)
            if found.gone:
                await self.give_up(found.gone)
        closed, problems = await close(self.catalog.dropped, writing.transactions)
        for shard in self.catalog.dropped:
            self.problems.note(shard, problems.get(shard, ""))
        if closed:
            await self.catalogs.change(writing.epoch, lambda catalog: catalog.closed(closed))
        for shard in closed:
            self._readers.pop(shard, None)
            self.client.forget(shard)

    async def start(self, item: Item) -> None:
        """Open an item of the catalog under this epoch.

        What keeps it from opening is its own problem; the other items go on, and every tick tries to open it again.
        """
        writing, name = self.require_writing(), runs_in(item)
        async with self.problems.of(name):
            if isinstance(item, View) and writing.plans.get(item) is None:
                item = await self._planned(item)
            await self._run(name)
            writing.oracle.passed(writing.instance.bound)  # else nothing is bound until the clock gets there
            if isinstance(item, Collected | SharedSource):
                await writing.retention.hold(item)
            self.problems.note(name, "")

    async def _run(self, name: str) -> None:
        """Have the instance run what the item ``name`` is now; a source whose table it is runs anew."""
        writing, item = self.require_writing(), self.catalog.items.get(name)
        wanted = None if item is None else command(item, self.catalog, writing.plans, self.config)
        if wanted is None:
            await writing.instance.stop(name)
        else:
            await writing.instance.start(name, wanted)

    async def _planned(self, view: View) -> View:
        """Plan a view; return it as it is in the catalog from then on: with a shard for each stage of this plan."""
        writing = self.require_writing()
        planned, stages = define(
            view.name, view.sql, self.catalog, self.assembly.analyst, distrusted=bool(view.distrusted)
        )
        shards = stage_shards(stages, self.catalog, self.assembly.ids)
        if (shards, planned.imports) != (view.stages, view.imports):  # the version that defined it planned otherwise
            before, view = view, msgspec.structs.replace(view, stages=shards, imports=planned.imports)
            after = view
            await self.catalogs.change(writing.epoch, lambda catalog: catalog.with_changed(before, after))
        writing.plans.put(Definition(view, planned, stages))
        return view

    async def stop(self, item: Item) -> None:
        """Take an item out of ticks: it was dropped, or is started anew.  Raises what an endpoint raises."""
        self.problems.pop(item.name.lower(), None)
        if not isinstance(item, SourceTable):
            await self.require_writing().instance.stop(item.name.lower())
            return
        async with self.problems.of(item.source):  # which goes on without it, or cannot be opened anyway
            await self._run(item.source)

    def live(self) -> dict[str, int]:
        """Return the live counters of what runs here (`instance/live.py`)."""
        return {} if self.writing is None else self.writing.instance.counters()

    def beginnings(self) -> tuple[Beginning, ...]:
        """Return what is read or computed here for the first time, from memory alone: any thread may ask."""
        try:
            return () if self.writing is None else self.writing.instance.beginnings()
        except RuntimeError:  # something came or went while it was looked at
            return ()

    def _metrics(self) -> dict[str, int]:
        return {**self.client.metrics.counts(), **live.sendable(self.live())}

    async def _reconcile(self) -> None:
        """Have run what the catalog holds, and nothing else, what is read before what reads it; close what was dropped.

        So the next tick opens what could not be opened, and does what a CREATE or DROP of unknown outcome came to.
        """
        writing = self.require_writing()
        async with self.problems.of(CATALOG):
            await self.catalogs.settle(writing.epoch)
            if (catalog := self.catalog) is not self._reconciled:
                writing.plans.keep(catalog)
                await writing.instance.end(commands(catalog, writing.plans, self.config))
                self._reconciled = catalog
            if self.catalog.dropped or self.catalog.left:
                await self.close_dropped()
            self.problems.note(CATALOG, "")
        for item in list(self.catalog.items.values()):
            if not (self._runs(item) and writing.retention.holds(item)):
                await self.start(item)

    def _runs(self, item: Item) -> bool:
        """Return whether what is to be run for an item is open."""
        nothing = isinstance(item, Connection) or (
            isinstance(item, SharedSource) and not self.catalog.fed_by(item.name)
        )
        return nothing or self.require_writing().instance.runs(runs_in(item))

    # ---- going on ----------------------------------------------------------------------------------------------------

    async def tick(self, ts: int | None = None, *, wait: bool = False) -> int:
        """Bring everything to one new time and return it.

        An item that cannot follow stands still and has a problem; the others go on.  ``wait``: for every upstream's
        answer, however long that takes; else for an interval.

        Raises `FencedError` if another environment has taken over, `ConfigError` if the engine has ended for good.
        """
        with self.problems.waiting(TICK):
            self._time = None
            return await self._tick(ts, wait=wait)

    async def _tick(self, ts: int | None, *, wait: bool) -> int:
        if self.problems:  # those of an engine that has ended no tick would mend
            await self.engine.require_running()
        await self._reconcile()
        time = await self.ingest(ts, wait=wait)
        await self.maintain()
        await self.deliver()
        await self._confirm()
        writing = self.require_writing()
        report = writing.instance.report()
        self._standing = standing(self.catalog, self.problems, report.frontiers, Frontier(time))
        await self._release_history(time)
        async with self.problems.of(STATUS):
            await self.published_problems.publish(self.all_problems(), writing.epoch)
            await self.published_notices.publish(report.notices, writing.epoch)
            self.problems.note(STATUS, "")
        return time

    async def _confirm(self) -> None:
        """Learn whether another environment has taken over, where this tick sealed no time: else the seal shows it.

        Who was succeeded does not know all items.  Where that cannot be learned, the catalog has a problem.
        """
        if TRANSACTIONS in self.problems:
            async with self.problems.of(CATALOG):
                await self.catalogs.confirm(self.require_writing().epoch)

    def waits(self) -> dict[str, str]:
        """Return what each item waits for, once a tick, or what is done between two, runs for `problems.LONG_S`."""
        known = {name: each for name, each in self.problems.under_way.items() if name != MERGES}
        if self.writing is None or all([each.short.left_s() > 0 for each in known.values()]):  # noqa: C419 - each looks
            return {}
        instance, tick = self.writing.instance, known.pop(TICK, None)
        under_way = {name: since for name, since in instance.under_way().items() if name not in {MERGES, TICK}}
        if tick is None:
            return waiting((), (), under_way, 0)
        items, behind = self.catalog.items, set(self.catalog.items)
        if self._time is not None:
            behind &= standing(self.catalog, {}, instance.report().frontiers, Frontier(self._time)).keys()
        return waiting(items, behind, under_way, tick.since_ms)

    async def watch(self) -> None:
        """Publish what a tick that runs long waits for: beside ticks, often enough.

        Raises nothing: at the latest the end of the tick publishes problems.
        """
        if waits := self.waits():
            self.overdue(waits)
            with suppress(StrandlineError):
                await self.published_problems.publish(
                    waits | self.all_problems(), self.require_writing().epoch, lambda: not self.waits()
                )

    async def ingest(self, ts: int | None = None, *, step: bool = True, wait: bool = False) -> int:
        """Bind a new time everywhere and return it; ``step``: make sources' data durable too; ``wait``: see `tick`."""
        writing = self.require_writing()
        time = self._time = writing.oracle.next(ts)
        await writing.instance.ingest(time, step=step, wait=wait)
        return time

    async def maintain(self) -> TickReport:
        """Step every stage of every view up to where its inputs are known."""
        writing = self.require_writing()
        return await writing.instance.maintain(Frontier(writing.oracle.floor))

    async def deliver(self) -> None:
        """Let every endpoint follow its collections."""
        ended = await self.require_writing().instance.deliver()
        for name, error in ended.items():
            async with self.problems.of(name):
                await self.catalogs.confirm(self.require_writing().epoch)
                # The location is ours, so a dead session's Open has landed.
                raise Unavailable(f"the endpoint ended the session ({error}); the next tick opens another")

    async def _release_history(self, time: int) -> None:
        writing = self.require_writing()
        async with self.problems.of(RELEASING):
            await writing.retention.follow(self.catalog, writing.instance, time)
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
        return [name for name in derived if (await (await self.reader(name)).refresh()).upper <= last]

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

    def kept(self, item: Collected) -> str:
        """Return for how long the history of a collection is kept, as its author wrote it."""
        return policy_of(item, self.config).text

    def schemas(self) -> Mapping[str, Schema]:
        """The schema of every collection, by name."""
        return {n: i.schema for n, i in self.catalog.items.items() if isinstance(i, Collected)}

    def all_problems(self) -> dict[str, str]:
        """Return what stands in the way of each item, or of the transactions, by its name.

        That is what was met here since it was opened: at ticks, and when shards were compacted and collected.
        """
        owners = {TRANSACTIONS: TRANSACTIONS}
        for name, item in self.catalog.items.items():
            if isinstance(item, Collected | SharedSource):
                owners |= dict.fromkeys(item.shards, name)
        found = {name: item.distrusted for name, item in self.catalog.items.items() if isinstance(item, View)}
        found = {name: why for name, why in found.items() if why} | self._standing | self.problems
        for shard, problem in self.client.problems().items():
            if (owner := owners.get(shard)) is not None:  # else it was dropped
                found[owner] = "; ".join(filter(None, (found.get(owner), f"shard {shard!r}: {problem}")))
        return found

    def notices(self) -> dict[str, list[str]]:
        """Return what sources wait for, though nothing is wrong, by their names."""
        return dict(self.require_writing().instance.report().notices)


async def _beat(reader: ReadHandle) -> None:
    """Show that a reader is there; what it handed out is held by the versions that it is in, whatever since is.

    How long history stays is for the environment that writes to say: a reader holds what it may be planning now.
    """
    await reader.downgrade_since(Frontier(max(0, as_time(reader.state.upper) - 1)))


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
