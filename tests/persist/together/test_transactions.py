"""Transactions: atomic at one time, whichever process applies them, however often, and whatever fails meanwhile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from strandline.errors import FencedError, Indeterminate, InvalidUsage
from strandline.frontier import Frontier
from strandline.persist.shard.batch import Digest, InlinePart, Staged
from strandline.persist.shard.machine import CAS_RETRIES_MAX
from strandline.persist.together.transactions import CommittedAt, TimeTaken
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync
from transactions_in_use import commit, content, live_records, opened, transactions


def test_a_transaction_is_seen_whole_or_not_at_all(place):
    """Damage: money has left one account and has not arrived at the other."""
    txns = opened(place, "x", "y")
    time = txns.upper.at
    assert commit(place, txns, time, "one", x="a", y="b") == CommittedAt(time)
    for shard in "xy":
        assert place.state(shard).upper <= Frontier(time)  # its time is not readable yet
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
    """Damage: an INSERT that was issued once is done twice."""
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
    """Damage: the client retries, and its rows are stored twice."""
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
    """Damage: records are appended at a past time, which readers of the log consider complete."""
    txns = opened(place, "x")
    place.plan.append(Outcome.LOST)
    staged = place.stage("x", 5, 6, [["b", 5, 1]])
    place.clock.meanwhile.append(lambda: txns.commit(5, {"x": [staged]}, token="two"))
    assert commit(place, txns, 5, "one", x="a") == TimeTaken(6)
    run_sync(txns.apply())
    assert content(place, "x", 5) == [("b", 1)]


def test_every_known_case_is_a_test_of_transactions():
    """Damage: a known failure of another system is not tested here."""
    here = Path(__file__).parent
    cases = json.loads((here.parents[1] / "cases" / "transactions.json").read_text())["cases"]
    tests = "".join(file.read_text() for file in sorted(here.glob("test_transactions*.py")))
    assert [case["name"] for case in cases if f'"""Case {case["name"]}.' not in tests] == []


def test_an_unregistered_shard_is_refused_unless_another_process_registered_it(place):
    """Case unregistered.  Damage: rows are committed and never applied."""
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


def test_opening_applies_committed_transactions(place):
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


def test_a_fenced_process_seals_no_time_that_its_successor_has_sealed(place):
    """Damage: nothing is left to append, so a zombie takes the seal for its own, and goes on."""
    old, new = transactions(place), transactions(place, epoch=2)
    run_sync(new.advance(9))
    with pytest.raises(InvalidUsage, match="'x' is not registered"):
        commit(place, old, 20, "one", x="a")  # it looks for who registered it: now it knows the times of the other
    with pytest.raises(FencedError):
        run_sync(old.advance(5))


def test_registering_again_or_late_changes_no_content(place):
    """Damage: a table that is created later starts with the past of others, or blocks their clock."""
    txns = opened(place, "x")
    commit(place, txns, 5, "one", x="a")
    run_sync(txns.register("y", place.schema.ddl))
    before = len(place.versions["transactions"])
    run_sync(txns.register("y", place.schema.ddl))
    assert len(place.versions["transactions"]) == before
    assert place.state("y").upper == txns.upper
    assert (content(place, "x", 5), content(place, "y", 5)) == ([("a", 1)], [])


def test_advancing_seals_every_registered_shard(place):
    """Damage: a table without writes holds all views back."""
    txns = opened(place, "x", "y")
    run_sync(txns.advance(41))
    assert [place.state(shard).upper.at for shard in "xy"] == [42, 42]
    assert commit(place, txns, 41, "one", x="a") == TimeTaken(42)


def test_an_applied_write_is_withdrawn_once_if_two_processes_tidy(place):
    """Case tidy_race.  Damage: a write is withdrawn twice, and the next one like it is never applied."""
    one = opened(place, "x")
    commit(place, one, 5, "one", x="a")
    run_sync(one.apply())
    two = transactions(place)
    commit(place, two, 7, "two", x="b")
    run_sync(two.apply())
    run_sync(two.advance(8))  # withdraws both
    assert live_records(two) == 0
    run_sync(one.advance(9))  # by its own state, it still has both to withdraw
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


def test_the_writers_of_one_process_are_shared(place):
    """Damage: each transaction costs the opening of its shards."""
    txns = opened(place, "x")
    before = len(place.versions["x"])
    commit(place, txns, 5, "one", x="a")
    run_sync(txns.apply())
    assert len(place.versions["x"]) == before + 1
