"""The users that maintain the shards of the world of persist: compactors, collectors, and one that sets clocks."""

from __future__ import annotations

from functools import partial

from strandline.errors import AsOfError, InvalidUsage
from strandline.persist.client import PersistClient
from strandline.persist.fsck import held_by_transactions
from strandline.persist.handles.records import RecordMerger
from strandline.testing.simulation.kernel import Fate, IoPoint
from worlds.persist import LEASED, PLAIN, RECORDS, SHARDS, SKEWS_MS, SWEPT, TABLES, World
from worlds.rows import SCHEMA
from worlds.tries import DAYS_S, IDLE_S, LOOKS, UNANSWERED, how_many, too_old


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


async def merge_beside(world: World, name: str) -> None:
    """Carry out large merges in a process where others commit, between their awaits."""
    others = [process for process in ("w1", "l1", "c1") if process in world.processes]
    if not others or not world.merges_apart:
        return
    client = world.processes[world.one_of("process", others)]
    for _ in range(2 * how_many(world, LOOKS)):
        before = client.metrics.large_compactions
        await client.merge()
        world.marks["merged beside"] += client.metrics.large_compactions > before
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


async def sweep(world: World, name: str) -> None:
    """Sweep the tables while transactions are staged, committed and applied; sleep for long in between."""
    if "c1" not in world.processes and "c2" not in world.processes:
        return
    client = world.client(name)
    for _ in range(2 * how_many(world, LOOKS)):
        await client.clock.sleep(world.one_of("idle", DAYS_S))
        shard = world.one_of("table", TABLES)
        try:
            reader = await client.leased_reader(shard, SCHEMA, shard)  # whose commit brings the shard's time forward
            collector = await client.collector(shard)
            if reader is not None and collector is not None:
                await world.closed(reader)
                swept = await collector.sweep(partial(_held, world, client))
                world.marks["swept: tables"] += bool(swept)
        except (*UNANSWERED, AsOfError):
            world.marks["sweep: unanswered"] += 1


async def _held(world: World, client: PersistClient, mark_ms: int) -> frozenset[str]:
    """Ask the transactions what they hold; then sleep, now and then: what is answered may be old when it is used."""
    held = await held_by_transactions(client, mark_ms)
    await client.clock.sleep(world.one_of("dawdle", (0, *DAYS_S)))
    return held


async def turn_clocks(world: World, name: str) -> None:
    """Set clocks wrong, forward and back, while everybody works."""
    client = world.client(name)
    for _ in range(4 * how_many(world, LOOKS)):
        await client.clock.sleep(0.01 * (1 + world.choose("wait", 4)))
        clock, skew = world.one_of("clock", world.clocks), world.one_of("skew", SKEWS_MS)
        await IoPoint("clock.set", (skew,), partial(world.turned, clock, skew), (Fate.DONE,))
