"""The users that change the shards of the world of persist: writers, record keepers, committers, appliers, adders.

Each is a coroutine that does its task with the public handles and notes its calls and their answers.  All treat
answers as persist asks callers to: a refused batch is discarded, one of unknown fate is left alone,
a fenced writer stops or comes back under a newer epoch.
"""

from __future__ import annotations

from collections.abc import Sequence

from laws.history import Answer, Attempt, Update
from strandline.errors import FencedError, Indeterminate, InvalidUsage, Unavailable
from strandline.frontier import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.records import Record
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.batch import Staged
from strandline.persist.shard.state import Appended, AppendOutcome, Fenced, UpperMismatch
from strandline.persist.together.transactions import SHARD as TRANSACTIONS
from strandline.persist.together.transactions import CommittedAt, TimeTaken, Transactions, open_transactions
from worlds.persist import DAWDLES_S, PLAIN, RECORDS, TABLES, World
from worlds.rows import SCHEMA, discard, stage
from worlds.tries import APPENDS, COMMITS, DAYS_S, UNANSWERED, at, how_many, too_late, too_old

# ---- writers ---------------------------------------------------------------------------------------------------------


async def write(world: World, client: PersistClient, name: str, epoch: int) -> None:
    """Append batches to the plain shard, some of them empty; retract rows now and then."""
    writer = await world.shared(client, (PLAIN, epoch), lambda: client.writer(PLAIN, epoch, schema=SCHEMA.ddl))
    world.history.admitted(PLAIN, epoch)
    mine: list[bytes] = []
    task = how_many(world, APPENDS)
    while world.done[name] < task:
        lower = at(writer.state.upper)
        upper = lower + 1 + world.choose("advance", 3)
        purpose = world.purpose(name)
        batches = _updates(world, purpose, lower, upper, mine)
        try:
            staged = [
                await stage(client.blob, writer, batch, lower, upper, inline=bool(world.choose("inline", 2)))
                for batch in batches
            ]
        except UNANSWERED:
            continue  # no state names these objects
        if staged and world.choose("dawdle", 8) == 0:
            await client.clock.sleep(world.one_of("dawdle", (*DAWDLES_S, *DAYS_S)))
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
    """Append, and do with the batches what the answer asks for; None: the outcome is unknown."""
    try:
        outcome = await writer.compare_and_append(staged, Frontier(attempt.lower), Frontier(attempt.upper))
    except Indeterminate:
        world.marks["append: unknown"] += 1
        await leave_alone(client, staged)
        await client.clock.sleep(0.05 * world.choose("wait", 4))
        return None
    except InvalidUsage as error:
        if not too_old(error):
            raise
        world.marks["append: too old"] += 1
        world.history.tell(attempt, Answer.NO)
        return None
    except Unavailable:
        outcome = UpperMismatch(Frontier(attempt.lower))  # none of its tries happened: refused like any other
        world.marks["append: unavailable"] += 1
    except OSError:  # of no store: a caller that gets this error, and no doubt, takes it for a failure
        outcome = UpperMismatch(Frontier(attempt.lower))
    world.marks[f"append: {type(outcome).__name__}"] += 1
    if isinstance(outcome, Fenced):  # what was forgotten may be there all the same: its batches are left alone
        raise FencedError(str(outcome))
    world.history.tell(attempt, Answer.YES if isinstance(outcome, Appended) else Answer.NO)
    if not isinstance(outcome, Appended):
        try:
            await discard(client.blob, staged)
        except UNANSWERED:
            world.marks["leaked"] += 1
    return outcome


async def leave_alone(client: PersistClient, staged: Sequence[Staged]) -> None:
    """Do nothing with batches of unknown fate: they may be in the shard, or get there."""


# ---- records ---------------------------------------------------------------------------------------------------------


