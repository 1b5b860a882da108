"""The users that read the shards of the world of persist: readers, listeners, holders of since by name or by lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from strandline.errors import AsOfError, FencedError
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle
from worlds.persist import LEASED, PLAIN, SHARDS, World
from worlds.rows import SCHEMA, multiset
from worlds.tries import IDLE_S, LOOKS, UNANSWERED, at, how_many, until_answered

LISTENS_MAX: Final = 4


def _process(world: World, name: str) -> PersistClient:
    """Return a process to read in: a new one, or one where another user reads or writes."""
    others = [process for process in ("w1", "c1", "r1") if process in world.processes]
    if others and world.choose("whose process", 2):
        return world.processes[world.one_of("process", others)]
    return world.client(name)


async def _opened(world: World, client: PersistClient, shard: str) -> ReadHandle | None:
    """Open a shard for reading, with a lease or without."""
    leased = bool(shard in LEASED and world.choose("leased", 2))
    opened = client.leased_reader if leased else client.reader
    return await world.shared(client, ("read", shard, leased), lambda: opened(shard, SCHEMA, shard))


async def read(world: World, name: str) -> None:
    """Read any shard at any readable time, or one that is not yet complete; open it anew each time, or not."""
    client = _process(world, name)
    for _ in range(2 * how_many(world, LOOKS)):
        if world.choose("reopen", 2):
            client = _process(world, name)
        shard, handle = world.one_of("shard", SHARDS), None
        try:
            handle = await _opened(world, client, shard)
            if handle is None:
                await client.clock.sleep(0.02)
                continue
            state = handle.state if world.choose("stale", 2) else await world.refresh(handle)
            since, upper = at(state.since), at(state.upper)
            early = upper <= since or world.choose("early", 4) == 0
            time = max(since, upper) if early else since + world.choose("time", upper - since)
            await world.read(client, handle, time, timeout_s=0.05)
            if world.choose("again", 3) == 0:
                await world.read(client, handle, time, timeout_s=0)
            if handle._lease is not None and world.choose("let go", 3) == 0:
                await handle.downgrade_since(Frontier(world.choose("since", time + 1)))
                world.observed.look(handle, "since", handle._lease.since)
        except AsOfError:
            world.marks["read: not yet, or no more"] += 1
            if handle is not None and handle._lease is not None:
                world.handles.pop((client, ("read", shard, True)), None)  # the lease may be lost: open another one
        except UNANSWERED:
            world.marks["read: unanswered"] += 1


async def listen(world: World, name: str) -> None:
    """Take a snapshot, listen from there, and hold the sum against what others read."""
    client = _process(world, name)
    await _look(world, SHARDS, partial(_listen, world, client), "listen: not yet, or no more", "listen: unanswered")


async def _look(
    world: World, shards: Sequence[str], look: Callable[[str], Awaitable[None]], refused: str, unanswered: str
) -> None:
    """Look at some of ``shards``, one after the other; count how often that was ``refused`` or ``unanswered``."""
    for _ in range(how_many(world, LOOKS)):
        try:
            await look(world.one_of("shard", shards))
        except AsOfError:
            world.marks[refused] += 1
        except UNANSWERED:
            world.marks[unanswered] += 1


async def _listen(world: World, client: PersistClient, shard: str) -> None:
    handle = await _opened(world, client, shard)
    if handle is None:
        await client.clock.sleep(0.02)
        return
    as_of = at(handle.state.since) + world.choose("time", 4)
    began = world.history.tick()
    held = await world.updates(client, handle, await handle.snapshot(as_of, timeout_s=0.05))
    lower = as_of + 1
    changes = handle.listen(as_of)
    try:
        for _ in range(LISTENS_MAX):
            if at(handle.state.upper) <= lower and at((await world.refresh(handle)).upper) <= lower:
                await client.clock.sleep(0.02)
                continue
            contents, frontier = await anext(changes)
            held += await world.updates(client, handle, contents)
            lower = at(frontier)
            world.history.read(shard, lower - 1, multiset(held), began)
            world.marks["listened"] += 1
    finally:
        await changes.aclose()


async def hold(world: World, name: str) -> None:
    """Hold the plain shard's since, move it forward, and insist on reading where it is held."""
    other = world.processes.get("s1")
    client = other if other is not None and world.choose("partner", 2) else world.client(name)
    reader = world.one_of("hold", ("h", name))
    try:
        await until_answered(lambda: _hold(world, client, name, reader))
    except FencedError:
        world.marks["hold: fenced"] += 1


async def _hold(world: World, client: PersistClient, name: str, reader: str) -> None:
    handle = await world.shared(client, ("hold", reader), lambda: client.since(PLAIN, reader, world.fresh_epoch()))
    shard = await client.reader(PLAIN, SCHEMA, PLAIN)
    assert shard is not None
    for _ in range(how_many(world, LOOKS)):
        state = await world.refresh(shard)
        upper = at(state.upper)
        held = at(await handle.downgrade(Frontier(world.choose("since", upper + 1))))
        world.observed.look(handle, "since", handle.since)
        try:
            await world.read(client, shard, held, timeout_s=0.05)
        except AsOfError as error:
            if (await world.refresh(shard)).since <= Frontier(held):
                continue  # not yet complete there
            if Frontier(held) < await handle.downgrade(Frontier(held)):
                continue  # another holder of the same name moved it on
            # Or another holder took the hold over, and we are fenced.
            world.history.unreadable(PLAIN, held, str(error))


async def lease(world: World, name: str) -> None:
    """Hold a shard by a lease, release more and more, and insist on reading what is held while the lease lasts."""
    client = world.client(name)
    await _look(world, LEASED, partial(_lease, world, client), "lease: lost", "lease: unanswered")


async def _lease(world: World, client: PersistClient, shard: str) -> None:
    handle = await client.leased_reader(shard, SCHEMA, shard)
    if handle is None:
        await client.clock.sleep(0.02)
        return
    for _ in range(how_many(world, LOOKS)):
        upper = at((await world.refresh(handle)).upper)
        held = at(await handle.downgrade_since(Frontier(world.choose("since", upper + 1))))
        await world.held(handle)
        try:
            await world.read(client, handle, held, timeout_s=0.05)
        except AsOfError as error:
            if (await world.refresh(handle)).since <= Frontier(held):
                continue  # not yet complete there
            await handle.beat()  # or the lease was lost: then this says so
            world.history.unreadable(shard, held, str(error))
        await client.clock.sleep(world.one_of("idle", IDLE_S))
    if world.choose("close", 2):
        await world.closed(handle)
