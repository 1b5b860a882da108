"""The world of instances apart in which views get other queries while replicas crash, sleep and are cut off.

Two controllers take the location over from each other.  Now and then the one before reaches no store from then on,
and it alone reaches one of the replicas: that one obeys who was succeeded, and runs what is there no longer.

A query may keep the columns of the one before, so that history, indexes and endpoints go on; or have others, and then
what reads the view follows at the same time.  What waits to be put in place is taken back now and then.

The laws are those of views, said of each query for the times that are its own.  K2: what goes on is, at each time, what
one of its queries says, and no later time is of an earlier query.  Y1: a query is put in place once it has come as far
as the one before, and the tick that does so ends at a time that is of it.  Y2: once all is well, nothing waits to be
put in place, and each view is of its last query.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from laws.broken import require
from laws.views import Observer, own
from strandline.controller.assembly import Assembly
from strandline.controller.core import Core
from strandline.controller.defining.changing import replacing
from strandline.controller.language.statements import Drop
from strandline.controller.location.catalog import KEY
from strandline.controller.location.items import InstanceItem, Materialization, Source, Table, View
from strandline.controller.location.version import successors
from strandline.errors import DefinitionError, Disconnected, StoreError, Unavailable
from strandline.frontier import as_time
from strandline.persist.client import PersistClient
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import run_sync
from strandline.testing.simulation.places import SimBlob, SimClock, SimConsensus, SimIds
from worlds import apart
from worlds.apart import FOCI, REPLICAS, ApartWorld, Controller, SimCarrier
from worlds.instance import parsed
from worlds.meanings import AGAIN, VIEWS, Wanted, meant
from worlds.outside import ExposedBlob, ExposedConsensus, Weather
from worlds.system import FailingEngine
from worlds.whole import CALM_AFTER, DDL

T = TypeVar("T")

CHOSEN: Final = {"replicas": 1, "instances": 1}
"""What is not left to chance: there are two replicas and two controllers."""
SETTLED_WITHIN: Final = 40
"""Within so many ticks after the last fault all that waits is put in place."""
QUERIES: Final = {name: (*([VIEWS[name]] if name in VIEWS else []), *again) for name, again in AGAIN.items()}
"""The queries of each view, by its name."""
FAMILIES: Final = (("sums", "many"), ("extremes", "spans"), ("linear",), ("sums", "many", "extremes", "spans"))
"""What views a history has."""


class Remembering(Observer):
    """An observer that knows which queries each shard was of."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._was: dict[str, list[Wanted]] = defaultdict(list)
        self._placed: dict[str, str] = {}
        self.stood: dict[int, dict[str, int]] = defaultdict(dict)
        """By the epoch of a controller: how far the views had come that its tick may put other queries in place of."""

    def told(self, key: str) -> None:
        """Take note of a catalog that is durable."""
        if key == KEY:
            catalog = run_sync(self.catalog())
            for view in catalog.of_kind(View):
                if self._placed.get(view.name, view.shard) != view.shard:
                    now, least = run_sync(self.collected(view)), self.stood[catalog.epoch].get(view.name.lower(), 0)
                    come = 0 if now is None else now.upper
                    require("Y1", come >= least, f"{view.name} is in place at {come}, and was at {least} before")
                self._placed[view.name] = view.shard
                wanted, known = meant(view.name, view.sql), self._was[view.shard]
                if known[-1:] != [wanted]:
                    known.append(wanted)

    def _queries(self, view: View) -> Sequence[Wanted]:
        """See `Observer._queries`."""
        return self._was[view.shard]

    async def newest(self, law: str, view: View, time: int) -> bool:
        """See that a view is of its last query at ``time``; return whether it can be read there, with what it reads.

        False also where a vandal may have sealed that time: what the view lacks there comes with its next one.
        """
        if self._spoilt(view, time):
            return False
        catalog = await self.catalog()
        inputs = {}
        for name, each in self._read(view).items():
            read = await self.collected(catalog.collection(each))
            if read is None or not read.since <= time < read.upper:
                return False
            inputs[name] = read
        now = await self.collected(view)
        if now is None or not now.since <= time < now.upper:
            return False
        query = meant(view.name, view.sql)
        found, wanted = own(now.at(time)), own(Counter(query.meaning(self._held(query, inputs, time))))
        require(law, found == wanted, f"{view.name} at {time} is {found}, and {view.sql!r} says {wanted}")
        return True


