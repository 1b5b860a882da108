"""The world of the whole system: environments over simulated stores, upstreams and endpoints, and laws that watch.

One seed is one history.  One or two *instances* open the same location, each whenever it likes, and take it over from
the other; a paused one wakes up as a zombie.  An instance does what a program does: it defines tables, sources, views
of every kind and materializations, commits to tables, drops what it has defined, and ticks.  Outside, messages come,
upstreams go back for a while, endpoints and stores are out for longer than persist's patience; some write into views
that are not theirs.  Each I/O meets one of the kernel's fates.

When the faults are over, whichever instance is left ticks `CATCH_UP_TICKS` more times: then nothing may stand still and
no problem may be left, without anybody's help.

Source: issue "a world for the whole system"; craft page "reliability" (3.1).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Final, TypeVar
from unittest import mock

from laws.broken import LawBrokenError, judged, require
from laws.views import FOREIGN, Attempt, Observer, standing
from strandline.environment import core as core_module
from strandline.environment import definitions, retention
from strandline.environment.assembly import Assembly
from strandline.environment.catalog import Materialization, Source, Table, View
from strandline.environment.config import Config, Mode
from strandline.environment.core import Core
from strandline.environment.statements import Drop, parse
from strandline.errors import (
    AsOfError,
    DefinitionError,
    FencedError,
    InvalidUsage,
    StoreError,
    Unavailable,
)
from strandline.frontier.antichain import Frontier
from strandline.instance.commands import RunIngestion
from strandline.instance.tables import Change
from strandline.persist import machine, patience, register, trace
from strandline.persist.client import PersistClient
from strandline.persist.plane import StageRequest
from strandline.sources.reader import SourceReader
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.unreliable import Choose
from strandline.testing.choices import FAULT, Seeded
from strandline.testing.doubles import HandClock, in_turn
from strandline.testing.list_analyst import ListAnalyst
from strandline.testing.list_engine import ListEngine, updates
from strandline.testing.list_source import ListReader
from strandline.testing.simulation import (
    START_MS,
    Fate,
    IoPoint,
    SideBySide,
    SimBlob,
    SimClock,
    SimConsensus,
    SimIds,
    Simulation,
    run_sync,
)
from worlds.meanings import INPUTS, TABLE, VIEWS, Row, define, queries
from worlds.outside import SESSIONS, ExposedBlob, ExposedConsensus, FickleUpstream, Place, SimDriver, SimReader, Weather

T = TypeVar("T")

CALM_AFTER: Final = (100, 200, 400)
"""After how many steps the faults of a history end; which of these is part of the seed."""
STEPS_MAX: Final = 20_000
CATCH_UP_TICKS: Final = 2
"""Within so many ticks after the last fault everything has caught up, and no problem is left."""
TASKS: Final = (3, 5, 8)
"""How many things an instance does besides."""
PATIENCE: Final = (64, 4, 2, 2)
ROLLUPS_EVERY: Final = (2, 8, 13)
FANS: Final = (2, 3, 8)
KEEP_HISTORY: Final = ("1 hour", "100 milliseconds", "0 seconds")
TICKS_BETWEEN: Final = (16, 1, 3)
"""How often holds are moved."""
INLINE_BYTES: Final = (100, 200_000)
FOCI: Final = (
    "",
    "",
    "consensus.compare_and_set",
    "consensus.compare_and_set",
    "consensus.compare_and_set_many",
    "blob.get",
    "upstream.read",
    "upstream.commit",
    "checkpointing.StartCommit",
    "staging.StartCommit",
    "staging.Acknowledge",
    "direct.Store",
    "engine.stage",
    "engine.evaluate",
)
ACKNOWLEDGED_MIN: Final = 2
"""W1: a history in which less than this was acknowledged says nothing, and counts as failed."""
TABLES: Final = ("t1", "t2")
SOURCES: Final = ("u1", "u2")
PARTITIONS: Final = ("p", "q")
PLACES: Final = ("checkpointing", "staging", "direct")
DDL: Final = {name: ", ".join(f"{c.name} {c.type}" for c in schema) for name, schema in INPUTS.items()}


parsed: Final = cache(parse)
"""The few statements of the world, each read once."""


class OneHost:
    """`Processes` of one host on which every incarnation of an instance is a process of its own."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def host(self) -> str:
        """Return the host's name."""
        return "host"

    def boot(self) -> str:
        """Return the host's start."""
        return "boot"

    def own(self) -> int:
        """Return this process's id."""
        return self._pid

    def started_ms(self, pid: int, boot: str) -> int | None:
        """Return when a process started."""
        return pid


