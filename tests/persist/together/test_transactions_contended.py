"""Each of several concurrent commits happens exactly once, or its caller gets a refusal."""

from __future__ import annotations

import random
from unittest import mock

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import Indeterminate, InvalidUsage
from strandline.persist.client import PersistClient
from strandline.persist.handles import records
from strandline.persist.handles.contents import StageRequest
from strandline.persist.handles.records import RecordMerger
from strandline.persist.shard.machine import CAS_RETRIES_MAX
from strandline.persist.together.transactions import TOKEN_LIFE_MS, CommittedAt, TimeTaken, open_transactions
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.unreliable import Outcome
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import Fate, Simulation, run_sync
from strandline.testing.simulation.places import SimBlob, SimClock, SimConsensus, SimIds
from transactions_in_use import commit, content, live_records, opened, transactions

SCHEMA = Schema((Column("k", "string"),))


WRITERS = 25
FATES = {
    "calm": (Fate.DONE,),
    "stormy": (Fate.DONE, Fate.DONE_UNREPORTED, Fate.LATE, Fate.LOST, Fate.REFUSED, Fate.CRASH_AFTER, Fate.CRASH_LATE),
}


def conflicting_writes(seed, fates, shared):
    """25 tasks commit one row each at jittered times and retry at the next; return the rows at the last time."""
    rng = random.Random(seed)
    jitter = [rng.randrange(8) for _ in range(WRITERS)]
    simulation = Simulation(Seeded(rng), fates, calm_after=3_000)
    objects, consensus = MemoryBlob(), MemoryConsensus()
    ids = SimIds()
    shared_by_all = {}

    def process(rollup_every=7):
        return PersistClient(
            SimClock(simulation), ids, SimBlob(objects), SimConsensus(consensus), rollup_every=rollup_every
        )

    async def transactions_of_task():
        if not shared:
            return await open_transactions(process(), 1)
        return shared_by_all.setdefault("one", await open_transactions(process(), 1))

    async def write(number):
        txns = await transactions_of_task()
        engine = ListEngine(objects)
        while True:
            try:
                await txns.register("x", SCHEMA.ddl)
                time = max(txns.upper.at, jitter[number])
                row = updates(SCHEMA, [{"k": f"{number:02}", "__time": time}])
                staged = await engine.stage(row, StageRequest("x", SCHEMA, time, time + 1, ids.fresh("b") + "/"))
                match await txns.commit(time, {"x": [staged]}, token=f"task-{number}"):
                    case CommittedAt(at):
                        await txns.apply()
                        await txns.advance(at)
                        return at
                    case TimeTaken():
                        await txns._log.refresh()
            except Indeterminate:
                await txns._log.refresh()

    for number in range(WRITERS):
        simulation.spawn(f"task-{number}", lambda _, number=number: write(number))
    simulation.drive()
    last = max(simulation.results.values())
    after = PersistClient(HandClock(), CountingIds("after"), objects, consensus)
    checked = run_sync(open_transactions(after, 1))
    run_sync(checked.advance(last))
    live_records(checked)
    reader = run_sync(after.reader("x", SCHEMA, "x"))
    frame = run_sync(ListEngine(objects).read(run_sync(reader.snapshot(last, timeout_s=0))))
    return sorted((row["k"], row["__diff"]) for row in listed(frame).rows), simulation


@pytest.mark.parametrize("shared", [False, True], ids=["processes", "coroutines"])
@pytest.mark.parametrize("weather", FATES)
@pytest.mark.parametrize("seed", range(4))
def test_all_of_25_conflicting_writes_are_there_exactly_once(seed, weather, shared):
    """Case conflicting_writes.  Damage: under contention a row is lost or doubled."""
    rows, simulation = conflicting_writes(seed, FATES[weather], shared)
    assert rows == [(f"{number:02}", 1) for number in range(WRITERS)], f"replayed by seed {seed}"
    assert simulation.steps > WRITERS * 10


def test_a_transaction_that_finds_its_time_taken_commits_later_with_more_in_it(place):
    """Case commit_at_contention.  Damage: under contention the first writes are lost, or kept at the refused time."""
    one, two = opened(place, "d0", "d1"), transactions(place)
    run_sync(one.advance(2))
    run_sync(two._log.refresh())
    assert commit(place, two, 3, "other", d1="other") == CommittedAt(3)
    assert commit(place, one, 3, "mine", d0="first") == TimeTaken(4)
    writes = {"d0": [place.stage("d0", 4, 5, [[k, 4, 1]]) for k in ("first", "second")]}
    assert run_sync(one.commit(4, writes, token="mine")) == CommittedAt(4)
    run_sync(one.apply())
    assert content(place, "d0", 4) == [("first", 1), ("second", 1)]
    assert content(place, "d1", 4) == [("other", 1)]


