"""Who uses the shards of the world of persist: writers, record keepers, committers, appliers, readers, holders.

Each is a coroutine that does its task with the public handles and notes what it asked and what it was told.  All treat
answers as the design page "persist" tells callers to: a refused batch is discarded, one of unknown fate is left alone,
a fenced writer stops or comes back under a newer epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Final, TypeAlias

from laws.history import Answer, Attempt, Update
from strandline.errors import AsOfError, Determinate, FencedError, Indeterminate, Unavailable
from strandline.frontier.antichain import Frontier
from strandline.persist.batch import Staged
from strandline.persist.client import PersistClient
from strandline.persist.records import Record
from strandline.persist.state import Appended, AppendOutcome, Fenced, UpperMismatch
from strandline.persist.transactions import CommittedAt, TimeTaken, Transactions, open_transactions
from strandline.persist.write import WriteHandle
from strandline.testing.simulation import Fate, IoPoint
from worlds.persist import ACKNOWLEDGED_MIN, PLAIN, RECORDS, SHARDS, SKEWS_MS, TABLES, World
from worlds.rows import SCHEMA, discard, multiset, stage, updates_of

TRIES_MAX: Final = 200
"""How often one thing is tried: never reached by what makes progress."""
UNANSWERED: Final = (Indeterminate, Determinate, Unavailable)
LISTENS_MAX: Final = 4

DEAR: Final = frozenset({"c1", "c2", "s1", "s2"})
"""Users whose work takes much I/O: they are there less often, so that histories stay short and many."""
APPENDS: Final = (3, 5, 8)
COMMITS: Final = (2, 3)
LOOKS: Final = (2, 3)
"""How many things a user has to do, by how much each of them takes; which of these is part of the seed."""

Work: TypeAlias = Callable[[World, PersistClient, str, int], Coroutine[Any, Any, None]]


def populate(world: World) -> None:
    """Choose this run's users and start them."""
    users: dict[str, Callable[[World, str], Coroutine[Any, Any, None]]] = {
        "w1": partial(_under_epochs, write),
        "w2": partial(_under_epochs, write),
        "l1": partial(_under_epochs, keep_records),
        "l2": partial(_under_epochs, keep_records),
        "c1": partial(_under_epochs, commit),
        "c2": partial(_under_epochs, commit),
        "p1": partial(_under_epochs, apply),
        "g1": add_words,
        "g2": add_words,
        "r1": read,
        "r2": read,
        "r3": listen,
        "s1": hold,
        "s2": hold,
        "k1": turn_clocks,
    }
    there = [name for name in users if world.choose("there", 6 if name in DEAR else 4) == 0]
    if not {"w1", "l1", "c1"} & set(there):
        there.append(world.one_of("who", ("w1", "l1", "c1")))
    for name in there:
        world.simulation.spawn(name, lambda _, name=name: users[name](world, name))


async def _under_epochs(work: Work, world: World, name: str) -> None:
    """Do ``work`` under an epoch; when fenced, stop, or do it under a newer one."""
    client = world.client(name)
    epoch = world.epoch()
    while True:  # two who fence each other do not do so for ever: the one who gives up first leaves the other in peace
        try:
            await _until_answered(lambda epoch=epoch: work(world, client, name, epoch))
            return
        except FencedError:
            world.marks["fenced"] += 1
            if world.acknowledged >= ACKNOWLEDGED_MIN and world.choose("give up", 3) == 0:
                return
            epoch = world.fresh_epoch()


