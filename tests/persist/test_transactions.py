"""Transactions: all or nothing at one time, whoever applies them, however often, and whatever fails meanwhile."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import FencedError, Indeterminate, InvalidUsage
from strandline.frontier.antichain import Frontier
from strandline.persist.batch import Digest, InlinePart, Staged
from strandline.persist.client import PersistClient
from strandline.persist.collect import LEAKED_AFTER_MS, STAGED_LIFE_MS
from strandline.persist.fsck import held_by_transactions
from strandline.persist.ledger import TOKEN_LIFE_MS, Ledger
from strandline.persist.machine import CAS_RETRIES_MAX
from strandline.persist.plane import StageRequest
from strandline.persist.records import consolidate
from strandline.persist.transactions import TIDY_EVERY, CommittedAt, TimeTaken, open_transactions
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.unreliable import Outcome
from strandline.testing.choices import Seeded
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.list_engine import ListEngine, listed, updates
from strandline.testing.simulation import Fate, SimBlob, SimClock, SimConsensus, SimIds, Simulation, run_sync

SCHEMA = Schema((Column("k", "string"),))


def transactions(place, epoch=1, client=None):
    """Open the transactions, in a process of their own."""
    return run_sync(open_transactions(client or place.client(), epoch))


def opened(place, *shards, epoch=1):
    """Open the transactions and register these shards."""
    txns = transactions(place, epoch)
    for shard in shards:
        run_sync(txns.register(shard, place.schema.ddl))
    return txns


def commit(place, txns, time, token, **rows):
    """Commit one row to each shard, staged at ``time``."""
    writes = {shard: [place.stage(shard, time, time + 1, [[k, time, 1]])] for shard, k in rows.items()}
    return run_sync(txns.commit(time, writes, token=token))


def content(place, shard, as_of):
    """The rows of a shard."""
    return [(k, diff) for k, _, diff in place.snapshot(as_of, shard)]


def live_records(txns):
    """What the log sums up to: never less than nothing."""
    sums = {}
    for record in run_sync(txns._log.contents()):
        sums[record.data] = sums.get(record.data, 0) + record.diff
    assert all(0 <= n <= 1 for n in sums.values()), "withdrawn twice, or committed twice"
    return sum(1 for data, n in sums.items() if n and b"write" in data)


def test_a_transaction_is_seen_whole_or_not_at_all(place):
    """Damage: money has left one account and has not arrived at the other."""
    txns = opened(place, "x", "y")
    time = txns.upper.at
    assert commit(place, txns, time, "one", x="a", y="b") == CommittedAt(time)
    for shard in "xy":
        assert place.state(shard).upper <= Frontier(time)  # nobody can read at its time yet
    assert run_sync(txns.apply()) == 2
    assert (content(place, "x", time), content(place, "y", time)) == ([("a", 1)], [("b", 1)])


def test_a_time_that_is_past_is_refused_with_the_next_one(place):
    """Damage: a transaction changes what was already read."""
    txns = opened(place, "x")
    commit(place, txns, 5, "one", x="a")
    assert commit(place, txns, 5, "two", x="b") == TimeTaken(6)
    assert commit(place, txns, 3, "two", x="b") == TimeTaken(6)
    assert commit(place, txns, 6, "two", x="b") == CommittedAt(6)
    run_sync(txns.apply())
    assert content(place, "x", 6) == [("a", 1), ("b", 1)]


def test_the_same_token_is_the_same_commit_also_at_a_later_time_and_in_another_process(place):
    """Damage: an INSERT that was asked for once is done twice."""
    txns = opened(place, "x")
    assert commit(place, txns, 4, "one", x="a") == CommittedAt(4)
    assert commit(place, txns, 9, "one", x="a") == CommittedAt(4)
    assert commit(place, transactions(place), 9, "one", x="a") == CommittedAt(4)
    assert run_sync(txns.find("one")) == 4
    assert run_sync(txns.find("two")) is None
    run_sync(txns.apply())
    assert content(place, "x", 4) == [("a", 1)]


def test_the_same_row_twice_is_two_rows(place):
    """Damage: the second of two equal INSERTs vanishes when the first is tidied."""
    txns = opened(place, "x")

    def same(time):
        part = InlinePart(b"the same bytes at every time", 1)
        return Staged(Frontier(time), Frontier(time + 1), (part,), 1, 1, Digest(1, 1), plain=True)

    for time in (3, 4, 6):
        assert run_sync(txns.commit(time, {"x": [same(time)]}, token=f"t{time}")) == CommittedAt(time)
        if time > 3:
            run_sync(txns.apply())
    assert place.state("x").digest == Digest(3, 3)


@pytest.mark.parametrize("outcome", [Outcome.DONE_UNREPORTED, Outcome.LATE, Outcome.LOST, Outcome.REFUSED])
@pytest.mark.parametrize("call", range(4))
def test_a_commit_and_its_application_happen_once_whatever_becomes_of_a_call(place, outcome, call):
    """Damage: rows of a table are lost or doubled when the store stutters."""
    txns = opened(place, "x", "y")
    place.plan.extend([Outcome.DONE] * call + [outcome])
    assert commit(place, txns, 7, "one", x="a", y="b") == CommittedAt(7)
    run_sync(txns.apply())
    run_sync(place.consensus.land())
    run_sync(txns.advance(9))
    assert (content(place, "x", 9), content(place, "y", 9)) == ([("a", 1)], [("b", 1)])
    assert live_records(txns) == 0


def test_a_commit_that_stays_unknown_is_found_by_its_token(place):
    """Damage: the client retries, and its rows are there twice."""
    txns = opened(place, "x")
    place.plan.extend([Outcome.LOST] * (CAS_RETRIES_MAX - 1) + [Outcome.LATE])
    with pytest.raises(Indeterminate):
        commit(place, txns, 3, "one", x="a")
    run_sync(place.consensus.land())
    assert commit(place, txns, 8, "one", x="a") == CommittedAt(3)
    run_sync(txns.apply())
    assert content(place, "x", 3) == [("a", 1)]


def test_time_taken_is_never_said_of_a_commit_that_landed(place):
    """Damage: the caller deletes the staged rows of a transaction that is committed."""
    txns = opened(place, "x")
    place.plan.append(Outcome.DONE_UNREPORTED)
    other = transactions(place)

    async def overtaken():
        await other._log.refresh()
        await other.advance(20)

    place.clock.meanwhile.append(overtaken)
    assert commit(place, txns, 5, "one", x="a") == CommittedAt(5)


def test_coroutines_of_one_process_do_not_commit_behind_each_others_back(place):
    """Damage: records are appended at a time that is past, which readers of the log took for complete."""
    txns = opened(place, "x")
    place.plan.append(Outcome.LOST)
    staged = place.stage("x", 5, 6, [["b", 5, 1]])
    place.clock.meanwhile.append(lambda: txns.commit(5, {"x": [staged]}, token="two"))
    assert commit(place, txns, 5, "one", x="a") == TimeTaken(6)
    run_sync(txns.apply())
    assert content(place, "x", 5) == [("b", 1)]


def test_every_known_case_is_a_test_of_this_module():
    """Damage: a case that others met is known to us, and tried by nobody."""
    cases = json.loads((Path(__file__).parent.parent / "cases" / "transactions.json").read_text())["cases"]
    told = [test.__doc__ for name, test in globals().items() if name.startswith("test_")]
    untested = [case["name"] for case in cases if not any(f"Case {case['name']}." in doc for doc in told)]
    assert not untested


def test_an_unregistered_shard_is_refused_unless_somebody_else_registered_it(place):
    """Case unregistered.  Damage: rows are committed that nobody will ever apply."""
    txns, other = transactions(place), transactions(place)
    with pytest.raises(InvalidUsage, match="'x' is not registered"):
        commit(place, txns, 5, "one", x="a")
    run_sync(other.register("x", place.schema.ddl))
    assert commit(place, txns, 5, "one", x="a") == CommittedAt(5)


def test_a_batch_of_another_time_is_refused(place):
    """Damage: a row of a transaction appears before or after its others."""
    txns = opened(place, "x")
    with pytest.raises(InvalidUsage, match=r"at 5 is staged for \[\[4\], \[6\]\)"):
        run_sync(txns.commit(5, {"x": [place.stage("x", 4, 6, [["a", 4, 1]])]}, token="one"))


def test_a_direct_append_to_a_registered_shard_is_a_usage_error(place):
    """Damage: its upper passes a committed transaction, whose rows are then never applied."""
    opened(place, "x")
    with pytest.raises(InvalidUsage, match="registered with schema"):
        place.writer("x")


def test_whoever_opens_applies_what_is_committed(place):
    """Damage: after a crash an acknowledged INSERT is not there."""
    commit(place, opened(place, "x"), 5, "one", x="a")
    transactions(place, epoch=2)
    assert content(place, "x", 5) == [("a", 1)]


def test_a_fenced_process_commits_and_applies_nothing(place):
    """Damage: two environments write the tables of one location."""
    old = opened(place, "x")
    opened(place, "x", epoch=2)
    with pytest.raises(FencedError):
        commit(place, old, 5, "one", x="a")
    with pytest.raises(FencedError):
        run_sync(old.advance(9))


def test_registering_again_or_late_changes_no_content(place):
    """Damage: a table created next to others starts with their past, or blocks their clock."""
    txns = opened(place, "x")
    commit(place, txns, 5, "one", x="a")
    run_sync(txns.register("y", place.schema.ddl))
    before = len(place.versions["transactions"])
    run_sync(txns.register("y", place.schema.ddl))
    assert len(place.versions["transactions"]) == before
    assert place.state("y").upper == txns.upper
    assert (content(place, "x", 5), content(place, "y", 5)) == ([("a", 1)], [])


def test_advancing_seals_every_registered_shard(place):
    """Damage: a table to which nobody writes holds all views back."""
    txns = opened(place, "x", "y")
    run_sync(txns.advance(41))
    assert [place.state(shard).upper.at for shard in "xy"] == [42, 42]
    assert commit(place, txns, 41, "one", x="a") == TimeTaken(42)


def test_what_is_applied_is_withdrawn_once_whoever_tidies(place):
    """Case tidy_race.  Damage: a write is withdrawn twice, and the next one like it is never applied."""
    one = opened(place, "x")
    commit(place, one, 5, "one", x="a")
    run_sync(one.apply())
    two = transactions(place)
    commit(place, two, 7, "two", x="b")
    run_sync(two.apply())
    run_sync(two.advance(8))  # withdraws both
    assert live_records(two) == 0
    run_sync(one.advance(9))  # has both to withdraw, as far as it knows
    assert live_records(one) == 0
    run_sync(one.advance(10))
    assert content(place, "x", 10) == [("a", 1), ("b", 1)]


def test_applying_and_tidying_may_be_repeated_and_interleaved(place):
    """Case apply_and_tidy.  Damage: maintenance that runs twice changes what is read."""
    one = opened(place, "x", "y")
    two = transactions(place)
    for time in range(10, 20, 2):
        commit(place, one, time, str(time), x=f"x{time}", y=f"y{time}")
        run_sync(one.apply())
        run_sync(one.apply())
        run_sync(two._log.refresh())
        run_sync(two.apply())
        run_sync((one, two)[time // 2 % 2].advance(time))
    run_sync(two.apply())
    assert [k for k, _ in content(place, "x", 18)] == [f"x{t}" for t in range(10, 20, 2)]
    assert [k for k, _ in content(place, "y", 18)] == [f"y{t}" for t in range(10, 20, 2)]
    assert live_records(one) <= 2


@pytest.mark.parametrize("step", range(12))
def test_a_crash_anywhere_in_applying_is_made_good_by_the_next(place, step):
    """Damage: a transaction is half applied for ever."""
    txns = opened(place, "x", "y", "z")
    commit(place, txns, 5, "one", x="a", y="b", z="c")
    place.plan.extend([Outcome.DONE] * step + [Outcome.LATE] * 2000)
    try:
        run_sync(txns.apply())
        run_sync(txns.advance(6))
    except Indeterminate:
        pass
    place.plan.clear()
    again = transactions(place)
    run_sync(place.consensus.land())
    run_sync(again._log.refresh())
    run_sync(again.advance(7))
    assert [content(place, shard, 7) for shard in "xyz"] == [[("a", 1)], [("b", 1)], [("c", 1)]]


# ---- case conflicting_writes, interleaved by the simulator

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


def test_the_log_consolidates_to_registrations_and_tokens(place):
    """Damage: the log of transactions grows by every row that was ever written."""
    txns = opened(place, "x")
    for time in range(5, 9):
        commit(place, txns, time, str(time), x="a")
        run_sync(txns.apply())
    run_sync(txns.advance(10))
    kept = consolidate(r for r in run_sync(txns._log.contents()))
    sums = {}
    for record in kept:
        sums[record.data] = sums.get(record.data, 0) + record.diff
    assert sum(1 for n in sums.values() if n) == 1 + 4


def test_the_writers_of_one_process_are_shared(place):
    """Damage: each transaction costs the opening of its shards."""
    txns = opened(place, "x")
    before = len(place.versions["x"])
    commit(place, txns, 5, "one", x="a")
    run_sync(txns.apply())
    assert len(place.versions["x"]) == before + 1


# ---- contention, leaving, and tokens that expire


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


def test_a_transaction_that_read_is_refused_when_anybody_committed_since(place):
    """Damage: two UPDATEs of one row both take the old value, and one of them is lost."""
    one, two = opened(place, "x"), transactions(place)
    read = one.upper.at
    assert commit(place, two, read, "other", x="a") == CommittedAt(read)
    staged = {"x": [place.stage("x", read + 5, read + 6, [["b", read + 5, 1]])]}
    assert run_sync(one.commit(read + 5, staged, token="mine", read=read)) == TimeTaken(read + 1)
    assert run_sync(one.commit(read + 5, staged, token="mine", read=read + 1)) == CommittedAt(read + 5)


def test_a_shard_that_was_forgotten_is_refused_and_stands_still(place):
    """Case unregistered.  Damage: a dropped table takes rows, and its upper costs every tick a write."""
    txns = opened(place, "x", "y")
    commit(place, txns, 5, "one", x="a", y="b")
    run_sync(txns.forget("y"))
    assert content(place, "y", 5) == [("b", 1)], "what was committed before is applied"
    with pytest.raises(InvalidUsage, match="'y' is not registered"):
        commit(place, txns, 9, "two", x="c", y="d")
    upper = place.state("y").upper
    run_sync(txns.advance(20))
    assert (place.state("x").upper, place.state("y").upper) == (Frontier(21), upper)
    run_sync(txns.forget("y"))
    run_sync(txns.register("y", place.schema.ddl))
    assert commit(place, txns, 25, "three", y="e") == CommittedAt(25)
    run_sync(txns.apply())
    assert content(place, "y", 25) == [("b", 1), ("e", 1)]


def test_a_commit_to_a_shard_that_somebody_else_forgot_meanwhile_is_refused(place):
    """Case unregistered.  Damage: the commit was checked against a version that was gone, and is never applied."""
    one, two = opened(place, "x", "y"), transactions(place)
    time = one.upper.at + 3
    run_sync(two.forget("y"))
    assert "y" in run_sync(one.shards())
    with pytest.raises(InvalidUsage, match="'y' is not registered"):
        commit(place, one, time, "one", x="a", y="b")
    run_sync(one.advance(time + 1))
    assert content(place, "x", time) == []


def test_a_shard_that_somebody_else_forgot_is_registered_again(place):
    """Damage: a table is opened for writing, and every write to it is refused."""
    one, two = opened(place, "x"), transactions(place)
    run_sync(two.forget("x"))
    run_sync(one.register("x", place.schema.ddl))
    assert commit(place, one, one.upper.at, "one", x="a") == CommittedAt(one.upper.at - 1)


def test_forgetting_applies_what_others_commit_at_the_last_moment(place):
    """Damage: a transaction that was acknowledged is in one table, and never in the one that left."""
    one, two = opened(place, "x", "y"), transactions(place)
    time = one.upper.at + 1
    place.plan.append(Outcome.LOST)
    staged = {s: [place.stage(s, time, time + 1, [["k", time, 1]])] for s in "xy"}
    place.clock.meanwhile.append(lambda: two.commit(time, staged, token="other"))
    run_sync(one.forget("y"))
    run_sync(one.advance(time))
    assert [content(place, s, time) for s in "xy"] == [[("k", 1)]] * 2


def test_a_retry_in_time_is_the_same_commit_and_one_too_late_is_an_error(place):
    """Damage: a token is forgotten to save space, and its retry is a second commit."""
    txns = opened(place, "x")
    token = "a@1000"
    last = 1_000 + TOKEN_LIFE_MS - 1
    assert commit(place, txns, 1_005, token, x="a") == CommittedAt(1_005)
    run_sync(txns.advance(last - 1))
    assert commit(place, txns, last, token, x="a") == CommittedAt(1_005)
    assert commit(place, transactions(place), last, token, x="a") == CommittedAt(1_005)
    for process in (txns, transactions(place)):
        run_sync(process.advance(last))
        process._tidied_at -= TIDY_EVERY  # the first to tidy after its life withdraws it
        run_sync(process.advance(last + 1))
        with pytest.raises(InvalidUsage, match="too late: tokens are remembered for 15 minutes"):
            commit(place, process, last + 9, token, x="a")
    assert content(place, "x", last) == [("a", 1)]


def test_a_token_without_a_date_is_the_same_commit_for_ever(place):
    """Damage: what a caller named once is done twice a year later."""
    txns = opened(place, "x")
    commit(place, txns, 5, "order-7", x="a")
    run_sync(txns.advance(10 * TOKEN_LIFE_MS))
    assert commit(place, transactions(place), 10 * TOKEN_LIFE_MS + 1, "order-7", x="a") == CommittedAt(5)


def test_what_is_live_is_bounded_however_long_it_goes_on(place):
    """Damage: the log of transactions grows with every statement that was ever executed."""
    txns = opened(place, "x")
    step = TOKEN_LIFE_MS // 10
    for n in range(1, 5 * TIDY_EVERY):
        time = n * step
        commit(place, txns, time, f"t{n}@{time}", x="a")
        run_sync(txns.apply())
    known = run_sync(txns._known(txns._log.state))
    assert len(known.tokens) <= 11 + TIDY_EVERY
    assert len(known.writes) <= 2
    assert place.state("transactions").since > Frontier(10 * step), "its past may be compacted"
    assert Ledger().after(run_sync(txns._log.contents()), txns.upper) == known, "read from scratch it is the same"


def test_letting_go_of_the_past_fails_no_commit(place):
    """Damage: a commit that is durable is reported as failed, because housekeeping after it was."""
    txns = opened(place, "x")
    txns._tidied_at -= TIDY_EVERY
    place.plan.extend([Outcome.DONE, *[Outcome.LOST] * CAS_RETRIES_MAX])
    assert commit(place, txns, 5, "one", x="a") == CommittedAt(5)


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
    """Let somebody else commit to ``x`` between staging and committing of the draft, twice."""
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


def test_what_reads_is_read_again_when_somebody_was_faster(place):
    """Damage: an UPDATE is computed from rows that are gone, and takes back what another one wrote."""
    txns, draft = opened(place, "x"), Draft(place, reads=True)
    time = overtaken(place, txns, draft)
    assert content(place, "x", time) == [("2 before", 1), ("a", 1), ("b", 1)]
    assert (len(draft.asked), len(draft.given_back)) == (3, 2)


def test_what_does_not_read_is_written_once_and_given_a_later_time(place):
    """Damage: under contention every retry costs a job; or rows are read at the time that was refused."""
    txns, draft = opened(place, "x"), Draft(place)
    time = overtaken(place, txns, draft)
    assert (draft.asked, draft.given_back) == ([time - 1], [])
    assert content(place, "x", time) == [("a", 1), ("blind", 1)]
    assert ("blind", 1) not in content(place, "x", time - 1)


def test_what_is_refused_for_good_is_given_back(place):
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


# ---- an outage of days


def staged_with_a_part(place, writer, time):
    """A batch in a Blob object that says when it was begun."""
    rows = [["a", time, 1]]
    return place.stage(writer.shard, time, time + 1, rows, inline=0, prefix=writer.stage_prefix())


def test_what_was_committed_before_an_outage_of_days_can_be_applied_after_a_sweep(place):
    """Damage: an acknowledged transaction can never be applied, and nobody can open the location any more."""
    client = place.client()
    txns = transactions(place, client=client)
    writer = run_sync(txns.register("x", place.schema.ddl))
    leaked = [staged_with_a_part(place, writer, 3) for _ in range(2)]
    place.clock.now += 1
    staged = staged_with_a_part(place, writer, 5)
    place.clock.now += 1
    leaked.append(staged_with_a_part(place, writer, 3))
    assert run_sync(txns.commit(5, {"x": [staged]}, token="one")) == CommittedAt(5)  # and the writer dies
    place.clock.now += LEAKED_AFTER_MS + 3_600_000
    sweeper = place.client()
    run_sync(sweeper.leased_reader("x", place.schema, "x"))
    held = run_sync(held_by_transactions(sweeper))
    swept = run_sync(run_sync(sweeper.collector("x")).sweep(held))
    assert swept == sorted(part.key for batch in leaked[:2] for part in batch.parts)
    transactions(place, epoch=2)
    assert content(place, "x", 5) == [("a", 1)]
    assert len(run_sync(run_sync(place.client().collector("x")).sweep(()))) == 1


def test_a_part_that_a_sweep_may_have_seen_unheld_is_not_committed(place):
    """Damage: a process that slept for a day commits what is swept meanwhile: acknowledged, and lost."""
    txns = transactions(place)
    writer = run_sync(txns.register("x", place.schema.ddl))
    staged = staged_with_a_part(place, writer, 5)
    place.clock.now += STAGED_LIFE_MS
    assert run_sync(txns.commit(5, {"x": [staged]}, token="one")) == CommittedAt(5)
    late = staged_with_a_part(place, writer, 7)
    place.clock.now += STAGED_LIFE_MS + 1
    with pytest.raises(InvalidUsage, match="stage it again"):
        run_sync(txns.commit(7, {"x": [late]}, token="two"))
    assert run_sync(txns.commit(5, {"x": [staged]}, token="one")) == CommittedAt(5)