def test_a_transaction_that_read_is_refused_if_another_committed_since(place):
    """Damage: two UPDATEs of one row both take the old value, and one of them is lost."""
    one, two = opened(place, "x"), transactions(place)
    read = one.upper.at
    assert commit(place, two, read, "other", x="a") == CommittedAt(read)
    staged = {"x": [place.stage("x", read + 5, read + 6, [["b", read + 5, 1]])]}
    assert run_sync(one.commit(read + 5, staged, token="mine", read=read)) == TimeTaken(read + 1)
    assert run_sync(one.commit(read + 5, staged, token="mine", read=read + 1)) == CommittedAt(read + 5)


class Draft:
    """A transaction that puts a row into ``x``; one that ``reads`` says how many were there."""

    def __init__(self, place, *, reads=False):
        self.place = place
        self.reads = reads
        self.asked = []
        self.given_back = []

    def time(self, upper):
        return upper

    async def stage(self, time, upper):
        self.asked.append(time)
        word = f"{len(content(self.place, 'x', upper - 1))} before" if self.reads else "blind"
        return {"x": [self.place.stage("x", time, time + 1, [[word, time, 1]], inline=0)]}

    async def discard(self, writes):
        for batches in writes.values():
            for staged in batches:
                self.given_back.append(staged.lower.at)
                await self.place.engine.discard(staged)


def overtaken(place, txns, draft, **options):
    """Let another process commit to ``x`` between staging and committing of the draft, twice."""
    others = iter(["a", "b"])
    stage = draft.stage

    async def slowly(time, upper):
        writes = await stage(time, upper)
        other = transactions(place)
        if (word := next(others, None)) is not None:
            commit(place, other, other.upper.at, word, x=word)
            run_sync(other.apply())
        return writes

    draft.stage = slowly
    return run_sync(txns.transact(draft, token="mine"))


def test_a_draft_that_reads_is_staged_anew_when_another_commit_was_faster(place):
    """Damage: an UPDATE is computed from old rows, and reverts what another one wrote."""
    txns, draft = opened(place, "x"), Draft(place, reads=True)
    time = overtaken(place, txns, draft)
    assert content(place, "x", time) == [("2 before", 1), ("a", 1), ("b", 1)]
    assert (len(draft.asked), len(draft.given_back)) == (3, 2)


def test_a_draft_that_does_not_read_is_staged_once_and_retimed(place):
    """Damage: under contention every retry costs a job; or rows are read at the time that was refused."""
    txns, draft = opened(place, "x"), Draft(place)
    time = overtaken(place, txns, draft)
    assert (draft.asked, draft.given_back) == ([time - 1], [])
    assert content(place, "x", time) == [("a", 1), ("blind", 1)]
    assert ("blind", 1) not in content(place, "x", time - 1)


def test_staged_batches_that_are_refused_for_good_are_discarded(place):
    """Damage: the parts of a statement that failed fill the disk."""
    txns, draft = opened(place, "x"), Draft(place)
    run_sync(txns.advance(2 * TOKEN_LIFE_MS))
    with pytest.raises(InvalidUsage, match="too late"):
        run_sync(txns.transact(draft, token="old@5"))
    assert len(draft.given_back) == 1


@pytest.mark.parametrize("fenced", [False, True])
def test_what_is_committed_is_not_reported_as_failed_because_it_could_not_be_applied_yet(place, fenced):
    """Damage: an INSERT that is durable fails, and its caller does it again."""
    txns, draft = opened(place, "x"), Draft(place)
    commit_alone = txns.commit

    async def then_the_store_goes_away(*arguments, **options):
        outcome = await commit_alone(*arguments, **options)
        if fenced:
            await open_transactions(place.client(), 2)
        else:
            place.plan.extend([Outcome.LOST] * CAS_RETRIES_MAX)
        return outcome

    txns.commit = then_the_store_goes_away
    time = run_sync(txns.transact(draft, token="one"))
    place.plan.clear()
    transactions(place, epoch=2)
    assert content(place, "x", time) == [("blind", 1)]


def test_what_was_merged_and_collected_while_a_process_slept_is_read_as_what_took_its_place(place):
    """Damage: a process that was suspended for a day calls its store damaged, and stops (found by a seed)."""
    sleeper = transactions(place)
    awake = transactions(place)
    with mock.patch.object(records, "INLINE_PART_BYTES_MAX", 0):
        for time in range(3):
            assert commit(place, awake, 5 + time, str(time)) == CommittedAt(5 + time)
        run_sync(sleeper._log.refresh())
        client = place.client(grace_ms=0)
        log = run_sync(client.compactor("transactions", RecordMerger(place.blob)))
        run_sync(log.whole())
        run_sync(client._machine("transactions").roll_up())
        run_sync(run_sync(client.collector("transactions")).collect())
    assert run_sync(sleeper.find("1")) == 6