async def _until_answered(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do ``work`` again until it is not given up for want of an answer."""
    for _ in range(TRIES_MAX):
        try:
            return await work()
        except UNANSWERED:
            continue
    raise AssertionError(f"{work} was tried {TRIES_MAX} times")


def _task(world: World, many: Sequence[int]) -> int:
    """Return how many things a user has to get done."""
    return world.one_of("task", many)


# ---- writers ---------------------------------------------------------------------------------------------------------


async def write(world: World, client: PersistClient, name: str, epoch: int) -> None:
    """Append batches to the plain shard, some of them empty; retract rows now and then."""
    writer = await client.writer(PLAIN, epoch, schema="rows")
    world.history.admitted(PLAIN, epoch)
    mine: list[bytes] = []
    task = _task(world, APPENDS)
    while world.done[name] < task:
        lower = _at(writer.state.upper)
        upper = lower + 1 + world.choose("advance", 3)
        purpose = world.purpose(name)
        batches = _updates(world, purpose, lower, upper, mine)
        try:
            staged = [
                await stage(client.blob, writer, batch, lower, upper, inline=bool(world.choose("inline", 2)))
                for batch in batches
            ]
        except UNANSWERED:
            continue  # nobody knows of these objects
        attempt = world.history.ask(purpose, {PLAIN: [u for b in batches for u in b]}, lower, upper, epoch)
        outcome = await append(world, client, writer, staged, attempt)
        if isinstance(outcome, Appended):
            world.done[name] += bool(batches)
            mine += [u.row for b in batches for u in b[1:] if u.diff > 0]
        world.saw(client, writer.state)


def _updates(world: World, purpose: str, lower: int, upper: int, mine: list[bytes]) -> list[list[Update]]:
    """Return the updates of up to two batches; the first of all is at ``lower``, and its row is never retracted."""
    batches: list[list[Update]] = []
    for _ in range(world.choose("batches", 3)):
        first = lower if not batches else lower + world.choose("time", upper - lower)
        batch = [Update(world.row(purpose, first), first, 1)]
        for _ in range(world.choose("updates", 3)):
            time = lower + world.choose("time", upper - lower)
            batch.append(Update(world.row(purpose, time), time, 1))
        if mine and not world.choose("retract", 3):
            batch.append(Update(mine.pop(), lower + world.choose("time", upper - lower), -1))
        batches.append(batch)
    return batches


async def append(
    world: World, client: PersistClient, writer: WriteHandle, staged: Sequence[Staged], attempt: Attempt
) -> AppendOutcome | None:
    """Append, and do with the batches what the answer asks for; None: nobody knows."""
    try:
        outcome = await writer.compare_and_append(staged, Frontier(attempt.lower), Frontier(attempt.upper))
    except Indeterminate:
        world.marks["append: unknown"] += 1
        await leave_alone(client, staged)
        await client.clock.sleep(0.05 * world.choose("wait", 4))
        return None
    except Unavailable:
        outcome = UpperMismatch(Frontier(attempt.lower))  # none of its tries happened: refused like any other
        world.marks["append: unavailable"] += 1
    world.marks[f"append: {type(outcome).__name__}"] += 1
    world.history.tell(attempt, Answer.YES if isinstance(outcome, Appended) else Answer.NO)
    if not isinstance(outcome, Appended):
        try:
            await discard(client.blob, staged)
        except UNANSWERED:
            world.marks["leaked"] += 1
    if isinstance(outcome, Fenced):
        raise FencedError(str(outcome))
    return outcome


async def leave_alone(client: PersistClient, staged: Sequence[Staged]) -> None:
    """Do nothing with batches of unknown fate: they may be in the shard, or get there."""


# ---- records ---------------------------------------------------------------------------------------------------------


async def keep_records(world: World, client: PersistClient, name: str, epoch: int) -> None:
    """Append this user's records, each exactly once: after every restart and unknown outcome look what is there."""
    records = await client.records(RECORDS, epoch)
    world.history.admitted(RECORDS, epoch)
    task = _task(world, APPENDS)
    for number in range(task):
        purpose = f"{name}.{number}"
        while True:
            began = world.history.tick()
            held = await records.contents()
            lower = _at(records.upper)
            updates = [Update(r.data, r.time, r.diff) for r in held]
            world.history.read_whole(RECORDS, updates, lower, began)
            known = [u for u in updates if u.row.startswith(f"{purpose}/".encode())]
            if known:
                world.marks["record: found"] += 1
                world.history.tell_purpose(purpose, known[0].time)
                break
            upper = lower + 1 + world.choose("advance", 2)
            wanted = [Update(world.row(purpose, lower), lower, 1)]
            attempt = world.history.ask(purpose, {RECORDS: wanted}, lower, upper, epoch)
            outcome = await records.append([Record(*u) for u in wanted], Frontier(lower), Frontier(upper))
            world.marks[f"record: {type(outcome).__name__}"] += 1
            world.history.tell(attempt, Answer.YES if isinstance(outcome, Appended) else Answer.NO)
            if isinstance(outcome, Fenced):
                raise FencedError(str(outcome))
            if isinstance(outcome, Appended):
                break


# ---- transactions ----------------------------------------------------------------------------------------------------


async def commit(world: World, client: PersistClient, name: str, epoch: int) -> None:
    """Commit this user's transactions over both tables, each exactly once: the token tells what is done."""
    world.marks["open: not all applied"] += world.unapplied()
    transactions = await open_transactions(client, epoch)
    writers = {shard: await transactions.register(shard, "rows") for shard in TABLES}
    for number in range(_task(world, COMMITS)):
        tables = TABLES if number % 3 else TABLES[:1]
        while not await _commit(world, client, transactions, {t: writers[t] for t in tables}, f"{name}.{number}"):
            pass
        if world.choose("apply", 2):
            await transactions.apply()
    await transactions.apply()


async def _commit(
    world: World, client: PersistClient, transactions: Transactions, writers: dict[str, WriteHandle], token: str
) -> bool:
    time = _at(transactions.upper) + world.choose("advance", 2)
    updates = {shard: [Update(world.row(token, time), time, 1)] for shard in writers}
    inline = bool(world.choose("inline", 3))
    staged = {
        shard: [await stage(client.blob, writers[shard], each, time, time + 1, inline=inline)]
        for shard, each in updates.items()
    }
    attempt = world.history.ask(token, updates, time, time + 1)
    try:
        outcome = await transactions.commit(time, staged, token=token)
    except Indeterminate:
        world.marks["commit: unknown"] += 1
        return False  # ask again with the same token
    except Unavailable:
        world.history.tell(attempt, Answer.NO)
        return False
    match outcome:
        case CommittedAt(at):
            world.marks["commit: found" if at != time else "commit: done"] += 1
            world.history.tell_purpose(token, at)
            return True
        case TimeTaken():
            world.marks["commit: time taken"] += 1
            world.history.tell(attempt, Answer.NO)
            return False


async def apply(world: World, client: PersistClient, name: str, epoch: int) -> None:
    """Open the transactions, apply what others committed, seal some times."""
    world.marks["open: not all applied"] += world.unapplied()
    transactions = await open_transactions(client, epoch)
    for _ in range(_task(world, COMMITS)):
        await transactions.apply()
        if world.choose("seal", 2):
            await transactions.advance(_at(transactions.upper) + world.choose("advance", 3))


# ---- words -----------------------------------------------------------------------------------------------------------


async def add_words(world: World, name: str) -> None:
    """Add words to the register, each once; read it in between."""
    client = world.client(name)
    register = world.register(client)
    for _ in range(_task(world, APPENDS)):
        word = world.purpose(name).encode()
        world.words.ask(word)
        try:
            await register.update(lambda body, word=word: b" ".join((body or b"", word)))
        except (Indeterminate, Unavailable):
            world.marks["word: unknown"] += 1
            continue
        world.words.tell(word)
        began = world.words.began()
        try:
            world.words.read((await register.read() or b"").split(), began)
        except Unavailable:
            continue


# ---- readers ---------------------------------------------------------------------------------------------------------


def _process(world: World, name: str) -> PersistClient:
    """Return a process to read in: a new one, or one where somebody writes."""
    others = [process for process in ("w1", "c1") if process in world.processes]
    if others and world.choose("whose process", 2):
        return world.processes[world.one_of("process", others)]
    return world.client(name)


async def read(world: World, name: str) -> None:
    """Read any shard at any readable time, or one that is not yet complete; open it anew each time, or not."""
    client = _process(world, name)
    for _ in range(2 * _task(world, LOOKS)):
        if world.choose("reopen", 2):
            client = _process(world, name)
        shard = world.one_of("shard", SHARDS)
        try:
            handle = await client.reader(shard, SCHEMA, shard)
            if handle is None:
                await client.clock.sleep(0.02)
                continue
            state = handle.state if world.choose("stale", 2) else await handle.refresh()
            since, upper = _at(state.since), _at(state.upper)
            early = upper <= since or world.choose("early", 4) == 0
            time = max(since, upper) if early else since + world.choose("time", upper - since)
            await world.read(client, handle, time, timeout_s=0.05)
        except AsOfError:
            world.marks["read: not yet, or no more"] += 1
        except UNANSWERED:
            world.marks["read: unanswered"] += 1


async def listen(world: World, name: str) -> None:
    """Take a snapshot, listen from there, and hold the sum against what others read."""
    client = world.client(name)
    for _ in range(_task(world, LOOKS)):
        shard = world.one_of("shard", SHARDS)
        try:
            await _listen(world, client, shard)
        except AsOfError:
            world.marks["listen: not yet, or no more"] += 1
        except UNANSWERED:
            world.marks["listen: unanswered"] += 1


async def _listen(world: World, client: PersistClient, shard: str) -> None:
    handle = await client.reader(shard, SCHEMA, shard)
    if handle is None:
        await client.clock.sleep(0.02)
        return
    as_of = _at(handle.state.since) + world.choose("time", 4)
    began = world.history.tick()
    held = await updates_of(client.blob, await handle.snapshot(as_of, timeout_s=0.05))
    lower = as_of + 1
    changes = handle.listen(as_of)
    try:
        for _ in range(LISTENS_MAX):
            if _at(handle.state.upper) <= lower and _at((await handle.refresh()).upper) <= lower:
                await client.clock.sleep(0.02)
                continue
            contents, frontier = await anext(changes)
            held += await updates_of(client.blob, contents)
            lower = _at(frontier)
            world.history.read(shard, lower - 1, multiset(held), began)
            world.marks["listened"] += 1
    finally:
        await changes.aclose()


async def hold(world: World, name: str) -> None:
    """Hold the plain shard's since, move it forward, and insist on reading where it is held."""
    client = world.client(name)
    reader = world.one_of("hold", ("h", name))
    try:
        await _until_answered(lambda: _hold(world, client, name, reader))
    except FencedError:
        world.marks["hold: fenced"] += 1


async def _hold(world: World, client: PersistClient, name: str, reader: str) -> None:
    handle = await client.since(PLAIN, reader, world.fresh_epoch())
    shard = await client.reader(PLAIN, SCHEMA, PLAIN)
    assert shard is not None
    for _ in range(_task(world, LOOKS)):
        state = await shard.refresh()
        upper = _at(state.upper)
        held = _at(await handle.downgrade(Frontier(world.choose("since", upper + 1))))
        try:
            await world.read(client, shard, held, timeout_s=0.05)
        except AsOfError as error:
            if (await shard.refresh()).since <= Frontier(held):
                continue  # not yet complete there
            await handle.downgrade(Frontier(held))  # or somebody else has the hold, and we are fenced
            world.history.unreadable(PLAIN, held, str(error))


async def turn_clocks(world: World, name: str) -> None:
    """Set clocks wrong, forward and back, while everybody works."""
    client = world.client(name)
    for _ in range(4 * _task(world, LOOKS)):
        await client.clock.sleep(0.01 * (1 + world.choose("wait", 4)))
        clock, skew = world.one_of("clock", world.clocks), world.one_of("skew", SKEWS_MS)
        await IoPoint("clock.set", (skew,), partial(setattr, clock, "skew_ms", skew), (Fate.DONE,))


def _at(frontier: Frontier) -> int:
    assert frontier.at is not None, "no shard of this world is ever closed"
    return frontier.at