async def keep_records(world: World, client: PersistClient, name: str, epoch: int) -> None:
    """Append this user's records, each exactly once: after every restart and unknown outcome look what is there."""
    records = await world.shared(client, (RECORDS, epoch), lambda: client.records(RECORDS, epoch))
    world.history.admitted(RECORDS, epoch)
    task = how_many(world, APPENDS)
    for number in range(task):
        purpose = f"{name}.{number}"
        while True:
            began = world.history.tick()
            lower = at(records.upper)
            held = [record for record in await records.contents() if record.time < lower]
            world.observed.look(records, "upper", records.upper)
            updates = [Update(r.data, r.time, r.diff) for r in held]
            times = sorted({u.time for u in updates if u.time < lower} | {lower - 1} - {-1})
            world.history.read_whole(RECORDS, updates, times, began)
            known = [u for u in updates if u.row.startswith(f"{purpose}/".encode())]
            if known:
                world.marks["record: found"] += 1
                world.history.tell_purpose(purpose, known[0].time)
                break
            upper = lower + 1 + world.choose("advance", 2)
            wanted = [Update(world.row(purpose, lower), lower, 1)]
            attempt = world.history.ask(purpose, {RECORDS: wanted}, lower, upper, epoch)
            try:
                outcome = await records.append([Record(*u) for u in wanted], Frontier(lower), Frontier(upper))
            except InvalidUsage as error:
                if not too_old(error):
                    raise
                world.history.tell(attempt, Answer.NO)
                continue
            world.marks[f"record: {type(outcome).__name__}"] += 1
            if isinstance(outcome, Fenced):
                raise FencedError(str(outcome))
            world.history.tell(attempt, Answer.YES if isinstance(outcome, Appended) else Answer.NO)
            if isinstance(outcome, Appended):
                break


# ---- transactions ----------------------------------------------------------------------------------------------------


async def commit(world: World, client: PersistClient, name: str, epoch: int) -> None:
    """Commit this user's transactions over both tables, each exactly once: the token shows what is done."""
    world.marks["open: not all applied"] += world.unapplied()
    transactions = await world.shared(client, (TRANSACTIONS, epoch), lambda: open_transactions(client, epoch))
    writers = {shard: await transactions.register(shard, SCHEMA.ddl) for shard in TABLES}
    for number in range(how_many(world, COMMITS)):
        tables = TABLES if number % 3 else TABLES[:1]
        token = f"{name}.{number}"
        if world.choose("dated", 2):
            token = f"{token}@{world.dates.setdefault(token, at(transactions.upper))}"
        while not await _commit(world, client, transactions, {t: writers[t] for t in tables}, token):
            pass
        if world.choose("apply", 2):
            await transactions.apply()
    await transactions.apply()


async def _commit(
    world: World, client: PersistClient, transactions: Transactions, writers: dict[str, WriteHandle], token: str
) -> bool:
    time = at(transactions.upper) + world.choose("advance", 2)
    updates = {shard: [Update(world.row(token, time), time, 1)] for shard in writers}
    inline = bool(world.choose("inline", 2))
    staged = {
        shard: [await stage(client.blob, writers[shard], each, time, time + 1, inline=inline)]
        for shard, each in updates.items()
    }
    if world.choose("dawdle", 4) == 0:
        await client.clock.sleep(world.one_of("dawdle", DAYS_S))
    attempt = world.history.ask(token, updates, time, time + 1)
    try:
        outcome = await transactions.commit(time, staged, token=token)
    except Indeterminate:
        world.marks["commit: unknown"] += 1
        return False  # ask again with the same token
    except Unavailable:
        world.history.tell(attempt, Answer.NO)
        return False
    except InvalidUsage as error:
        world.history.tell(attempt, Answer.NO)
        world.marks["commit: too old"] += too_old(error)
        world.marks["commit: too late"] += too_late(error)
        if not (too_old(error) or too_late(error)):
            raise
        return too_late(error)  # then no record shows whether an earlier attempt was committed
    finally:
        world.observed.look(transactions, "upper", transactions.upper)
    match outcome:
        case CommittedAt(when):
            world.marks["commit: found" if when != time else "commit: done"] += 1
            world.history.tell_purpose(token, when)
            return True
        case TimeTaken():
            world.marks["commit: time taken"] += 1
            world.history.tell(attempt, Answer.NO)
            return False


async def apply(world: World, client: PersistClient, name: str, epoch: int) -> None:
    """Open the transactions, apply what others committed, seal some times."""
    world.marks["open: not all applied"] += world.unapplied()
    transactions = await world.shared(client, (TRANSACTIONS, epoch), lambda: open_transactions(client, epoch))
    for _ in range(how_many(world, COMMITS)):
        await transactions.apply()
        if world.choose("seal", 2):
            await transactions.advance(at(transactions.upper) + world.choose("advance", 3))


# ---- words -----------------------------------------------------------------------------------------------------------


async def add_words(world: World, name: str) -> None:
    """Add words to the register, each once; read it in between."""
    client = world.client(name)
    register = world.register(client)
    for _ in range(how_many(world, APPENDS)):
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
