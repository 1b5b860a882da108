"""An instance of the world of the whole system: one environment's program, from its start to its end.

It opens the location whenever it likes, takes it over from another one, and does what a program does: it defines
tables, sources, views of every kind and materializations, commits to tables, drops what it has defined, and ticks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Sequence
from functools import cache
from typing import Any, Final, TypeVar, cast

from laws.broken import LawBrokenError, require
from laws.views import Attempt, standing, stored
from strandline.algebra.schema import Schema
from strandline.controller.asking import reads
from strandline.controller.core import CATALOG, Core
from strandline.controller.defining import creating, definitions
from strandline.controller.health import PROBLEMS, Published
from strandline.controller.holding import Hold
from strandline.controller.language.statements import Create, Drop, parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import InstanceItem, Item, Materialization, Source, Table, View
from strandline.errors import (
    AsOfError,
    CollectionError,
    ConfigError,
    DefinitionError,
    FencedError,
    InvalidUsage,
    StoreError,
    Unavailable,
)
from strandline.frontier import MINIMUM
from strandline.instance.tables import Change
from strandline.persist.handles.register import Register
from strandline.persist.shard.patience import Deadline
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.testing.lists.list_engine import updates
from strandline.testing.simulation.places import SideBySide, SimClock
from worlds.meanings import Row, padded
from worlds.system import LARGE, LONG_S, World

T = TypeVar("T")

HURRY_S: Final = (0.0, 0.004, 0.02)
"""How long a tick is waited for that is in a hurry."""
ARRIVES_WITHIN: Final = 200
"""How many tenths of a second what is late may take to arrive, once all is well."""
CATCH_UP_TICKS: Final = 2
"""Within so many ticks after the last fault everything has caught up, and no problem is left."""
WATCH_EVERY_S: Final = 0.04
REFRESHED_WITHIN_MS: Final = 500
"""After so long each view that has a schedule is refreshed at least once, so that it can be read."""


parsed: Final = cache(parse)
"""The few statements of the world, each read once."""


async def create(core: Core, text: str) -> None:
    """Do a CREATE statement."""
    await creating.create(core, cast("Create", parsed(text)))


def scheduled(item: Item) -> bool:
    """Return whether an item is a view with a schedule."""
    return isinstance(item, View) and item.refresh is not None


class Instance:
    """One environment's program, from its start to its end."""

    def __init__(self, world: World, name: str, wanted: Sequence[str], tasks: int) -> None:
        self.world = world
        self.name = name
        self.wanted = wanted
        self.tasks = tasks

    async def live(self) -> None:
        """Work until the faults are over, taking the location over when it is lost; then see all catch up."""
        world = self.world
        await SimClock(world.simulation).sleep(0.03 * world.choose("start", 4))
        while True:
            assembly = world.assembly()
            self._clock = assembly.clock
            try:
                core = await Core.open(assembly, Config(take_over=True, keep_history=world.keep_history), Mode.FULL)
            except (StoreError, Unavailable, FencedError):
                world.marks["open: failed"] += 1
                await SimClock(world.simulation).sleep(0.05)
                continue
            epoch = core.require_writing().epoch
            try:
                await self._work(core)
                return
            except FencedError as error:
                now = (await world.observer.catalog()).epoch
                require("F1", now > epoch, f"epoch {epoch} is fenced, and no other has begun: {error}")
                world.marks["fenced"] += 1
                if world.simulation.calm or world.choose("give up", 3) == 0:
                    return
            finally:
                await self._close(core)
            await SimClock(world.simulation).sleep(0.1)

    async def _close(self, core: Core) -> None:
        try:
            await core.close()
        except (StoreError, Unavailable, FencedError):
            self.world.marks["close: failed"] += 1

    async def _work(self, core: Core) -> None:
        world = self.world
        await self._define(core)
        if self.name in world.pending:
            world.marks["commit: asked again"] += 1
            await self._ask(core, world.pending[self.name])
        while self.tasks or world.busy:
            if world.skewed and world.choose("set the clock", 8) == 0:
                self._clock.skew_ms = world.skew_ms()
            match world.choose("do", 10):
                case 0 if world.choose("hurry", 2):
                    await self._hurry(core)
                case 0 | 1 | 2 | 3:
                    await self._tick(core)
                case 4 | 5:
                    await self._commit(core)
                case 6 if world.choose("drop", 3) == 0:
                    await self._drop(core)
                case 7:
                    await self._define(core)
                case 8:
                    await self._part(core)
                case 9 if world.choose("read", 2):
                    await self._read(core)
                case _:
                    await core.client.clock.sleep(0.05)
            self.tasks = max(0, self.tasks - 1)
        await self._catch_up(core)

    async def _tick(self, core: Core) -> None:
        """Tick; nothing may stand still without a problem."""
        world = self.world
        made, before = await self._made(), await self._uppers(core)
        time = await self._ticked(core, self._watched(core) if world.watched else core.tick())
        after = await self._uppers(core)
        problems, now = core.health.problems(), await self._made()
        there = {name: upper for name, upper in before.items() if made[name] == now.get(name)}  # not defined anew
        if CATALOG in problems:  # a CREATE whose answer was lost may have defined an item that is not known yet
            there = {name: upper for name, upper in there.items() if name in core.catalog.items}
        running = core.require_writing().running
        apart = {name for name in running.going_on() if running.elsewhere(name)}  # a cut makes a replica say it anew
        silent = standing(there, after, time, problems.keys() | apart)
        require("silent", not silent, f"{silent} did not move at tick {time}, and have no problem: {problems}")
        moved = [name for name, upper in after.items() if upper > before.get(name, 0)]
        world.acknowledged += bool(moved)
        if problems:
            world.marks["tick: problems"] += 1
        if world.choose("look", 6) == 0:
            await world.observer.look()

    async def _hurry(self, core: Core) -> int:
        """Tick and do not wait for all: what is late goes on beside what this instance does next."""
        world = self.world
        within_s = world.one_of("within", HURRY_S)
        time = await self._ticked(core, core.tick(deadline=Deadline(core.client.clock, within_s)))
        world.marks["tick: hurried" if not core.require_writing().running.going_on() else "tick: late"] += 1
        return time

    async def _arrive(self, core: Core) -> None:
        """L3: what is late arrives by itself, and what reads it follows, or it has a problem."""
        world = self.world
        time = await self._ticked(core, core.tick(deadline=Deadline(core.client.clock, 0)))
        instance = core.require_writing().running
        for _ in range(ARRIVES_WITHIN):
            if not instance.going_on():
                break
            await core.client.clock.sleep(0.1)
        if (await world.observer.catalog()).epoch != core.require_writing().epoch:
            return  # it was fenced, and its next tick says so
        require("L3", not instance.going_on(), f"{instance.going_on()} are on their way to {time} for ever")
        uppers, problems = await self._uppers(core), core.health.problems()
        said = {*problems, *await world.observer.excused()}
        if TRANSACTIONS in problems:  # it is that of all tables
            said.update(name for name, item in core.catalog.items.items() if isinstance(item, Table))
        excused = said.union(*(core.catalog.downstream(name) for name in said))
        opened = {name for name in uppers if instance.runs(name)}  # what is not, the next tick opens
        silent = {name for name in opened if uppers[name] <= time} - excused
        require("L3", not silent, f"{silent} did not arrive at {time}; problems: {problems}")
        world.marks["arrived"] += 1

    async def _watched(self, core: Core) -> int:
        """Tick; whenever that has gone on for long, every item is said to wait, also those whose turn is to come."""
        world, time = self.world, None
        begun = world.simulation.now_ms

        async def ticking() -> None:
            nonlocal time
            time = await core.tick()

        async def watching() -> None:
            while time is None:
                await core.client.clock.sleep(WATCH_EVERY_S)
                said: dict[str, str] = {}
                core.health.overdue = said.update
                running, elapsed_ms = time is None, world.simulation.now_ms - begun
                items = core.catalog.items.keys()  # an answer that was lost may add to them meanwhile
                await core.watch()
                if running and elapsed_ms >= 1000 * LONG_S:
                    silent = items - said.keys()
                    require("silent", not silent, f"{silent} are not said to wait for a tick of {elapsed_ms} ms")
                    world.marks["tick: long"] += 1

        await SideBySide(world.choose)([ticking(), watching()])
        assert time is not None, "the tick has ended"
        return time

    async def _part(self, core: Core) -> None:
        """Make a part of a tick: also a fenced environment may begin with any of them."""
        match self.world.choose("part", 3):
            case 0:
                await self._ticked(core, core.ingest(step=False))
            case 1:
                await self._ticked(core, core.maintain())
            case _:
                await self._ticked(core, core.deliver())

    async def _ticked(self, core: Core, tick: Coroutine[Any, Any, T]) -> T:
        """Return what a tick, or a part of one, returns; whatever fails in it but the tenure is one item's problem."""
        self.world.marks["tick"] += 1
        try:
            if self._merging and self.world.choose("merge", 2):
                return await self._beside_merges(core, tick)
            return await tick
        except (FencedError, LawBrokenError):
            raise
        except Exception as error:
            raise LawBrokenError("tick", f"it ends with {error!r}") from error

    @property
    def _merging(self) -> bool:
        """Whether large merges run beside ticks: with the patience of this world they may fail a tick, as faults do."""
        return self.world.large_updates < LARGE[0][0] and not self.world.simulation.calm

    async def _beside_merges(self, core: Core, tick: Coroutine[Any, Any, T]) -> T:
        """Return what the tick returns; the large merges are carried out meanwhile, as in every environment."""
        answers: list[T] = []
        before = core.client.metrics.large_compactions

        async def ticking() -> None:
            answers.append(await tick)

        await SideBySide(self.world.choose)([ticking(), core.merge()])
        self.world.marks["merged beside"] += core.client.metrics.large_compactions > before
        return answers[0]

    async def _uppers(self, core: Core) -> dict[str, int]:
        """Return how far each item that is durably defined has come: endpoints as their tasks say."""
        frontiers, catalog = core.require_writing().running.report().frontiers, await self.world.observer.catalog()
        items = catalog.of_kind(Materialization)
        positions = {i.name: frontiers.get(i.name, MINIMUM).at or 0 for i in items}
        return await self.world.observer.uppers(catalog) | positions

    async def _sealed(self) -> list[int]:
        """Return how far each collection has come that is known no further than it was brought."""
        catalog = await self.world.observer.catalog()
        uppers = await self.world.observer.uppers(catalog)
        return [upper for name, upper in uppers.items() if not scheduled(catalog.items[name])]

    async def _made(self) -> dict[str, str]:
        """Return what tells each item from another one that was defined under its name."""
        catalog = await self.world.observer.catalog()
        items = {n: i for n, i in catalog.items.items() if not isinstance(i, InstanceItem)}
        return {n: i.id if isinstance(i, Materialization) else i.shard for n, i in items.items()}

    async def _commit(self, core: Core) -> None:
        """Change one table or both, at one time."""
        world = self.world
        tables = core.require_writing().instance._tables
        if not tables:
            return
        attempt = Attempt(f"{self.name}.{world.number()}", {})
        for name in sorted(tables)[: 1 + world.choose("tables", 2)]:
            rows = [self._row(tables[name].output.schema) for _ in range(1 + world.choose("rows", 2))]
            gone = self._held(name) if world.choose("delete", 3) == 0 else None
            attempt.rows[name] = [(row, 1) for row in rows] + ([(gone, -1)] if gone else [])
        world.observer.attempts.append(attempt)
        world.pending[self.name] = attempt
        await self._ask(core, attempt)

    async def _ask(self, core: Core, attempt: Attempt) -> None:
        """Commit, and ask again under the same token until there is an answer; after a crash, too."""
        world, tables = self.world, core.require_writing().instance._tables
        if not attempt.rows.keys() <= tables.keys():
            return
        changes = []
        for name, rows in attempt.rows.items():
            for diff in (1, -1):
                schema = tables[name].output.schema
                of = [
                    dict(zip(schema.names, padded(row, len(schema.columns)), strict=True))
                    for row, d in rows
                    if d == diff
                ]
                if of:
                    frame = updates(schema, ({**row, "__time": 0, "__diff": diff} for row in of))
                    changes.append(Change(tables[name].output, frame, diff < 0, len(of)))
        for _ in range(3):
            try:
                attempt.time = await core.commit(changes, attempt.token)
                world.acknowledged += 1
                world.marks["commit: done"] += 1
            except InvalidUsage:
                world.marks["commit: absent"] += 1
            except (StoreError, Unavailable, OSError, AsOfError):
                world.marks["commit: unknown"] += 1
                continue
            world.pending.pop(self.name, None)
            return

    def _row(self, schema: Schema) -> Row:
        """Return a new row of a table that has this schema."""
        world = self.world
        return world.choose("k", 3), world.choose("v", 4), world.number()

    def _held(self, table: str) -> Row | None:
        """Return a row that was acknowledged in ``table``, and that no known transaction has deleted."""
        attempts = self.world.observer.attempts
        gone = {row for a in attempts for row, diff in a.rows.get(table, ()) if diff < 0}
        if self.world.choose("deleted before", 4) == 0:
            gone = set()  # it is to be refused
        rows = [
            r for a in attempts if a.time is not None for r, diff in a.rows.get(table, ()) if diff > 0 and r not in gone
        ]
        return self.world.one_of("gone", rows) if rows else None

    async def _define(self, core: Core) -> None:
        """Create what is missing."""
        for text in self.wanted:
            statement = parsed(text)
            if core.catalog.find(statement.name) is not None:
                continue
            try:
                await create(core, text)
                self.world.marks["defined"] += 1
            except DefinitionError:
                self.world.marks["defined: too early"] += 1  # what it reads is not there
            except (StoreError, Unavailable):
                self.world.marks["defined: unknown"] += 1

    async def _drop(self, core: Core) -> None:
        """Drop what nothing reads."""
        items = [
            i
            for n, i in core.catalog.items.items()
            if not isinstance(i, InstanceItem | Table | Source) and not core.catalog.dependents(n)
        ]
        if not items:
            return
        item = self.world.one_of("dropped", items)
        kind = "materialization" if isinstance(item, Materialization) else "materialized view"
        try:
            await definitions.drop(core, Drop(kind, item.name, if_exists=True))
            self.world.marks["dropped"] += 1
        except (StoreError, Unavailable):
            self.world.marks["dropped: unknown"] += 1

    async def _read(self, core: Core) -> None:
        """Ask for what a collection holds now; while it has errors that is refused."""
        world = self.world
        collections = [i for i in core.catalog.items.values() if not isinstance(i, InstanceItem | Materialization)]
        if not collections:
            return
        item = world.one_of("asked for", collections)
        try:
            handle = await core.readers.of(item.name)
            time = await reads.latest(core, [handle])
            _, found = await reads.relations_at(core, [item.name.lower()], time, Hold())
            rows = await core.engine.collect(found[item.name.lower()][1])
        except CollectionError as error:
            rows, since = None, error.since
        except (StoreError, Unavailable, AsOfError, ConfigError, OSError):
            world.marks["read: unknown"] += 1
            return
        else:
            since = None
        now = await world.observer.collected(item)
        if now is not None and now.since <= time:
            held = (
                None
                if rows is None
                else Counter(stored(item, tuple([row[n] for n in item.schema.names])) for row in rows.to_pylist())
            )
            world.observer.answered(item, now, time, held, since)
            world.marks["read: refused" if rows is None else "read"] += 1

    async def _mend(self, core: Core) -> None:
        """Delete the rows that fail, where anything reads them."""
        for name in sorted(core.require_writing().instance._tables):
            now = await self.world.observer.collected(core.catalog.collection(name))
            failing = [row for row in ([] if now is None else now.at(now.upper)) if row[1] == 0]
            if failing:
                attempt = Attempt(f"{self.name}.{self.world.number()}", {name: [(row, -1) for row in failing]})
                self.world.observer.attempts.append(attempt)
                await self._ask(core, attempt)

    async def _catch_up(self, core: Core) -> None:
        """L2: without faults everything is where the last tick was, and has no problem, after so many ticks.

        What waits for rows to be mended, or for what upstream has lost, stands still and says so; it alone.
        """
        world = self.world
        if world.choose("mended", 2):
            await self._mend(core)
        await self._arrive(core)
        later = 0
        if any(scheduled(item) for item in core.catalog.items.values()):
            await self._ticked(core, core.tick())
            later = REFRESHED_WITHIN_MS
        ahead = max(await self._sealed(), default=0)  # another writer may have sealed times to come
        time = await self._ticked(core, core.tick(later + max(ahead, core.require_writing().oracle.now())))
        for _ in range(CATCH_UP_TICKS - 1):
            time = await self._ticked(core, core.tick())
        uppers = await self._uppers(core)
        behind = {name: upper for name, upper in uppers.items() if upper <= time}
        problems, excused = core.health.problems(), await world.observer.excused()
        known = {name for name, upper in uppers.items() if upper > time}  # a schedule knows it up to its next refresh
        require(
            "L2",
            behind.keys() <= excused and excused - known <= problems.keys() <= excused,
            f"{time} after {CATCH_UP_TICKS} ticks: {behind} are behind, {problems}; {excused} cannot follow",
        )
        told = await Published(Register(PROBLEMS, core.client.clock, world.ids, world.consensus), str).read()
        require("L2", told == problems, f"others read {told}, and the problems are {problems}")
        await world.observer.settled(time, excused)
        world.marks["caught up: but for what cannot follow" if excused else "caught up"] += 1
        world.acknowledged += CATCH_UP_TICKS
