"""Small jobs of one user, each of which shows one thing that persist does, from the first open to the last read.

They are run alone, with one fault at a time (`one_fault.py`): a user that crashes begins anew with its name only.
A call that is repeated for want of an answer has the same token, or the state shows that it was done.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeAlias

from laws.history import Answer, Update
from strandline.errors import FencedError
from strandline.frontier import Frontier, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.records import RecordMerger
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.state import Appended, Fenced
from worlds.persist import PLAIN, TABLES, World
from worlds.rows import SCHEMA, multiset, stage
from worlds.tries import under_epochs, until_answered
from worlds.users import add_words, commit, keep_records

Scenario: TypeAlias = Callable[[World, str], Coroutine[Any, Any, None]]


async def append_and_reopen(world: World, name: str) -> None:
    """Append two batches in objects, each exactly once; open the shard anew and read it."""

    async def do(client: PersistClient) -> None:
        await _append_all(world, name, await _writer(world, client), 2)

    await _persevere(world, name, do)
    await _read_anew(world, name, PLAIN)


async def roll_up_and_reopen(world: World, name: str) -> None:
    """Append until rollups are written, with what is small inside them; open the shard anew and read it."""
    world.rollup_every = 2

    async def do(client: PersistClient) -> None:
        await _append_all(world, name, await _writer(world, client), 3, inline=True)

    await _persevere(world, name, do)
    await _read_anew(world, name, PLAIN)


async def take_over(world: World, name: str) -> None:
    """Append under one epoch, then under a newer one from another process; the former is fenced."""

    async def do(client: PersistClient) -> None:
        former = await _writer(world, client)
        await _append_all(world, f"{name}.former", former, 1, inline=True)
        latter = await _writer(world, world.client(name))
        await _append_all(world, f"{name}.latter", latter, 1, inline=True)
        upper = (await former.refresh()).upper
        assert isinstance(await former.compare_and_append([], upper, Frontier(as_time(upper) + 1)), Fenced)

    await _persevere(world, name, do)
    await _read_anew(world, name, PLAIN)


async def hold_and_let_go(world: World, name: str) -> None:
    """Hold since, release some times, read what is held, take the hold over, release it for good."""

    async def do(client: PersistClient) -> None:
        await _append_all(world, name, await _writer(world, client), 2, inline=True)
        for _ in range(2):
            hold = await client.since(PLAIN, name, world.fresh_epoch())
            held = await hold.downgrade(Frontier(1))
            reader = await client.reader(PLAIN, SCHEMA, PLAIN)
            assert reader is not None
            await world.read(client, reader, as_time(held), timeout_s=0)
        await hold.expire()

    await _persevere(world, name, do)
    await _read_anew(world, name, PLAIN)


async def lease_and_listen(world: World, name: str) -> None:
    """Read under a lease, listen to what is appended, release the times received, give the lease up."""

    async def do(client: PersistClient) -> None:
        writer = await _writer(world, client)
        await _append_all(world, name, writer, 1)
        reader = await client.leased_reader(PLAIN, SCHEMA, PLAIN)
        assert reader is not None
        as_of = as_time(reader.state.upper) - 1
        began = world.history.tick()
        held = await world.updates(client, reader, await reader.snapshot(as_of, timeout_s=0))
        changes = reader.listen(as_of)
        await _append_all(world, f"{name}.more", writer, 1)
        upper = as_of + 1
        if as_time((await reader.refresh()).upper) > upper:
            contents, frontier = await anext(changes)
            held += await world.updates(client, reader, contents)
            upper = as_time(frontier)
        world.history.read(PLAIN, upper - 1, multiset(held), began)
        await changes.aclose()
        await reader.downgrade_since(Frontier(upper - 1))
        await world.read(client, reader, upper - 1, timeout_s=0)
        await world.closed(reader)

    await _persevere(world, name, do)
    await _read_anew(world, name, PLAIN)


async def compact_and_reopen(world: World, name: str) -> None:
    """Append batches, release the first times, merge all into one; open the shard anew and read it."""
    world.inline_part_bytes = 0

    async def do(client: PersistClient) -> None:
        await _append_all(world, name, await _writer(world, client), 3)
        hold = await client.since(PLAIN, name, world.fresh_epoch())
        await hold.downgrade(Frontier(1))
        compactor = await client.compactor(PLAIN, RecordMerger(client.blob))
        assert compactor is not None
        await compactor.whole()
        await _read_anew(world, name, PLAIN)

    await _persevere(world, name, do)
    await _read_anew(world, name, PLAIN)


async def collect_and_reopen(world: World, name: str) -> None:
    """Append, merge, let rollups grow old, collect what is dead twice, sweep; open the shard anew and read it."""
    world.inline_part_bytes, world.rollup_every, world.grace_ms = 0, 3, 0

    async def do(client: PersistClient) -> None:
        await _append_all(world, name, await _writer(world, client), 2)
        compactor = await client.compactor(PLAIN, RecordMerger(client.blob))
        collector = await client.collector(PLAIN)
        assert compactor is not None
        assert collector is not None
        await compactor.whole()
        await collector.collect()
        await collector.collect()
        await collector.sweep()

    await _persevere(world, name, do)
    await _read_anew(world, name, PLAIN)


async def keep_and_find_records(world: World, name: str) -> None:
    """Append records, each once, found by looking for it."""
    await under_epochs(keep_records, world, name)


async def commit_apply_and_reopen(world: World, name: str) -> None:
    """Commit one transaction on a table and one on two, apply them; then open the tables anew and read them."""
    await under_epochs(commit, world, name)
    for shard in TABLES:
        await until_answered(lambda shard=shard: _read_anew(world, name, shard))


async def update_a_register(world: World, name: str) -> None:
    """Add words to a register, and read it after each, until two are acknowledged."""
    while world.words.acknowledged < 2:
        await add_words(world, name)


SCENARIOS: Final[tuple[Scenario, ...]] = (
    append_and_reopen,
    roll_up_and_reopen,
    take_over,
    hold_and_let_go,
    lease_and_listen,
    compact_and_reopen,
    collect_and_reopen,
    keep_and_find_records,
    commit_apply_and_reopen,
    update_a_register,
)


async def _persevere(world: World, name: str, do: Callable[[PersistClient], Coroutine[Any, Any, None]]) -> None:
    """Do it with a new process until it is answered; if fenced by an earlier try of our own, once more."""
    for _ in range(4):
        try:
            return await until_answered(lambda: do(world.client(name)))
        except FencedError:
            continue
    raise AssertionError(f"{name} is fenced again and again, and there is no other writer")


async def _writer(world: World, client: PersistClient) -> WriteHandle:
    epoch = world.fresh_epoch()
    writer = await client.writer(PLAIN, epoch, schema=SCHEMA.ddl)
    world.history.admitted(PLAIN, epoch)
    return writer


async def _append_all(world: World, name: str, writer: WriteHandle, many: int, *, inline: bool = False) -> None:
    """Append ``many`` rows, one by one, each exactly once: what is there is not appended, nor what has our token."""
    reader = await world.processes["c1"].reader(PLAIN, SCHEMA, PLAIN)
    assert reader is not None
    for number in range(many):
        purpose = f"{name}.{number}"
        while not await _is_there(world, reader, purpose):
            lower = as_time(writer.state.upper)
            updates = [Update(world.row(purpose, lower), lower, 1)]
            staged = [await stage(world.processes["c1"].blob, writer, updates, lower, lower + 1, inline=inline)]
            attempt = world.history.ask(purpose, {PLAIN: updates}, lower, lower + 1, writer.epoch)
            bounds = Frontier(lower), Frontier(lower + 1)
            match await writer.compare_and_append(staged, *bounds, token=purpose):
                case Appended(upper):
                    world.history.tell_purpose(purpose, as_time(upper) - 1)
                    break
                case Fenced(epoch):
                    world.history.tell(attempt, Answer.NO)
                    raise FencedError(f"epoch {epoch} was admitted")
                case _:
                    world.history.tell(attempt, Answer.NO)


async def _is_there(world: World, reader: ReadHandle, purpose: str) -> bool:
    upper = as_time((await reader.refresh()).upper)
    if not upper:
        return False
    found = await world.updates(world.processes["c1"], reader, await reader.snapshot(upper - 1, timeout_s=0))
    return any(update.row.startswith(f"{purpose}/".encode()) for update in found)


async def _read_anew(world: World, name: str, shard: str) -> None:
    """Open a shard as a process that knows nothing does, and read it at each time."""

    async def do() -> None:
        client = world.client(name)
        reader = await client.reader(shard, SCHEMA, shard)
        assert reader is not None
        since, upper = as_time(reader.state.since), as_time(reader.state.upper)
        assert upper
        for time in range(since, upper):
            await world.read(client, reader, time, timeout_s=0)

    await until_answered(do)
