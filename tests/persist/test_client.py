"""The client: handles of one process share state, and many shards move in one flush."""

from __future__ import annotations

import pytest

from strandline.errors import CorruptionError, Indeterminate, InvalidUsage, StrandlineError, Unavailable
from strandline.frontier import EMPTY, Frontier
from strandline.persist.client import commit_many
from strandline.persist.shard.machine import CAS_RETRIES_MAX
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch, admit
from strandline.persist.upkeep.collect import ROLLUPS_ENOUGH
from strandline.store.protocols import Versioned
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync

SHARDS = ("a", "b", "c")


def writers(place, client, shards=SHARDS, epoch=1):
    """One writer each."""
    return [place.writer(shard, epoch, client=client) for shard in shards]


def test_all_uppers_move_in_one_call(place):
    """Damage: a tick of fifty idle views costs fifty flushes."""
    client = place.client()
    open_writers = writers(place, client)
    before = place.consensus.calls
    moves = [(writer, Frontier(7), "plan") for writer in open_writers]
    assert run_sync(client.advance_many(moves)) == [Appended(Frontier(7))] * 3
    assert place.consensus.calls == before + 1
    for shard in SHARDS:
        assert (place.state(shard).upper, place.state(shard).certificate.fingerprint) == (Frontier(7), "plan")


@pytest.mark.parametrize("outcome", [Outcome.DONE_UNREPORTED, Outcome.LATE, Outcome.LOST, Outcome.REFUSED])
def test_each_upper_moves_once_whatever_becomes_of_the_call(place, outcome):
    """Damage: the append of an advanced shard returns a mismatch, and its view is computed anew."""
    client = place.client()
    open_writers = writers(place, client)
    place.plan.append(outcome)
    moves = [(writer, Frontier(7), "") for writer in open_writers]
    assert run_sync(client.advance_many(moves)) == [Appended(Frontier(7))] * 3
    run_sync(place.consensus.land())
    assert [place.state(shard).upper for shard in SHARDS] == [Frontier(7)] * 3


def test_the_outcomes_are_independent(place):
    """Damage: one shard that another process advanced or took over stops the clock of all others."""
    client = place.client()
    open_writers = writers(place, client)
    place.append(place.writer("b"), 0, 3)
    place.writer("c", epoch=2)
    moves = [(writer, Frontier(7), "") for writer in open_writers]
    assert run_sync(client.advance_many(moves)) == [Appended(Frontier(7)), UpperMismatch(Frontier(3)), Fenced(2)]


def test_two_commands_on_one_shard_each_get_their_own_answer(place):
    """Damage: an append is acknowledged with the answer of another, and lost."""
    client = place.client()
    writer, other = place.writer(client=client), place.writer(client=client)
    moves = [(writer, Frontier(7), ""), (other, Frontier(9), "")]
    assert run_sync(client.advance_many(moves)) == [Appended(Frontier(7)), UpperMismatch(Frontier(7))]


def test_nothing_to_do_costs_nothing(place):
    """Damage: an empty tick costs a flush."""
    client = place.client()
    machine = place.writer(client=client)._machine
    before = place.consensus.calls
    assert run_sync(client.advance_many([])) == []
    assert run_sync(commit_many(place.consensus, [(machine, lambda state: admit(state, 1))])) == [1]
    assert place.consensus.calls == before


def test_shards_that_only_ever_tick_get_their_rollups(place):
    """Damage: after a night of idling, opening a view replays every second of it."""
    client = place.client(rollup_every=5)
    (writer,) = writers(place, client, ["a"])
    for at in range(1, 30):
        run_sync(client.advance_many([(writer, Frontier(at), "")]))
    assert writer.state.seqno - writer.state.rollups[-1].seqno <= 5
    assert place.state("a") == writer.state


def test_a_call_that_may_still_land_is_not_reported_as_failed(place):
    """Damage: a tick is reported as definitely failed, and happens a moment later."""
    client = place.client()
    (writer,) = writers(place, client, ["a"])
    place.plan.extend([Outcome.LATE, *[Outcome.REFUSED] * CAS_RETRIES_MAX])
    (outcome,) = run_sync(client.advance_many([(writer, Frontier(7), "")]))
    assert isinstance(outcome, StrandlineError)
    assert not isinstance(outcome, Unavailable)
    assert "may or may not" in str(outcome)
    run_sync(place.consensus.land())
    assert place.state("a").upper == Frontier(7)


def test_a_shard_that_cannot_be_advanced_does_not_stop_others(place):
    """Damage: one damaged shard stops the clock of all idle views."""
    client = place.client()
    first, second = writers(place, client, ["a", "b"])
    moves = [(first, Frontier(0), ""), (second, Frontier(7), "")]
    refused, moved = run_sync(client.advance_many(moves))
    assert isinstance(refused, InvalidUsage)
    assert moved == Appended(Frontier(7))