class ReplacedWorld(ApartWorld):
    """One run, in which views get other queries."""

    observer: Remembering
    observing: type[Remembering] = Remembering

    def __init__(self, choose: Any, *, calm_after: int) -> None:
        super().__init__(choose, calm_after=calm_after)
        observing = PersistClient(SimClock(self.simulation), SimIds(), self.blob, self.consensus)
        engine = ListEngine(self.blob, self.queries)
        self.observer = self.observing(observing, engine, self.upstreams, self.places)
        self.consensus.told = self.observer.told
        self.apart: list[Weather] = []
        """What keeps each process of a controller, in the order of their starts, from the stores."""
        self.alone: dict[str, Weather] = {}
        """By the address of a replica, whose controller alone reaches it."""
        self.owners: list[tuple[Weather, str, SimCarrier]] = []

    def assembly(self) -> Assembly:
        """See `World.assembly`."""
        own = Weather()
        self.apart.append(own)
        if len(self.apart) > 1 and not self.simulation.calm and self.choose("torn", 2):
            self._tear(self.apart[-2])
        blob = SimBlob(ExposedBlob(ExposedBlob(self.blob, self.weather), own))
        consensus = SimConsensus(ExposedConsensus(ExposedConsensus(self.consensus, self.weather, self.ambushes), own))
        found = super().assembly()
        engine = FailingEngine(self, blob)
        return replace(found, blob=blob, consensus=consensus, engine=engine, dial=partial(self._reach, own))

    async def _reach(self, own: Weather, address: str) -> SimCarrier:
        if self.alone.get(address, own) is not own:
            raise Disconnected("it cannot be reached")
        carrier = await self._dial(address)
        self.owners.append((own, address, carrier))
        return carrier

    def _tear(self, own: Weather) -> None:
        """Let a controller reach one replica alone, and no store."""
        address = f"{self.one_of('reached', REPLICAS)}:1"
        own.out, self.alone[address] = True, own
        for other, where, carrier in self.owners:
            if where == address and other is not own:
                carrier.cut()
        self.marks["torn"] += 1

    async def mend(self) -> None:
        """Put together what was torn apart, again and again; in the end all is well."""
        clock = SimClock(self.simulation)
        while not self.simulation.calm:
            await clock.sleep(0.05 * (1 + self.choose("whole", 8)))
            self._mend()
        self._mend()
        self.busy.discard("mend")

    def _mend(self) -> None:
        for each in self.apart:
            each.out = False
        self.alone.clear()

    def controller(self, name: str, wanted: list[str], tasks: int) -> Replacing:
        """See `ApartWorld.controller`."""
        return Replacing(self, name, wanted, tasks)


