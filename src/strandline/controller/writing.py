"""What an environment that writes keeps running: the items of its catalog, and the clock that gives their times.

An item is opened where its last incarnation left it.  An obstacle to opening it is its own problem; the other items go
on, and every tick tries again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from operator import methodcaller
from typing import Final

import msgspec

from strandline.compute.stage import Stage
from strandline.controller.assembly import Assembly
from strandline.controller.commanded import Plans, binding_left, command, commands, instance_of, runs_in
from strandline.controller.instances.running import Running
from strandline.controller.location.catalog import Catalog, CatalogStore
from strandline.controller.location.config import Config
from strandline.controller.location.dropped import close, end, release, unreleased
from strandline.controller.location.items import (
    SUBSCRIBED,
    Collected,
    Connection,
    InstanceItem,
    Item,
    Kept,
    Materialization,
    SharedSource,
    SourceTable,
    View,
)
from strandline.controller.location.version import beginning, companies, imported, moved_along, moves, succeeded
from strandline.controller.planning import Definition, replanned, sharing, stage_shards
from strandline.controller.retention import Retention
from strandline.errors import InvalidUsage, StoreError, Unavailable
from strandline.frontier import Frontier, as_time, given_time, join, meet
from strandline.instance import error_half
from strandline.instance.commands import Advance
from strandline.instance.instance import Instance
from strandline.instance.problems import Problems
from strandline.instance.tasks import fence_task, records
from strandline.persist.client import PersistClient
from strandline.persist.shard.patience import Deadline
from strandline.persist.together.transactions import Transactions
from strandline.problem import Problem, Stopped, Way
from strandline.store.clock import Clock


class Oracle:
    """Gives out times, each later than all before; ``floor`` is the first that is free.

    Every time that exists in an environment comes from here.  Times are milliseconds of the wall clock, but only ever
    go forward: across calls, restarts and clock steps.  The uppers of the shards show which times were given out before
    a restart (a tick seals its time everywhere), so the oracle stores nothing of its own.
    """

    def __init__(self, clock: Clock, floor: int) -> None:
        self._clock = clock
        self._floor = floor

    @property
    def floor(self) -> int:
        """The first time that was never given out."""
        return self._floor

    def now(self) -> int:
        """Return the time that `next` would give out; it is not given out."""
        return max(self._clock.now_ms(), self._floor)

    def next(self, wanted: int | None = None) -> int:
        """Return a time at or after the wall clock (or exactly ``wanted``) that was never given out before.

        Raises `InvalidUsage` if ``wanted`` is past, or no time.
        """
        time = self.now() if wanted is None else given_time(wanted, "the oracle")
        if time < self._floor:
            raise InvalidUsage(f"time {time} cannot be used: the next free one is {self._floor}")
        self._floor = time + 1
        return time

    def passed(self, upper: int) -> None:
        """Never give out a time before ``upper`` from now on."""
        self._floor = max(self._floor, upper)


FAILING: Final = Problem(
    "replacement-fails",
    "the new query fails for {rows} row(s) and {present!r} for none, so it does not take its place; a read of {item!r} "
    "says for which",
    Stopped.NOTHING,
    (
        Way("replace {present!r} by another query"),
        Way("keep the present one", "DROP MATERIALIZED VIEW {item:sql}"),
    ),
    "Readers see the present query.",
)
OPENS_S: Final = 30.0
"""How long a replica may take to open what comes in the place of something else."""
CATALOG = "catalog"
"""What problems of knowing the catalog, and of closing what it dropped, are noted under."""


@dataclass
class Writing:
    """What only the environment that writes has, under one epoch, and what it has run.

    ``forget`` is called with each shard that was closed because its item was dropped.
    """

    epoch: int
    transactions: Transactions
    oracle: Oracle
    running: Running
    retention: Retention
    assembly: Assembly
    client: PersistClient
    catalogs: CatalogStore
    config: Config
    problems: Problems
    forget: Callable[[str], None]
    plans: Plans = field(default_factory=Plans)
    asked: dict[str, str] = field(default_factory=dict)
    """Dropped sources, by their readers' shards, whose upstream was asked here in vain, each with why it was."""
    subscribed: set[str] = field(default_factory=set)
    """The views of open subscriptions, by name; those of others are dropped."""
    replaced: dict[str, int] = field(default_factory=dict)
    """The views that successors have taken the places of, each with the last time before that."""
    _stood: dict[str, Frontier] = field(default_factory=dict)
    """Where the shards of views of instances stood when their present dataflows had opened them, by their seeds."""
    _fenced: dict[str, int] = field(default_factory=dict)
    """By the shard of a view that was replaced, the epoch under which this process has fenced it (`_fence`)."""
    _started: set[str] = field(default_factory=set)
    """The names of all items that were started here: what kept one from opening is its problem while it is there."""
    _reconciled: Catalog | None = None  # the catalog that the instance runs; None: a tick is to find out

    async def start(self, item: Item) -> None:
        """Open an item of the catalog under this epoch; what keeps it from opening is its problem."""
        name = runs_in(item)
        self._started.add(name)
        async with self.problems.of(name):
            if isinstance(item, Materialization) and (ended := self.catalogs.current.ended):
                raise Unavailable(
                    f"it begins once nothing can write for dropped materializations: the next tick takes over "
                    f"{', '.join(ended)}, unless another problem says what stands in the way"
                )
            if isinstance(item, Materialization):
                await self._fence_givers(item)
            if isinstance(item, View) and item.instance and item.fence:
                await (self._fence(item) if item.seed else self._require_fenced(item))
            if isinstance(item, View) and (item.awaits_creation or self.plans.get(item) is None):
                item = await self._planned(item)
            if instance_of(item) and isinstance(item, Kept):
                await self.retention.hold(item)  # a replica may begin its history at once
            await self._run(name)
            self.oracle.passed(self.running.here.bound)  # else nothing is bound until the clock gets there
            if isinstance(item, Collected | SharedSource):
                await self.retention.hold(item)
            self._note_unreleased()  # one of this name may have been dropped before
            self.problems.note(name, "")

    async def place(self) -> None:
        """Have the instances of the catalog be those that items may run in, each with its replicas."""
        catalog = self.catalogs.current
        found = [item for item in catalog.items.values() if isinstance(item, InstanceItem)]
        await self.running.follow({item.name.lower(): item.replicas for item in found}, catalog.writes)

    async def stop(self, item: Item) -> None:
        """Take an item out of ticks: it was dropped, or is started anew.  Raises what an endpoint raises."""
        self.problems.pop(item.name.lower(), None)
        if not isinstance(item, SourceTable):
            await self.running.stop(item.name.lower())
            return
        async with self.problems.of(item.source):  # which goes on without it, or cannot be opened anyway
            await self._run(item.source)

    async def stop_dropped(self, before: Catalog) -> None:
        """Stop what ``before`` holds and the catalog does not: a dropped view, and what was to replace it.

        What writes to a shard ends before the shard is closed.  Raises what an endpoint raises.
        """
        for name, item in before.items.items():
            if name not in self.catalogs.current.items:
                await self.stop(item)

    async def reconcile(self) -> None:
        """Have run what the catalog holds, and nothing else, what is read before what reads it; close what was dropped.

        So the next tick opens what could not be opened, and does what a CREATE or DROP of unknown outcome came to.
        """
        async with self.problems.of(CATALOG):
            await self.catalogs.settle(self.epoch)
            await self._unsubscribe()
            await self._skip()
            if (catalog := self.catalogs.current) is not self._reconciled:
                self.plans.keep(catalog)
                await self.place()
                await self.running.end(commands(catalog, self.plans, self.config))
                for name in sorted(self._started - catalog.items.keys()):  # which may never have been open
                    self.problems.note(name, "")
                self._started &= catalog.items.keys()
                self._reconciled = catalog
            await self._grown()  # of those that run as they are now
            await self._emptied()
            if self._to_close:
                await self.close_dropped()
            self.problems.note(CATALOG, "")
        for item in list(self.catalogs.current.items.values()):
            if not (self._runs(item) and self.retention.holds(item)):
                await self.start(item)

    async def begin(self, names: Iterable[str]) -> dict[str, str]:
        """Open items that have come in the places of others, before what those leave is brought to its end.

        Return, by name, what keeps one from opening, here or in every replica that is to run it.
        """
        async with self.problems.of(CATALOG):
            await self.place()
            await self.running.end(commands(self.catalogs.current, self.plans, self.config))
        found = {name: self.catalogs.current.items[name] for name in names}
        told: dict[str, str] = {}
        for item in found.values():
            await self.start(item)
            if why := self.problems.get(runs_in(item)):  # looked up now: a replica may still tell of the one before
                told[runs_in(item)] = why
        asked = sorted(name for name in {*map(runs_in, found.values())} - told.keys() if self.running.elsewhere(name))
        if asked:
            deadline = Deadline(self.assembly.clock, OPENS_S)
            told |= await self.running.unopened(asked, Advance(self.oracle.next()), deadline)
        return {name: told[runs_in(item)] for name, item in found.items() if runs_in(item) in told}

    async def succeed(self) -> bool:
        """Put successors in the places of the views that they replace, once they have come as far; return whether any.

        One that fails for a row where the view before does not fail stays what it is, and has a problem.
        """
        ready: set[str] = set()
        for company in companies(self.catalogs.current):
            async with self.problems.of(min(company)):
                if await self._caught_up(company):
                    ready |= company
        names = frozenset(ready)
        if not names:
            return False
        following = {name: self.catalogs.current.one(name, View, "view") for name in names}
        known = {name: self.plans.get(view) for name, view in following.items()}
        for view in following.values():
            present = self.catalogs.current.one(view.replaces, View, "view")
            state = self.client.known(present.shard)
            if state is not None and state.upper.at and not moves(view, self.catalogs.current):
                self.oracle.passed(state.upper.at)  # a clock ahead, of another process, may have brought it there
        begins = self.oracle.floor  # all that was brought to it holds rows of the queries before, up to it
        placing = False
        async with self.problems.of(CATALOG):
            await self.catalogs.change(self.epoch, lambda catalog: succeeded(catalog, names, begins))
            placing = True
        if not placing:  # or not known to be placed: the next tick finds out
            return False
        for name, view in following.items():
            placed = self.catalogs.current.one(view.replaces, View, "view")
            if (definition := known[name]) is not None:
                self.plans.put(replace(definition, view=placed, stages=_renamed(definition.stages, view.replaces)))
            state = self.client.known(view.shard)
            self.replaced[placed.name] = 0 if state is None else as_time(state.upper) - 1
            if placed.instance and placed.fence:  # before any input moves
                async with self.problems.of(placed.name.lower()):
                    await self._fence(placed)
        return True

    async def _fence(self, view: View) -> None:
        """Fence a view that was replaced, and what moves along with it, so no replica does that by the query before.

        One may have moved what reads the view further than the view, over a move of the view that came too late.  Such
        a reader says nothing of the times between: it can be read from where it stands.
        """
        catalog = self.catalogs.current
        if self._fenced.get(view.shard) == catalog.writes + view.fence:
            return
        readers = moved_along(view, catalog)
        for each in (view, *readers):
            await self.client.fence(each.shard, catalog.writes + each.fence)
        stands = self.client.known(view.shard)
        for each in readers:
            await self._look_at(*each.stages.values())
            reached = join(known.upper for s in (each.shard, *each.stages.values()) if (known := self.client.known(s)))
            if stands is not None and each.refresh is None and reached.at and stands.upper < reached:
                await self.catalogs.change(self.epoch, partial(beginning, name=each.name, begins=reached.at))
        self._fenced[view.shard] = catalog.writes + view.fence

    async def _require_fenced(self, view: View) -> None:
        """Raise `Unavailable` if a replica may still move ``view`` along with one whose query was of before."""
        catalog = self.catalogs.current
        for each in [each for each in self._views if each.seed and each.fence and view in moved_along(each, catalog)]:
            if self._fenced.get(each.shard) != catalog.writes + each.fence:
                raise Unavailable(f"it goes on once no replica brings {each.name!r} on by its query of before")

    async def _fence_givers(self, taker: Materialization) -> None:
        """Let nothing write to a table of ``taker`` that runs another materialization as it was when it had the table.

        It may run in a replica that is cut off, and nothing else need run that materialization now.
        """
        for each in self.catalogs.current.of_kind(Materialization):
            if each.log != taker.log and each.has_left(taker):
                epoch = self.catalogs.current.writes if each.instance else self.epoch
                await fence_task(each.log, epoch + each.fence, self.client)

    async def _caught_up(self, names: AbstractSet[str]) -> bool:
        for name in sorted(names):
            view = self.catalogs.current.one(name, View, "view")
            present = self.catalogs.current.one(view.replaces, View, "view")
            ahead = await self._furthest(present)
            if view.instance:
                await self._look_at(view.shard, present.shard)
            here, before = self.client.known(view.shard), self.client.known(present.shard)
            if before is not None and before.upper < ahead and not moves(view, self.catalogs.current):
                return False  # what reads it was moved with it, by the query before, and it was not
            reached = (
                Frontier(self.oracle.floor) if before is None else meet((before.upper, Frontier(self.oracle.floor)))
            )
            if here is None or here.upper < reached:  # the view before may be known further: up to its next refresh
                return False
            if any(batch.errors for batch in here.batches) and await self._fails(view, present):
                return False
        return True

    async def _fails(self, view: View, present: View) -> bool:
        """Return whether a successor has errors, and the view before has none; then it has a problem."""
        counts = []
        for each in (view, present):
            reader = await self.client.reader(each.shard, each.schema, each.name)
            upper = None if reader is None else reader.state.upper.at
            found = (
                0 if reader is None or not upper else await error_half.count(self.assembly.engine, reader, upper - 1)
            )
            counts.append(found)
        problem = FAILING.said(rows=counts[0], present=present.name, item=view.name)
        fails = bool(counts[0] and not counts[1])
        self.problems.note(view.name.lower(), problem if fails else "")
        return fails

    async def _furthest(self, view: View) -> Frontier:
        """Return how far the views have come that read this one, but for those that a schedule knows further."""
        readers = [each for each in self._views if view.name.lower() in each.imports and each.refresh is None]
        await self._look_at(*(each.shard for each in readers if each.instance))
        return join(state.upper for each in readers if (state := self.client.known(each.shard)) is not None)

    async def _look_at(self, *shards: str) -> None:
        for shard in shards:
            with suppress(StoreError, Unavailable):  # it stays where it was known to be
                await self.client.look(shard)

    @property
    def instance(self) -> Instance:
        """The instance of this process: it runs all tables, and the items that name no instance."""
        return self.running.here

    @property
    def location(self) -> str:
        """The mark of the location, which replicas compare with theirs; empty: it has none."""
        return self.running.hello.location

    def now(self) -> int:
        """Return the time that it is for the collections."""
        return self.oracle.now()

    def reads_under(self, name: str) -> int:
        """Return the epoch under which the source ``name`` is read."""
        return self.catalogs.current.writes if self.running.elsewhere(name) else self.epoch

    @property
    def settled(self) -> bool:
        """Whether a tick would find nothing to open, to close or to drop."""
        catalog = self.catalogs.current
        waiting = any(view.awaits_creation or view.seed or view.replaces for view in self._views)
        return catalog is self._reconciled and not (self._to_close or waiting or self._unread or self._emptying)

    @property
    def _to_close(self) -> bool:
        """Whether dropped items have left something that is not brought to its end yet."""
        catalog = self.catalogs.current
        return bool(catalog.dropped or catalog.left or catalog.ended)

    @property
    def _views(self) -> list[View]:
        return self.catalogs.current.of_kind(View)

    @property
    def _emptying(self) -> list[Materialization]:
        """The materializations that take out rows of views that were dropped from them."""
        items = self.catalogs.current.of_kind(Materialization)
        return [each for each in items if any(left.empties for left in each.left)]

    @property
    def _unread(self) -> AbstractSet[str]:
        """The names of the views of subscriptions that have ended."""
        return {name for name in self.catalogs.current.items if name.startswith(SUBSCRIBED)} - self.subscribed

    async def _unsubscribe(self) -> None:
        """Drop the views of subscriptions that have ended, whatever their defining or dropping came to."""
        if names := self._unread:
            await self.catalogs.change(self.epoch, lambda catalog: catalog.lacking(names))

    async def _grown(self) -> None:
        """Let go of the seeds of views whose own shards hold the same rows now."""
        for view in [view for view in self._views if view.seed]:
            if await self._has_grown(view):
                change = methodcaller("with_changed", view, msgspec.structs.replace(view, seed=""))
                await self.catalogs.change(self.epoch, change)

    async def _emptied(self) -> None:
        """Forget the tables that were emptied, as all splits of their tasks say: these then run without them."""
        for item in self._emptying:
            with suppress(StoreError, Unavailable):  # it is asked again by the next tick
                known = [record.progress.acknowledged for record in await records(item.log, self.client)]
                keys = {left: binding_left(item, left).state_key for left in item.left if left.empties}
                gone = {left for left, key in keys.items() if all(each.of(key) is not None for each in known)}
                if gone:
                    after = msgspec.structs.replace(item, left=tuple(each for each in item.left if each not in gone))
                    await self.catalogs.change(self.epoch, methodcaller("with_changed", item, after))

    async def _skip(self) -> None:
        """Let each view that was replaced begin where it can, if an earlier time cannot be computed any longer.

        That is so where the view before stood still, or a process that was succeeded has computed it since, and the new
        query reads a collection without history of it.  Then neither the view nor its readers can be read before.
        """
        for view in [view for view in self._views if view.seed]:
            catalog = self.catalogs.current
            if begins := await self._first_computable(view, catalog):
                await self.catalogs.change(self.epoch, partial(beginning, name=view.name, begins=begins))

    async def _first_computable(self, view: View, catalog: Catalog) -> int:
        """Return where a view that was replaced has to begin; 0 if it can go on from where it is."""
        read = [*view.stages.values(), *(catalog.collection(name).shard for name in view.imports)]
        for shard in (view.shard, view.seed, *read):
            await self.client.look(shard)
        there, seed = self.client.known(view.shard), self.client.known(view.seed)
        if there is None or not there.upper.at:
            return 0
        sinces = [join(state.since for each in read if (state := self.client.known(each)) is not None)]
        if seed is not None and seed.upper.at:
            sinces.append(seed.since)
        since = min(each.at or 0 for each in sinces)
        return max(since, view.query_from) if since > max(there.upper.at, view.begins) else 0

    async def _has_grown(self, view: View) -> bool:
        """Return whether the shard of a view holds what its present dataflow has made of it."""
        if view.instance:
            await self.client.look(view.shard)
        state = self.client.known(view.shard)
        if state is None or state.certificate is None:
            return False
        if not view.instance:
            status = self.running.here.report().views.get(view.name.lower())
            return status is not None and state.certificate.fingerprint == status.fingerprint
        if state.epoch < self.catalogs.current.writes + view.fence:
            return False  # replicas of the query before may still append to it
        return self._stood.setdefault(view.seed, state.upper) < state.upper

    async def close_dropped(self) -> None:
        """Close what was dropped, here or by a process that died meanwhile; what cannot be closed now is a problem.

        An upstream that keeps something still is not asked again here: one that is gone must not delay each tick.
        """
        await self.fence_dropped()
        catalog = self.catalogs.current
        if asked := [left for left in catalog.left if left.progress not in self.asked]:
            have = self.assembly
            found = await release(asked, catalog, have.connectors, self.client, self.epoch, have.together)
            self.asked |= found.kept
            for left in asked:
                if why := found.unasked.get(left.progress):
                    self.problems.note(left.progress, unreleased(left, catalog, why))
            if found.gone:
                await self.give_up(found.gone)
        self._note_unreleased()
        dropped = self.catalogs.current.dropped
        await self.running.here.sealed()
        closed, problems = await close(dropped, self.transactions, catalog.replaced)
        for shard in dropped:
            self.problems.note(shard, problems.get(shard, ""))
        if closed:
            await self.catalogs.change(self.epoch, lambda catalog: catalog.closed(closed))
        for shard in closed:
            self.forget(shard)

    def _note_unreleased(self) -> None:
        """Say of each source whose upstream was asked in vain what ends that, as the catalog is now."""
        catalog = self.catalogs.current
        for left in catalog.left:
            if why := self.asked.get(left.progress):
                self.problems.note(left.progress, unreleased(left, catalog, why))

    async def fence_dropped(self) -> None:
        """Take over the logs of dropped materializations; what keeps one from being taken over is a problem."""
        logs = self.catalogs.current.ended
        ended, problems = await end(logs, self.client)
        for log in logs:
            self.problems.note(log, problems.get(log, ""))
        if ended:
            await self.catalogs.change(self.epoch, lambda catalog: catalog.taken_over(ended))

    async def give_up(self, released: AbstractSet[str]) -> None:
        """Ask upstreams no more for what they keep for dropped sources, named by their readers' shards."""
        await self.catalogs.change(self.epoch, lambda catalog: catalog.released(released))
        for shard in released:
            self.problems.note(shard, "")

    async def _run(self, name: str) -> None:
        """Have the instance run what the item ``name`` is now; a source whose table it is runs anew."""
        item = self.catalogs.current.items.get(name)
        wanted = None if item is None else command(item, self.catalogs.current, self.plans, self.config)
        if wanted is None:
            await self.running.stop(name)
        else:
            assert item is not None, "nothing is commanded for what is not there"
            await self.running.start(name, wanted, instance_of(item))

    def created(self, imports: Iterable[str]) -> int | None:
        """Return the time at which a view over ``imports`` is created now; None: they can be read at no time yet."""
        states = [self.client.known(self.catalogs.current.collection(name).shard) for name in imports]
        known = [state for state in states if state is not None]
        upper = meet((Frontier(self.oracle.floor), *(state.upper for state in known)))
        if len(known) < len(states) or upper <= join(state.since for state in known):
            return None
        return as_time(upper) - 1

    async def _look(self, views: Iterable[View]) -> None:
        """Learn how far what ``views`` read is that runs in replicas."""
        read = {name for view in views for name in view.imports}
        for item in [self.catalogs.current.collection(name) for name in sorted(read)]:
            if instance_of(item):
                await self._look_at(item.shard)

    async def create(self) -> bool:
        """Start the views that waited for their inputs, where these can be read now; return whether any was started."""
        waiting = [view for view in self._views if view.awaits_creation]
        await self._look(waiting)
        ready = [view for view in waiting if self.created(view.imports) is not None]
        for item in ready:
            await self.start(item)
        return any(self.catalogs.current.items.get(each.name.lower()) != each for each in ready)

    async def _planned(self, view: View) -> View:
        """Plan a view; return it as it is in the catalog from then on: with a shard for each stage of this plan.

        Raises `Unavailable` if it has a schedule, and its inputs can be read at no time yet; or if the catalog has it
        otherwise by now: a change whose outcome was unknown has happened.
        """
        catalog, have, after = self.catalogs.current, self.assembly, view
        if view.refresh is not None and view.awaits_creation:
            await self._look([view])
            if (created := self.created(view.imports)) is None:
                raise Unavailable(f"its schedule begins once {', '.join(view.imports)} can be read")
            refresh = msgspec.structs.replace(view.refresh, created=created)
            after = msgspec.structs.replace(view, refresh=refresh)
        planned, stages = await have.planning(partial(replanned, after, catalog, have.analyst))
        shards = stage_shards(stages, catalog, have.ids, instance=view.instance)
        after = msgspec.structs.replace(
            after, stages=shards, imports=imported(view.name.lower(), planned.imports, catalog)
        )
        if after != view:  # the version that defined it planned otherwise, or it could not be created then
            await self.catalogs.change(self.epoch, lambda now: now.with_changed(view, sharing(after, now)))
            if self.catalogs.current.items.get(view.name.lower(), after) != after:
                raise Unavailable(f"{view.name!r} is not what it was when it was planned, and is planned again")
        self.plans.put(Definition(after, planned, stages))
        return after

    def _runs(self, item: Item) -> bool:
        """Return whether what is to be run for an item is open."""
        nothing = isinstance(item, Connection | InstanceItem) or (
            isinstance(item, SharedSource) and not self.catalogs.current.fed_by(item.name)
        )
        return nothing or self.running.runs(runs_in(item))


def _renamed(stages: tuple[Stage, ...], name: str) -> tuple[Stage, ...]:
    """Return the stages of a view under another name: that of its last one."""
    return (*stages[:-1], replace(stages[-1], name=name))