class Connectors:
    """Sources of one instance."""

    def __init__(self, world: World, *, simulated: bool = True) -> None:
        self._world = world
        self._simulated = simulated

    def check(self, name: str, connector: str, options: object) -> None:
        """Accept everything."""

    async def reader(self, source: RunIngestion, client: PersistClient, epoch: int) -> SourceReader:
        """Return the reader of ``source``."""
        world = self._world
        upstream = world.upstreams[source.options["upstream"]]
        if not self._simulated:
            return ListReader(upstream)
        return SimReader(upstream, lambda resume: run_sync(world.observer.may_forget(source.output.shard, resume)))


class World:
    """One run's stores, upstreams, endpoints and observer."""

    def __init__(self, choose: Choose, *, calm_after: int | None = None, fates: Sequence[Fate] = tuple(Fate)) -> None:
        self.simulation = Simulation(choose, fates, calm_after, STEPS_MAX)
        self.choose = self.simulation.choose
        self.blob, self.consensus = MemoryBlob(), MemoryConsensus()
        self.weather = Weather()
        self.upstreams = {name: FickleUpstream() for name in SOURCES}
        self.places = {name: Place() for name in PLACES}
        self.ids = SimIds()
        self.marks: Counter[str] = Counter()
        self.busy = {"outside"}  # who still does what an environment has to bear
        self.pending: dict[str, Attempt] = {}  # by instance: what it does not know to be committed
        self.processes = 0
        self.serial = 0
        self.acknowledged = 0
        self.instances = 1
        self.patience = PATIENCE[0]
        self.rollup_every = ROLLUPS_EVERY[-1]
        self.fan = FANS[-1]
        self.inline_bytes = INLINE_BYTES[-1]
        self.keep_history = KEEP_HISTORY[0]
        self.ticks_between = TICKS_BETWEEN[0]
        self.queries = queries()
        still = SimClock(self.simulation)
        outside = PersistClient(still, SimIds(), self.blob, self.consensus)
        self.observer = Observer(outside, ListEngine(self.blob, self.queries), self.upstreams, self.places)

    def one_of(self, label: str, options: Sequence[T]) -> T:
        """Choose one of ``options``."""
        return options[self.choose(label, len(options))]

    def number(self) -> int:
        """Return a number that was not given out before."""
        self.serial += 1
        return self.serial

    def client(self, clock: SimClock) -> PersistClient:
        """Return the client of a new process that is no environment."""
        blob = SimBlob(ExposedBlob(self.blob, self.weather))
        consensus = SimConsensus(ExposedConsensus(self.consensus, self.weather))
        return PersistClient(clock, self.ids, blob, consensus, grace_ms=None)

    def assembly(self) -> Assembly:
        """Return what a new process is given: its own engine and clock, and the way to all that is durable."""
        self.processes += 1
        blob = SimBlob(ExposedBlob(self.blob, self.weather))
        return Assembly(
            clock=SimClock(self.simulation),
            ids=self.ids,
            blob=blob,
            consensus=SimConsensus(ExposedConsensus(self.consensus, self.weather)),
            engine=FailingEngine(self, ListEngine(blob, self.queries)),
            analyst=ListAnalyst(),
            connectors=Connectors(self),
            drivers=lambda endpoint, options: SimDriver(self.places[options["at"]], SESSIONS[endpoint]),
            together=SideBySide(self.choose),
            processes=OneHost(self.processes),
            address=None,
            opened=ExitStack(),
        )

    @contextmanager
    def constants(self) -> Iterator[None]:
        """Let the limits be this history's, and the definitions be planned once."""
        with (
            mock.patch.object(machine, "CAS_RETRIES_MAX", self.patience),
            mock.patch.object(patience, "ATTEMPTS_MAX", self.patience),
            mock.patch.object(register, "RETRIES_MAX", self.patience),
            mock.patch.object(trace, "FAN", self.fan),
            mock.patch.object(trace, "INLINE_BYTES_FULL", self.inline_bytes),
            mock.patch.object(retention, "TICKS_BETWEEN", self.ticks_between),
            mock.patch.object(core_module, "define", define),
            mock.patch.object(definitions, "define", define),
        ):
            yield

    def run(self) -> None:
        """Drive the history to its end, then look at everything once more.  Raises `LawBrokenError` or what broke."""
        with self.constants():
            with judged():
                self.simulation.drive()
            run_sync(self.observer.look())
        require("W1", self.acknowledged >= ACKNOWLEDGED_MIN, f"only {self.acknowledged} things were acknowledged")