def test_a_store_that_is_away_is_waited_for_once_and_not_by_each_shard(place):
    """Damage: a tick of fifty idle views takes fifty minutes of an outage."""
    client = place.client()
    open_writers = writers(place, client)
    place.plan.extend([Outcome.REFUSED] * 1000)
    before = place.clock.now
    outcomes = run_sync(client.advance_many([(writer, Frontier(7), "") for writer in open_writers]))
    assert all(isinstance(outcome, StrandlineError) for outcome in outcomes)
    once = place.clock.now - before
    place.plan.extend([Outcome.REFUSED] * 1000)
    before = place.clock.now
    run_sync(client.advance_many([(open_writers[0], Frontier(7), "")]))
    assert once < 1.1 * (place.clock.now - before)


def test_a_store_that_is_silent_is_not_asked_by_each_shard(place):
    """Damage: a tick of fifty idle views takes fifty minutes of an outage, one for each call that nothing answers."""
    client = place.client()
    open_writers = writers(place, client, [f"s{n}" for n in range(50)])

    async def silent(*_):
        place.clock.now += 60_000
        raise Indeterminate("no answer within 60 s")

    place.consensus.compare_and_set = place.consensus.compare_and_set_many = place.consensus.scan = silent
    before = place.clock.now
    outcomes = run_sync(client.advance_many([(writer, Frontier(7), "") for writer in open_writers]))
    assert all(isinstance(outcome, Indeterminate) for outcome in outcomes)
    assert place.clock.now - before <= 240_000


def test_a_hold_that_cannot_be_moved_is_an_error_and_stops_no_other(place):
    """Damage: history that no reader needs is kept for ever, and nothing says so; or that of all shards is, for one."""
    client = place.client()
    writers(place, client)
    holds = [run_sync(client.since(shard, "history", 1)) for shard in SHARDS]

    def damaged(_):
        raise CorruptionError("the state of the shard is damaged")

    holds[1].command = lambda since: damaged
    with pytest.raises(CorruptionError, match="the state of the shard"):
        run_sync(client.downgrade_many([(hold, Frontier(5)) for hold in holds]))
    assert [hold.since for hold in holds] == [Frontier(5), Frontier(0), Frontier(5)]


def test_a_shard_opened_otherwise_is_refused(place):
    """Damage: records are appended to a shard of rows."""
    place.writer("a")
    with pytest.raises(InvalidUsage, match="is registered with schema"):
        run_sync(place.client().records("a", 1))
    with pytest.raises(InvalidUsage, match="is registered with schema"):
        place.writer("a", schema="other int")


def test_handles_of_one_process_see_each_others_commits_at_once(place):
    """Damage: a client does not read its own write."""
    client = place.client()
    one, two = place.writer(client=client), place.writer(client=client)
    place.append(one, 0, None)
    assert two.state.upper == EMPTY


def test_a_problem_of_a_collection_is_reported_by_shard_until_it_is_gone(place):
    """Damage: a shard grows for ever because of one damaged version, and no report says why."""
    client = place.client(grace_ms=0, rollup_every=10**6)
    writer, _ = writers(place, client, ["s", "t"])
    place.append(writer, 0, 1, [["k", 0, 1]])
    good = place.versions["s"][1]
    place.versions["s"][1] = Versioned(good.seqno, b"damaged")

    def grow() -> None:
        for _ in range(ROLLUPS_ENOUGH):
            run_sync(writer._machine.roll_up())
            upper = writer.state.upper.at
            place.append(writer, upper, upper + 1)

    grow()
    ((shard, problem),) = client.problems().items()
    assert (shard, problem.startswith("collection failed: ")) == ("s", True)
    place.versions["s"][1] = good
    grow()
    assert client.problems() == {}


def test_a_fenced_shard_takes_nothing_of_an_older_epoch(place):
    """Damage: a replica that has not heard of a view's new query brings the view on by the one before."""
    writer = place.writer(epoch=1)
    run_sync(place.client().fence("s", 2))
    assert place.append(writer, 0, 1) == Fenced(2)
    assert place.append(place.writer(epoch=2), 0, 1) == Appended(Frontier(1))


def test_of_a_shard_that_no_one_has_created_nothing_is_known(place):
    """Damage: a view that another process is still to begin stops all that asks how far views are."""
    client = place.client()
    assert client.known("a") is None
    run_sync(client.look("a"))
    assert client.known("a") is None
    place.append(place.writer("a"), 0, 3)
    run_sync(client.look("a"))
    assert client.known("a").upper == Frontier(3)
