"""A reader renews its lease by each use, holds the contents it handed out, and raises once the lease is lost."""

from __future__ import annotations

import pytest

from strandline.errors import AsOfError, InvalidUsage
from strandline.frontier import EMPTY, Frontier
from strandline.persist.shard.holds import BEAT_MS, LEASE_MS, expire_overdue, seqno_held
from strandline.store.unreliable import Outcome
from strandline.testing.simulation.kernel import run_sync


def leased(place, client=None):
    """Open a leased reader."""
    return run_sync((client or place.client()).leased_reader("s", place.schema, "orders"))


def the_hold(place):
    """The one leased hold that there is, as a fresh process sees it."""
    (held,) = place.state().leased.values()
    return held


def test_a_shard_that_does_not_exist_has_no_reader(place):
    """Damage: a read creates the shard."""
    assert leased(place) is None


def test_a_reader_without_a_lease_writes_nothing(place):
    """Damage: a read-only process changes the shard."""
    place.append(place.writer(), 0, 2, [["a", 0, 1]])
    before = len(place.versions["s"])
    reader = run_sync(place.client().reader("s", place.schema, "orders"))
    run_sync(reader.snapshot(1))
    run_sync(reader.beat())
    run_sync(reader.close())
    assert len(place.versions["s"]) == before
    with pytest.raises(InvalidUsage, match="no lease"):
        run_sync(reader.downgrade_since(Frontier(1)))


def test_using_the_reader_beats_once_a_quarter_of_the_lease(place):
    """Damage: a reader in use loses its hold; or every read costs a version."""
    place.append(place.writer(), 0, 2, [["a", 0, 1]])
    place.clock.now += 9 * BEAT_MS
    reader = leased(place)
    begun, versions = the_hold(place).beat_ms, len(place.versions["s"])
    place.clock.now += BEAT_MS - 1
    run_sync(reader.snapshot(1))
    assert len(place.versions["s"]) == versions
    place.clock.now += 1
    run_sync(reader.snapshot(1))
    assert the_hold(place).beat_ms == begun + BEAT_MS
    run_sync(reader.beat())
    assert the_hold(place).beat_ms == begun + BEAT_MS


def test_a_clock_that_goes_back_does_not_silence_a_reader(place):
    """Damage: after a clock was put right the reader does not beat for an hour, and is dropped."""
    place.append(place.writer(), 0, 2)
    place.clock.now = LEASE_MS * 9
    reader = leased(place)
    place.clock.now -= LEASE_MS * 2
    versions = len(place.versions["s"])
    run_sync(reader.snapshot(1))
    assert len(place.versions["s"]) == versions + 1


def test_a_reader_that_was_dropped_says_so_at_its_next_beat(place):
    """Damage: it reads on, relying on a hold that is gone."""
    writer = place.writer()
    reader = leased(place)
    place.clock.now += LEASE_MS + 1
    place.append(writer, 0, 2)
    run_sync(writer._machine.commit(expire_overdue))
    with pytest.raises(AsOfError, match="its hold was released; open it again"):
        run_sync(reader.snapshot(1))


def test_what_is_handed_out_is_held_until_it_is_given_back(place):
    """Damage: parts are deleted while a job reads them; or those of a job that ended long ago are kept."""
    writer = place.writer()
    place.append(writer, 0, 2, [["a", 0, 1]])
    reader = leased(place)
    first = run_sync(reader.snapshot(1))
    place.append(writer, 2, 3)
    run_sync(reader.refresh())
    second = run_sync(reader.snapshot(2))
    assert first.seqno < second.seqno
    run_sync(reader.beat())
    assert seqno_held(place.state()) == first.seqno
    reader.release(first)
    run_sync(reader.beat())
    assert seqno_held(place.state()) == second.seqno
    reader.release(second)
    place.append(writer, 3, 4)
    run_sync(reader.refresh())
    newest = reader.state.seqno
    run_sync(reader.beat())
    assert seqno_held(place.state()) == newest


def test_a_downgrade_moves_since_and_a_closed_reader_holds_nothing(place):
    """Damage: history that no reader needs is kept; or history that a reader needs is released."""
    place.append(place.writer(), 0, 9)
    one, other = leased(place), leased(place)
    run_sync(one.downgrade_since(Frontier(5)))
    assert place.state().since == Frontier(0)
    run_sync(other.downgrade_since(Frontier(3)))
    assert place.state().since == Frontier(3)
    run_sync(other.close())
    assert place.state().since == Frontier(3)
    run_sync(one.downgrade_since(EMPTY))
    assert place.state().since == EMPTY