class Replacing(Controller):
    """An environment's program, which has views replaced."""

    queries: Mapping[str, Sequence[Wanted]] = QUERIES

    async def _define(self, core: Core) -> None:
        """See `Instance._define`."""
        await super()._define(core)
        await self._replace(core)

    async def _part(self, core: Core) -> None:
        """See `Instance._part`."""
        await (self._replace(core) if self.world.choose("replace", 2) else super()._part(core))

    async def _commit(self, core: Core) -> None:
        """See `Instance._commit`."""
        await super()._commit(core)
        if self.world.choose("replace", 3) == 0:
            await self._replace(core)

    async def _read(self, core: Core) -> None:
        """See `Instance._read`; no reader of a history waits until a view can be read that was replaced just now."""
        for view in core.catalog.of_kind(View):
            state = core.client.known(view.shard)
            if view.begins and (state is None or as_time(state.upper) <= view.begins):
                return
        await super()._read(core)

    async def _replace(self, core: Core) -> None:
        """Have one view or two get other queries, or take back what waits."""
        world = self.world
        there = [name for name in QUERIES if core.catalog.find(name) is not None]
        if not there:
            return
        waiting = successors(core.catalog)
        try:
            await core.settle()
            if waiting and world.choose("take back", 4) == 0:
                name = world.one_of("taken back", [each.name for each in waiting])
                await replacing.drop(core, parsed(f"DROP MATERIALIZED VIEW `{name}`"))
                world.marks["replacing: taken back"] += 1
                return
            names = {world.one_of("replaced", there) for _ in range(1 + world.choose("several", 2))}
            texts = [self._text(core.catalog.one(name, View, "view")) for name in sorted(names)]
            await replacing.replace_views(core, [parsed(text) for text in texts])
            world.marks["replacing"] += 1
        except DefinitionError:
            world.marks["replacing: refused"] += 1
        except (StoreError, Unavailable):
            world.marks["replacing: unknown"] += 1

    def _text(self, view: View) -> str:
        query = self.world.one_of("query", self.queries[view.name])
        place = f" IN INSTANCE {view.instance}" if view.instance else ""
        return f"CREATE OR REPLACE MATERIALIZED VIEW {view.name}{place} AS {query.sql}"

    async def _drop(self, core: Core) -> None:
        """See `Instance._drop`."""
        items = [
            item
            for name, item in core.catalog.items.items()
            if not isinstance(item, InstanceItem | Table | Source) and not core.catalog.dependents(name)
        ]
        if not items:
            return
        item = self.world.one_of("dropped", items)
        kind = "materialization" if isinstance(item, Materialization) else "materialized view"
        try:
            await replacing.drop(core, Drop(kind, item.name, if_exists=True))
            self.world.marks["dropped"] += 1
        except DefinitionError:
            self.world.marks["dropped: follows"] += 1
        except (StoreError, Unavailable):
            self.world.marks["dropped: unknown"] += 1

    async def _ticked(self, core: Core, tick: Coroutine[Any, Any, T]) -> T:
        """See `Instance._ticked`.  Y1."""
        world, before = self.world, {view.name: view for view in core.catalog.of_kind(View)}
        if core.health.time is not None:
            stood = {each.replaces: await self._stands(core, each.replaces) for each in successors(core.catalog)}
            last = core.health.time + 1
            world.observer.stood[core.require_writing().epoch] = {name: min(to, last) for name, to in stood.items()}
        found = await super()._ticked(core, tick)
        catalog = await world.observer.catalog()
        if catalog.epoch != core.require_writing().epoch:
            return found
        for view in [] if isinstance(found, bool) or not isinstance(found, int) else catalog.of_kind(View):
            was = before.get(view.name)
            if was is None or (was.sql, was.shard) == (view.sql, view.shard):
                continue
            world.marks["replaced: goes on" if was.shard == view.shard else "replaced: anew"] += 1
            world.marks["replaced: read at once"] += await world.observer.newest("Y1", view, found)
        return found

    async def _stands(self, core: Core, name: str) -> int:
        """Return how far the view ``name`` has come."""
        now = await self.world.observer.collected(core.catalog.one(name, View, "view"))
        return 0 if now is None else now.upper

    async def _catch_up(self, core: Core) -> None:
        """See `Instance._catch_up`.  Y2."""
        world = self.world
        for _ in range(SETTLED_WITHIN):
            if not successors(core.catalog):
                break
            await self._ticked(core, core.tick())
            await core.client.clock.sleep(0.05)
        else:
            waiting = [each.name for each in successors(core.catalog)]
            require(
                "Y2", False, f"{waiting} wait {SETTLED_WITHIN} ticks after the last fault: {core.health.problems()}"
            )
        await super()._catch_up(core)
        for view in (await world.observer.catalog()).of_kind(View):
            now = await world.observer.collected(view)
            if now is not None and now.upper:
                world.marks["replaced: at the end"] += await world.observer.newest("Y2", view, now.upper - 1)


def project(world: ApartWorld) -> list[str]:
    """Choose the definitions of this history, in an order in which they can be made."""
    views = world.one_of("family", FAMILIES)
    options = "upstream 'u1'" + (", on_error 'continue'" if world.choose("in spite", 3) == 0 else "")
    made = [f"CREATE TABLE t1 ({DDL['t1']})"]
    if "extremes" in views:
        made.append(f"CREATE SOURCE u1 ({DDL['u1']}) USING list OPTIONS ({options})")
    made += [f"CREATE MATERIALIZED VIEW {name} AS {QUERIES[name][0].sql}" for name in views]
    if world.choose("endpoint", 2):
        name = world.one_of("bound", [name for name in views if QUERIES[name][0].key])
        kind, key = world.one_of("kind", ("checkpointing", "staging")), ", ".join(QUERIES[name][0].key)
        made.append(f"CREATE MATERIALIZATION m INTO {kind} OPTIONS (at {kind!r}) AS {name} KEY ({key})")
    return made


def play(seed: int, kind: type[ReplacedWorld] = ReplacedWorld) -> ReplacedWorld:
    """Make the history that ``seed`` is, to its end.  What it breaks is raised, with how to make it again."""
    rng = random.Random(seed)
    focus, calm_after = FOCI[int(rng.random() * len(FOCI))], CALM_AFTER[int(rng.random() * 3)]
    world = kind(Seeded(rng, focus), calm_after=calm_after)
    choose = world.choose
    world.choose = world.simulation.choose = lambda label, n: CHOSEN[label] if label in CHOSEN else choose(label, n)
    try:
        apart.populate(world, project)
        world.busy.add("mend")
        world.simulation.spawn("mend", lambda _: world.mend())
        world.run()
    except Exception as error:
        error.add_note(f"replay this history: worlds.{world.__module__.rpartition('.')[2]}.play({seed})")
        raise
    return world