class FailingEngine:
    """A `ListEngine` that fails, now and then, as a lost executor or a full disk does; ``evaluate`` takes a while."""

    def __init__(self, world: World, inner: ListEngine) -> None:
        self._world = world
        self._inner = inner

    def __getattr__(self, name: str):
        return getattr(self._inner, name)

    async def evaluate(self, node, frames, *, origin=0):
        """See `Engine.evaluate`."""
        await self._fail("engine.evaluate")
        return await self._inner.evaluate(node, frames, origin=origin)

    async def stage(self, rows, request):
        """See `Engine.stage`."""
        await self._fail("engine.stage")
        return await self._inner.stage(rows, request)

    async def _fail(self, site: str) -> None:
        if self._world.simulation.calm:
            return
        match self._world.choose(FAULT + site, 4):
            case 1:
                raise Unavailable(f"{site}: an executor was lost")
            case 2:
                raise OSError(f"{site}: the disk is full")
            case 3:
                await self._world_sleeps()

    async def _world_sleeps(self) -> None:
        await SimClock(self._world.simulation).sleep(0.05)


def play(seed: int) -> World:
    """Make the history that ``seed`` is, to its end.  What it breaks is raised, with how to make it again."""
    rng = random.Random(seed)
    world = World(Seeded(rng, FOCI[int(rng.random() * len(FOCI))]), calm_after=CALM_AFTER[int(rng.random() * 3)])
    try:
        populate(world)
        world.run()
    except Exception as error:
        error.add_note(f"replay this history: make sim SEED={seed}")
        raise
    return world


def populate(world: World) -> None:
    """Choose what this history is like, and start who takes part in it."""
    world.patience = world.one_of("patience", PATIENCE)
    world.rollup_every = world.one_of("rollups", ROLLUPS_EVERY)
    world.fan = world.one_of("fan", FANS)
    world.inline_bytes = world.one_of("inline", INLINE_BYTES)
    world.keep_history = world.one_of("history", KEEP_HISTORY)
    world.ticks_between = world.one_of("letting go", TICKS_BETWEEN)
    world.instances = 1 + world.choose("instances", 2)
    for upstream in world.upstreams.values():
        upstream.produce("p", *(world.choose("value", 4) for _ in range(2)))
    wanted = project(world)
    tasks = world.one_of("tasks", TASKS)
    if world.choose("prepared", 4):
        run_sync(prepare(world, wanted))
    for n in range(world.instances):
        name = f"i{n}"
        world.simulation.spawn(name, lambda _, name=name: Instance(world, name, wanted, tasks).live())
    world.simulation.spawn("outside", lambda _: outside(world))
    if world.choose("vandal", 3) == 0:
        world.busy.add("vandal")
        world.simulation.spawn("vandal", lambda _: vandal(world))


async def prepare(world: World, wanted: Sequence[str]) -> None:
    """Define everything in fair weather, so that the history begins where it is interesting."""
    assembly = world.assembly()
    plain = ListEngine(world.blob, world.queries)
    still = HandClock(START_MS - 1_000)
    calm = replace(
        assembly,
        clock=still,
        blob=world.blob,
        consensus=world.consensus,
        engine=plain,
        connectors=Connectors(world, simulated=False),
        together=in_turn,
    )
    with world.constants():
        core = await Core.open(calm, Config(take_over=True), Mode.FULL)
        for text in wanted:
            await create(core, text)
        await core.close()


async def create(core: Core, text: str) -> None:
    """Do a CREATE statement."""
    statement = parsed(text)
    await getattr(definitions, _CREATES[type(statement).__name__])(core, statement)