def test_a_listen_keeps_the_time_before_its_frontier(place):
    """Damage: a listener can no longer distinguish new updates from those that it has yielded."""
    writer = place.writer()
    place.append(writer, 0, 6, [["a", 1, 1]])
    reader = leased(place)
    listening = reader.listen(2)

    async def window():
        return await anext(listening)

    run_sync(window())
    assert run_sync(reader.downgrade_since(Frontier(99))) == Frontier(2)
    place.append(writer, 6, 8, [["b", 6, 1]])
    contents, _ = run_sync(window())
    assert place.rows(contents) == [["b", 6, 1]]
    assert run_sync(reader.downgrade_since(Frontier(99))) == Frontier(5)
    run_sync(listening.aclose())
    assert run_sync(reader.downgrade_since(Frontier(99))) == Frontier(99)


@pytest.mark.parametrize("outcome", [Outcome.DONE_UNREPORTED, Outcome.LATE, Outcome.LOST])
def test_whatever_becomes_of_the_registration_there_is_one_hold(place, outcome):
    """Damage: a reader holds twice, once for ever; or not at all."""
    place.writer()
    place.plan.append(outcome)
    reader = leased(place)
    run_sync(place.consensus.land())
    assert len(place.state().leased) == 1
    run_sync(reader.close())
    assert place.state().leased == {}


def test_a_reader_writes_leases_and_nothing_else(place):
    """Damage: a process that may only read deletes what it takes for garbage, or writes parts."""
    writer = place.writer()
    for at in range(40):
        place.append(writer, at, at + 1, [["a", at, 1]])
    run_sync(writer._machine.roll_up())
    run_sync(writer._machine.roll_up())
    run_sync(writer._machine.roll_up())
    objects, versions = dict(place.objects), len(place.versions["s"])
    reader = leased(place, place.client(place.engine, grace_ms=0))
    run_sync(reader.beat())
    run_sync(reader.close())
    assert place.objects == objects
    assert len(place.versions["s"]) == versions + 3


def test_a_lease_that_two_coroutines_move_stands_where_it_was_moved_furthest(place):
    """Damage: the next beat requests released history, and a reader relies on a hold of history that is gone."""
    place.append(place.writer(), 0, 9)
    shared = leased(place)

    async def meanwhile():
        del shared._machine.maintain
        await shared.downgrade_since(Frontier(5))

    shared._machine.maintain = meanwhile
    run_sync(shared.downgrade_since(Frontier(3)))
    assert shared._lease.since == Frontier(5)


def test_what_one_coroutine_gives_back_is_held_for_as_long_as_another_reads_it(place):
    """Damage: two queries read one version under one lease; the first to end releases it for both."""
    writer = place.writer()
    place.append(writer, 0, 2, [["a", 0, 1]])
    shared = leased(place)
    one, other = run_sync(shared.snapshot(1)), run_sync(shared.snapshot(1))
    place.append(writer, 2, 3)
    run_sync(shared.refresh())
    shared.release(one)
    run_sync(shared.beat())
    assert seqno_held(place.state()) == other.seqno
    shared.release(other)
    run_sync(shared.beat())
    assert seqno_held(place.state()) > other.seqno


def test_a_lease_that_processes_share_holds_what_each_of_them_reads(place):
    """Damage: one process beats the lease, and the parts that another one planned to read are deleted under it."""
    writer = place.writer()
    place.append(writer, 0, 2, [["a", 0, 1]])
    planning = run_sync(place.client().leased_reader("s", place.schema, "orders", lease="frame"))
    planned = run_sync(planning.snapshot(1))
    run_sync(planning.beat())
    for at in range(2, 9):
        place.append(writer, at, at + 1)
    beating = run_sync(place.client().leased_reader("s", place.schema, "orders", lease="frame"))
    run_sync(beating.downgrade_since(Frontier(1)))
    run_sync(beating.beat())
    assert seqno_held(place.state()) <= planned.seqno
    run_sync(beating.close())
    assert seqno_held(place.state()) > planned.seqno
