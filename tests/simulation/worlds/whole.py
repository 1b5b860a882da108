"""The world of the whole system: environments over simulated stores, upstreams and endpoints, and laws that watch.

One seed is one history.  One or two *instances* open the same location, each whenever it likes, and take it over from
the other; a paused one wakes up as a zombie.  An instance does what a program does: it defines tables, sources, views
of every kind and materializations, commits to tables, drops what it has defined, and ticks.  Outside, messages come,
upstreams go back for a while, endpoints and stores are out for longer than persist's patience; some write into views
that are not theirs.  Each I/O meets one of the kernel's fates.

When the faults are over, whichever instance is left ticks `CATCH_UP_TICKS` more times: then nothing may stand still and
no problem may be left, without an operator's help.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from laws.broken import LawBrokenError
from laws.views import FOREIGN
from strandline.controller.core import Core
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import View
from strandline.errors import FencedError, InvalidUsage, StoreError, Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import StageRequest
from strandline.persist.shard.codec import decode_diff
from strandline.store.clock import Inline
from strandline.store.protocols import CompareAndSet
from strandline.testing.doubles import HandClock, in_turn
from strandline.testing.lists.list_engine import ListEngine, updates
from strandline.testing.simulation.exploration import FAULT, Seeded
from strandline.testing.simulation.kernel import START_MS, Fate, IoPoint, run_sync
from strandline.testing.simulation.places import SimClock
from worlds.instance import Instance, create
from worlds.meanings import INPUTS, TABLE, VIEWS
from worlds.outside import FickleUpstream
from worlds.system import PARTITIONS, PLACES, SOURCES, Connectors, World

CALM_AFTER: Final = (100, 200, 400)
"""After how many steps the faults of a history end; which of these is part of the seed."""
TASKS: Final = (3, 5, 8)
"""How many things an instance does besides."""
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
SCHEDULES: Final = (
    "EVERY '100 ms'",
    "EVERY '30 ms' ALIGNED TO '1970-01-01'",
    "EVERY '400 ms' ALIGNED TO '1970-01-01', AT CREATION",
    "EVERY '400 ms' ALIGNED TO '1970-01-01'",
    "AT CREATION",
)
DDL: Final = {name: ", ".join(f"{c.name} {c.type}" for c in schema) for name, schema in INPUTS.items()}


def play(seed: int, *, watched: bool = False) -> World:
    """Make the history that ``seed`` is, to its end.  What it breaks is raised, with how to make it again.

    ``watched``: it has one instance, which looks beside every tick whether it runs long.
    """
    rng = random.Random(seed)
    world = World(Seeded(rng, FOCI[int(rng.random() * len(FOCI))]), calm_after=CALM_AFTER[int(rng.random() * 3)])
    world.watched = watched
    try:
        populate(world)
        world.run()
    except Exception as error:
        error.add_note(f"replay this history: make sim SEED={seed}")
        raise
    return world


def populate(world: World) -> None:
    """Choose what this history is like, and start the actors in it."""
    world.choose_limits()
    world.instances = 1 if world.watched else 1 + world.choose("instances", 2)
    for upstream in world.upstreams.values():
        upstream.retracts = world.choose("takes back", 3) > 0
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
        beside=Inline,
    )
    with world.constants():
        core = await Core.open(calm, Config(take_over=True), Mode.FULL)
        for text in wanted:
            await create(core, text)
        await core.close()


def project(world: World) -> list[str]:
    """Choose the definitions of this history, in an order in which they can be made."""
    views = {world.one_of("view", tuple(VIEWS)) for _ in range(2 + world.choose("views", 2))}
    views |= {below for name in views for below in VIEWS[name].inputs if below in VIEWS}
    made = []
    for name, schema in INPUTS.items():
        if any(name in VIEWS[view].inputs for view in views) or name == "t1":
            kind = f"TABLE {name} ({DDL[name]})" if schema is TABLE else ""
            options = f"upstream {name!r}{in_spite(world)}"
            made.append(f"CREATE {kind or f'SOURCE {name} ({DDL[name]}) USING list OPTIONS ({options})'}")
    made += [
        f"CREATE MATERIALIZED VIEW {name}{schedule(world)} AS {VIEWS[name].sql}" for name in VIEWS if name in views
    ]
    keyed = [name for name in VIEWS if name in views and VIEWS[name].key]
    kinds = PLACES if world.instances == 1 else PLACES[:2]  # what is written directly has no fence against a zombie
    for kind in kinds:
        if keyed and world.choose("endpoint", 2):
            name = world.one_of("bound", keyed)
            key = ", ".join(VIEWS[name].key)
            options = f"at {kind!r}{in_spite(world)}"
            made.append(f"CREATE MATERIALIZATION m_{kind} INTO {kind} OPTIONS ({options}) AS {name} KEY ({key})")
    return made


def schedule(world: World) -> str:
    """Choose when a view is refreshed."""
    return "" if world.choose("refresh", 4) else f" REFRESH {world.one_of('schedule', SCHEDULES)}"


def in_spite(world: World) -> str:
    """Choose whether good rows go on in spite of errors: an option."""
    return ", on_error 'continue'" if world.choose("in spite", 3) == 0 else ""


async def outside(world: World) -> None:
    """Let messages come, upstreams go back, endpoints and stores be out; in the end all is well."""
    clock, loses = SimClock(world.simulation), world.choose("loses", 8) == 0
    while not world.simulation.calm:
        await clock.sleep(0.02 * (1 + world.choose("wait", 8)))
        name = world.one_of("upstream", SOURCES)
        await IoPoint("outside", (), partial(come, world, world.upstreams[name]), (Fate.DONE,))
        world.weather.out = world.choose(FAULT + "outage", 4) == 1
        upstream = world.upstreams[world.one_of("fickle", SOURCES)]
        upstream.down = world.choose(FAULT + "upstream down", 3) == 1
        upstream.hidden = world.choose(FAULT + "upstream back", 3)
        if loses and world.choose(FAULT + "upstream loses", 2):
            upstream.lose()
            world.marks["upstream: lost"] += 1
        place = world.places[world.one_of("place", PLACES)]
        place.down = world.choose(FAULT + "endpoint down", 3) == 1
    world.weather.out = False
    for upstream in world.upstreams.values():
        upstream.down, upstream.hidden = False, 0
        if upstream.retracts and world.choose("upstream mended", 2):
            for partition, back in upstream.standing(undecodable=True):
                upstream.produce(partition, back)
    for place in world.places.values():
        place.down = False
    world.busy.discard("outside")


def come(world: World, upstream: FickleUpstream) -> None:
    """Let messages come: new ones, some of which cannot be decoded, and some that take earlier ones back."""
    values = [world.choose("value", 4) for _ in range(world.choose("messages", 3))]
    bad = [None] if world.choose("undecodable", 6) == 0 else []
    upstream.produce(world.one_of("partition", PARTITIONS), *values, *bad)
    standing = upstream.standing(undecodable=world.choose("mend", 3) > 0)
    if standing and upstream.retracts and world.choose("take back", 3) == 0:
        partition, back = world.one_of("taken back", standing)
        upstream.produce(partition, back)


async def vandal(world: World) -> None:
    """Write foreign rows into views, now or just before the flush that moves one."""
    clock = SimClock(world.simulation)
    client = world.client(clock)
    while not world.simulation.calm:
        await clock.sleep(0.05 * (1 + world.choose("wait", 8)))
        catalog = await world.observer.catalog()
        views = catalog.of_kind(View)
        if not views:
            continue
        read = {name for view in views for name in view.imports}
        view = world.one_of("spoilt", [view for view in views if view.name.lower() in read] or views)
        if world.choose("ambush", 2):
            world.ambushes[view.shard] = partial(overtake, world, view)
        else:
            await spoil(world, view, client)
    world.ambushes.clear()
    world.busy.discard("vandal")


async def overtake(world: World, view: View, request: CompareAndSet) -> None:
    """Write into a view before it is moved, to before or to where it is moved: what is above is moved over that."""
    moved = decode_diff(view.shard, request.new.seqno, request.new.data).set.get("upper")
    await spoil(world, view, world.outside, reach=0 if not moved or world.choose("short", 3) == 1 else moved)


async def spoil(world: World, view: View, client: PersistClient, *, reach: int = 0) -> None:
    """Write a foreign row into a view, to ``reach`` or a little further, under the epoch of its present writer."""
    try:
        epoch = world.observer.writes if view.instance else world.observer.epoch
        writer = await client.writer(view.shard, epoch, schema=view.schema.ddl)
        lower = (await writer.refresh()).upper.at
        if lower:  # neither fresh nor dropped
            upper = max(lower + 1, reach)
            world.observer.spoilt[view.shard].append(range(lower, upper))
            row = {c.name: "foreign" if c.type == "string" else FOREIGN + world.number() for c in view.schema}
            request = StageRequest(view.shard, view.schema, lower, upper, "", inline_bytes_max=1 << 14)
            rows = updates(view.schema, [row | {"__time": lower, "__diff": 1}])
            staged = await ListEngine(world.blob).stage(rows, request)
            await writer.compare_and_append([staged], Frontier(lower), Frontier(upper))
            world.marks["vandal"] += 1
    except (StoreError, Unavailable, FencedError, InvalidUsage):
        return


def law_of(error: Exception) -> str:
    """Return the law that a history broke; empty if it ended otherwise."""
    return error.law if isinstance(error, LawBrokenError) else ""
