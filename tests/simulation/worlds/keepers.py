"""Who looks after the shards of the world of persist, and who troubles them: compactors, clocks that go wrong."""

from __future__ import annotations

from functools import partial

from strandline.persist.records import RecordMerger
from strandline.testing.simulation import Fate, IoPoint
from worlds.persist import LEASED, RECORDS, SKEWS_MS, World
from worlds.tries import LOOKS, UNANSWERED, how_many


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
        await client.clock.sleep(0.02 * world.choose("wait", 4))


async def turn_clocks(world: World, name: str) -> None:
    """Set clocks wrong, forward and back, while everybody works."""
    client = world.client(name)
    for _ in range(4 * how_many(world, LOOKS)):
        await client.clock.sleep(0.01 * (1 + world.choose("wait", 4)))
        clock, skew = world.one_of("clock", world.clocks), world.one_of("skew", SKEWS_MS)
        await IoPoint("clock.set", (skew,), partial(setattr, clock, "skew_ms", skew), (Fate.DONE,))
