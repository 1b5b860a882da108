"""Who looks after the shards of the world of persist: compactors and collectors; and who troubles them: clocks."""

from __future__ import annotations

from functools import partial

from strandline.errors import InvalidUsage
from strandline.persist.records import RecordMerger
from strandline.testing.simulation import Fate, IoPoint
from worlds.persist import LEASED, PLAIN, RECORDS, SHARDS, SKEWS_MS, SWEPT, World
from worlds.tries import IDLE_S, LOOKS, UNANSWERED, how_many, too_old


async def compact(world: World, name: str) -> None:
    """Merge everything that a shard holds into one batch, now and then."""
    client = world.client(name)
    for _ in range(how_many(world, LOOKS)):
        shard = world.one_of("shard", (*LEASED, RECORDS))
        try:
            compactor = await client.compactor(shard, RecordMerger(client.blob))
            outcome = None if compactor is None else await compactor.whole()
            world.marks[f"compact: {type(outcome).__name__}"] += 1
        except UNANSWERED:
            world.marks["compact: unanswered"] += 1
        except InvalidUsage as error:
            if not too_old(error):
                raise
        await client.clock.sleep(0.02 * world.choose("wait", 4))


async def collect(world: World, name: str) -> None:
    """Collect a shard's garbage, now and then to a version that is long gone; sweep what was leaked."""
    client = world.client(name)
    for _ in range(2 * how_many(world, LOOKS)):
        shard = world.one_of("shard", (*SHARDS, PLAIN, PLAIN))
        try:
            collector = await client.collector(shard)
            if collector is None:
                await client.clock.sleep(0.02)
                continue
            done = await collector.collect(world.choose("stale", 9) or None)
            world.marks["collect: nothing" if done.nothing else "collect: some"] += 1
            if shard in SWEPT and world.choose("sweep", 2):
                world.marks["swept"] += bool(await collector.sweep())
        except UNANSWERED:
            world.marks["collect: unanswered"] += 1
        await client.clock.sleep(world.one_of("idle", IDLE_S))


async def turn_clocks(world: World, name: str) -> None:
    """Set clocks wrong, forward and back, while everybody works."""
    client = world.client(name)
    for _ in range(4 * how_many(world, LOOKS)):
        await client.clock.sleep(0.01 * (1 + world.choose("wait", 4)))
        clock, skew = world.one_of("clock", world.clocks), world.one_of("skew", SKEWS_MS)
        await IoPoint("clock.set", (skew,), partial(setattr, clock, "skew_ms", skew), (Fate.DONE,))