def project(world: World) -> list[str]:
    """Choose the definitions of this history, in an order in which they can be made."""
    views = {world.one_of("view", tuple(VIEWS)) for _ in range(2 + world.choose("views", 2))}
    views |= {below for name in views for below in VIEWS[name].inputs if below in VIEWS}
    made = []
    for name, schema in INPUTS.items():
        if any(name in VIEWS[view].inputs for view in views) or name == "t1":
            kind = f"TABLE {name} ({DDL[name]})" if schema is TABLE else ""
            made.append(f"CREATE {kind or f'SOURCE {name} ({DDL[name]}) USING list OPTIONS (upstream {name!r})'}")
    made += [f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name].sql}" for name in VIEWS if name in views]
    keyed = [name for name in VIEWS if name in views and VIEWS[name].key]
    kinds = PLACES if world.instances == 1 else PLACES[:2]  # what is written directly has no fence against a zombie
    for kind in kinds:
        if keyed and world.choose("endpoint", 2):
            name = world.one_of("bound", keyed)
            key = ", ".join(VIEWS[name].key)
            made.append(f"CREATE MATERIALIZATION m_{kind} INTO {kind} OPTIONS (at {kind!r}) AS {name} KEY ({key})")
    return made


async def outside(world: World) -> None:
    """Let messages come, upstreams go back, endpoints and stores be out; in the end all is well."""
    clock = SimClock(world.simulation)
    while not world.simulation.calm:
        await clock.sleep(0.02 * (1 + world.choose("wait", 8)))
        name = world.one_of("upstream", SOURCES)
        values = [world.choose("value", 4) for _ in range(world.choose("messages", 3))]
        await IoPoint(
            "outside",
            (),
            lambda n=name, v=values: world.upstreams[n].produce(world.one_of("partition", PARTITIONS), *v),
            (Fate.DONE,),
        )
        world.weather.out = world.choose(FAULT + "outage", 4) == 1
        upstream = world.upstreams[world.one_of("fickle", SOURCES)]
        upstream.down = world.choose(FAULT + "upstream down", 3) == 1
        upstream.hidden = world.choose(FAULT + "upstream back", 3)
        place = world.places[world.one_of("place", PLACES)]
        place.down = world.choose(FAULT + "endpoint down", 3) == 1
    world.weather.out = False
    for upstream in world.upstreams.values():
        upstream.down, upstream.hidden = False, 0
    for place in world.places.values():
        place.down = False
    world.busy.discard("outside")


async def vandal(world: World) -> None:
    """Write rows into views that are none of theirs, under the epoch of whoever writes there."""
    clock = SimClock(world.simulation)
    client = world.client(clock)
    while not world.simulation.calm:
        await clock.sleep(0.05 * (1 + world.choose("wait", 8)))
        views = (await world.observer.catalog()).of_kind(View)
        if not views:
            continue
        view = world.one_of("spoilt", views)
        try:
            writer = await client.writer(view.shard, world.observer.epoch, schema=view.schema.ddl)
            lower = writer.state.upper.at
            if lower:  # neither fresh nor dropped
                world.observer.spoilt[view.shard].add(lower)
                row = {c.name: "foreign" if c.type == "string" else FOREIGN + world.number() for c in view.schema}
                request = StageRequest(view.shard, view.schema, lower, lower + 1, "", inline_bytes_max=1 << 14)
                rows = updates(view.schema, [row | {"__time": lower, "__diff": 1}])
                staged = await ListEngine(world.blob).stage(rows, request)
                await writer.compare_and_append([staged], Frontier(lower), Frontier(lower + 1))
                world.marks["vandal"] += 1
        except (StoreError, Unavailable, FencedError, InvalidUsage):
            continue
    world.busy.discard("vandal")


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
            try:
                core = await Core.open(
                    world.assembly(), Config(take_over=True, keep_history=world.keep_history), Mode.FULL
                )
            except (StoreError, Unavailable, FencedError):
                world.marks["open: failed"] += 1
                await SimClock(world.simulation).sleep(0.05)
                continue
            try:
                await self._work(core)
                return
            except FencedError:
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
            match world.choose("do", 10):
                case 0 | 1 | 2 | 3:
                    await self._tick(core)
                case 4 | 5:
                    await self._commit(core)
                case 6 if world.choose("drop", 3) == 0:
                    await self._drop(core)
                case 7:
                    await self._define(core)
                case 8:
                    await self._ticked(core.ingest(step=False))
                case _:
                    await core.client.clock.sleep(0.05)
            self.tasks = max(0, self.tasks - 1)
        await self._catch_up(core)

    async def _tick(self, core: Core) -> None:
        """Tick; nothing may stand still without a problem."""
        world = self.world
        before = await self._uppers(core)
        time = await self._ticked(core.tick())
        after = await self._uppers(core)
        silent = standing(before, after, core.all_problems())
        require(
            "silent", not silent, f"{silent} did not move at tick {time}, and have no problem: {core.all_problems()}"
        )
        moved = [name for name, upper in after.items() if upper > before.get(name, 0)]
        world.acknowledged += bool(moved)
        if core.all_problems():
            world.marks["tick: problems"] += 1
        if world.choose("look", 6) == 0:
            await world.observer.look()

    async def _ticked(self, tick: Coroutine[Any, Any, int]) -> int:
        """Return the tick's time; whatever fails in it but the tenure is one item's problem."""
        self.world.marks["tick"] += 1
        try:
            return await tick
        except (FencedError, LawBrokenError):
            raise
        except Exception as error:
            raise LawBrokenError("tick", f"it ends with {error!r}") from error

    async def _uppers(self, core: Core) -> dict[str, int]:
        """Return how far each item has come: collections as is durable, endpoints as their tasks say."""
        tasks = core.require_writing().instance.tasks
        items = core.catalog.of_kind(Materialization)
        positions = {i.name: tasks[i.name].status.position if i.name in tasks else 0 for i in items}
        return await self.world.observer.uppers(core.catalog) | positions

    async def _commit(self, core: Core) -> None:
        """Change one table or both, at one time."""
        world = self.world
        tables = core.require_writing().instance.tables
        if not tables:
            return
        attempt = Attempt(f"{self.name}.{world.number()}", {})
        for name in sorted(tables)[: 1 + world.choose("tables", 2)]:
            rows = [self._row() for _ in range(1 + world.choose("rows", 2))]
            gone = self._held(name) if world.choose("delete", 3) == 0 else None
            attempt.rows[name] = [(row, 1) for row in rows] + ([(gone, -1)] if gone else [])
        world.observer.attempts.append(attempt)
        world.pending[self.name] = attempt
        await self._ask(core, attempt)

    async def _ask(self, core: Core, attempt: Attempt) -> None:
        """Commit, and ask again under the same token until there is an answer; after a crash, too."""
        world, tables = self.world, core.require_writing().instance.tables
        if not attempt.rows.keys() <= tables.keys():
            return
        changes = []
        for name, rows in attempt.rows.items():
            for diff in (1, -1):
                of = [dict(zip(TABLE.names, row, strict=True)) for row, d in rows if d == diff]
                if of:
                    frame = updates(TABLE, ({**row, "__time": 0, "__diff": diff} for row in of))
                    changes.append(Change(tables[name], frame, diff < 0, len(of)))
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

    def _row(self) -> Row:
        world = self.world
        return world.choose("k", 3), world.choose("v", 4), world.number()

    def _held(self, table: str) -> Row | None:
        """Return a row that was acknowledged in ``table``, that nobody has deleted as far as is known."""
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
            if not isinstance(i, Table | Source) and not core.catalog.dependents(n)
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

    async def _catch_up(self, core: Core) -> None:
        """L2: without faults everything is where the last tick was, and has no problem, after so many ticks."""
        world = self.world
        time = 0
        for _ in range(CATCH_UP_TICKS):
            time = await self._ticked(core.tick())
        uppers = await self._uppers(core)
        behind = {name: upper for name, upper in uppers.items() if upper <= time}
        problems = core.all_problems()
        require(
            "L2", not behind and not problems, f"{time} after {CATCH_UP_TICKS} ticks: {behind} are behind, {problems}"
        )
        await world.observer.settled()
        world.marks["caught up"] += 1
        world.acknowledged += CATCH_UP_TICKS


_CREATES: Final = {
    "CreateTable": "create_table",
    "CreateSource": "create_source",
    "CreateView": "create_view",
    "CreateMaterialization": "create_materialization",
}


def law_of(error: Exception) -> str:
    """Return the law that a history broke; empty if it ended otherwise."""
    return error.law if isinstance(error, LawBrokenError) else ""
