"""The commit path: commits are recognised, doubts are reported, and a refusal follows from a fresh state."""

from __future__ import annotations

import itertools

import pytest
from msgspec.structs import replace

from strandline.errors import CorruptionError, Determinate, Indeterminate, InvalidUsage, Unavailable
from strandline.frontier import Frontier
from strandline.persist.shard import codec, machine
from strandline.persist.shard.machine import CAS_RETRIES_MAX, Machine
from strandline.persist.shard.state import (
    Appended,
    Rollup,
    UpperMismatch,
    admit,
    compare_and_downgrade,
    register_critical,
)
from strandline.store.protocols import CompareAndSet, Mismatch, Versioned
from strandline.store.unreliable import Outcome, UnreliableBlob
from strandline.testing.doubles import CountingIds
from strandline.testing.simulation.kernel import run_sync

DONE, UNREPORTED, LATE, LOST, REFUSED = Outcome
ALWAYS = CAS_RETRIES_MAX


def seqno(place, shard="s"):
    """The newest version."""
    return place.versions[shard][-1].seqno


# ---- opening


def test_a_new_shard_is_at_version_one_with_a_rollup_there(place):
    """Damage: there is a version that no rollup leads to, and the shard cannot be opened."""
    alone = Machine("s", place.clock, CountingIds(), place.blob, place.consensus)
    assert run_sync(alone.open())
    assert (alone.state.seqno, [r.seqno for r in alone.state.rollups]) == (1, [1])
    assert alone.state.rollups[0].key in place.objects


def test_a_shard_that_does_not_exist_is_not_created_by_looking(place):
    """Damage: a reader with a typing error creates collections."""
    alone = Machine("s", place.clock, CountingIds(), place.blob, place.consensus)
    assert not run_sync(alone.open(create=False))
    assert (place.objects, place.versions) == ({}, {})


@pytest.mark.parametrize("outcome", [UNREPORTED, LATE, LOST, REFUSED])
def test_whatever_becomes_of_the_creation_there_is_one_shard(place, outcome):
    """Damage: two creators, or two attempts of one, see two different shards."""
    place.plan.append(outcome)
    one = Machine("s", place.clock, CountingIds("a"), place.blob, place.consensus)
    run_sync(one.open())
    run_sync(place.consensus.land())
    two = Machine("s", place.clock, CountingIds("b"), place.blob, place.consensus)
    run_sync(two.open())
    assert one.state == two.state
    assert seqno(place) == 1


def test_the_loser_of_a_creation_deletes_its_own_rollup_only(place):
    """Damage: the winner's rollup is deleted, and the shard can never be opened; or the loser's leaks."""
    one = Machine("s", place.clock, CountingIds("a"), place.blob, place.consensus)
    place.plan.append(LOST)
    place.clock.meanwhile.append(one.open)
    two = Machine("s", place.clock, CountingIds("b"), place.blob, place.consensus)
    place.consensus.plan.append(DONE)
    run_sync(two.open())
    assert one.state == two.state
    assert one.state.rollups[0].key in place.objects


def test_opening_again_fetches_only_what_is_new(place):
    """Damage: every handle costs a rollup and all diffs after it."""
    client = place.client()
    place.writer(client=client)
    del place.objects[place.state().rollups[0].key]
    place.writer(client=client)  # needs no rollup


def test_a_missing_rollup_is_corruption_that_names_it(place):
    """Damage: the operator does not learn which object to restore; or the shard counts as empty."""
    place.writer()
    (key,) = place.objects
    del place.objects[key]
    with pytest.raises(CorruptionError, match=key):
        place.writer()


def test_a_missing_version_is_corruption_that_names_it(place):
    """Damage: a gap in the history is read as an older truth, and written on."""
    writer = place.writer()
    for at in range(3):
        place.append(writer, at, at + 1)
    del place.versions["s"][2]
    with pytest.raises(CorruptionError, match="followed by"):
        place.writer()
    del place.versions["s"][1:-1]
    with pytest.raises(CorruptionError, match="version 2, which version 6 needs, is missing"):
        place.writer()


class SlowBlob:
    """A Blob that runs a function during its first read."""

    def __init__(self, place, meanwhile):
        self._place = place
        self._meanwhile = [meanwhile]

    async def get(self, key):
        if self._meanwhile:
            self._meanwhile.pop()()
        return await self._place.blob.get(key)


@pytest.mark.parametrize("rollup_is_gone", [True, False])
def test_what_is_collected_while_a_shard_is_opened_is_no_corruption(place, rollup_is_gone):
    """Damage: opening a busy shard fails now and then, and blames the disk."""
    writer = place.writer(client=place.client(rollup_every=4))
    for at in range(3):
        place.append(writer, at, at + 1)
    old = writer.state.rollups[0].key

    def collect():
        for at in range(3, 6):
            place.append(writer, at, at + 1)
        run_sync(place.consensus.truncate("s", writer.state.rollups[-1].seqno + 1))
        if rollup_is_gone:
            del place.objects[old]

    head = place.versions["s"][-1]
    stale = codec.decode_diff("s", head.seqno, head.data).rollup
    late = Machine("s", place.clock, CountingIds("late"), SlowBlob(place, collect), place.consensus)
    run_sync(late.open())
    assert late.state.seqno == writer.state.seqno
    assert stale.seqno < late.state.rollups[-1].seqno


def test_a_process_that_is_far_behind_catches_up(place):
    """Damage: a reader that slept through a truncation never wakes up again."""
    behind = place.client()
    reader = place.writer(client=behind)
    writer = place.writer(client=place.client(rollup_every=4))
    for at in range(300):
        place.append(writer, at, at + 1)
    run_sync(place.consensus.truncate("s", writer.state.rollups[-1].seqno + 1))
    assert run_sync(reader.refresh()) == writer.state


@pytest.mark.parametrize("missed", [2, 3, 4, 7])
def test_a_process_that_missed_about_as_many_versions_as_are_read_at_once_catches_up(place, monkeypatch, missed):
    """Damage: a reader that asks for what is new gets a part of it, and takes it for all."""
    monkeypatch.setattr(machine, "SCAN_LIMIT", 3)
    reader, writer = (place.writer(client=place.client()) for _ in range(2))
    for at in range(missed):
        place.append(writer, at, at + 1)
    assert run_sync(reader.refresh()) == writer.state


# ---- committing


@pytest.mark.parametrize(
    "outcomes", [(o,) for o in Outcome] + [(LOST, UNREPORTED), (LATE, LOST), (REFUSED, LATE, DONE)]
)
def test_an_append_lands_once_whatever_becomes_of_its_attempts(place, outcomes):
    """Law P6.  Damage: rows are doubled or lost."""
    writer = place.writer()
    place.plan.extend(outcomes)
    assert place.append(writer, 0, 1, [["a", 0, 1]]) == Appended(Frontier(1))
    run_sync(place.consensus.land())
    assert place.snapshot(0) == [["a", 0, 1]]
    assert place.state().upper == Frontier(1)


def test_an_unknown_outcome_that_stays_unknown_is_said(place):
    """Damage: the caller deletes parts that land in the shard a moment later."""
    writer = place.writer()
    place.plan.extend([LOST] * (ALWAYS - 1) + [LATE])
    with pytest.raises(Indeterminate, match="may or may not have happened"):
        place.append(writer, 0, 1, [["a", 0, 1]], token="x")
    run_sync(place.consensus.land())
    assert place.append(writer, 0, 1, [["a", 0, 1]], token="x") == Appended(Frontier(1))
    assert place.snapshot(0) == [["a", 0, 1]]


def test_an_append_that_lands_at_the_last_attempt_permitted_is_recognised(place):
    """Damage: the error says that nothing happened, and the caller deletes live parts (found by a seed)."""
    writer = place.writer()
    place.plan.extend([REFUSED] * (ALWAYS - 1) + [UNREPORTED])
    assert place.append(writer, 0, 1, [["a", 0, 1]]) == Appended(Frontier(1))
    assert place.snapshot(0) == [["a", 0, 1]]


def test_what_may_have_landed_stays_unknown_when_the_next_read_is_damaged(place):
    """Damage: the caller treats a read error as a refusal, and deletes parts that the shard names by now."""
    writer = place.writer()
    place.plan.append(UNREPORTED)
    versions = place.versions["s"]

    async def damage():
        last = versions[-1]
        versions[-1] = Versioned(last.seqno, last.data[:-1])

    place.clock.meanwhile.append(damage)
    with pytest.raises(Indeterminate, match="may or may not have happened"):
        place.append(writer, 0, 1, [["a", 0, 1]])


def test_refusals_alone_leave_nothing_unknown(place):
    """Damage: a store that is only full makes every caller stop and look."""
    writer = place.writer()
    place.plan.extend([REFUSED] * ALWAYS)
    with pytest.raises(Unavailable):
        place.append(writer, 0, 1)
    place.plan.extend([LOST, *[REFUSED] * ALWAYS])
    with pytest.raises(Indeterminate):
        place.append(writer, 0, 1)


def test_what_was_unknown_is_settled_once_its_version_is_taken(place):
    """Damage: an append that lost its race for good counts as unknown, and its parts leak."""
    writer, other = place.writer(), place.writer()
    place.plan.append(LATE)
    place.clock.meanwhile.append(lambda: other.compare_and_append([], Frontier(0), Frontier(4)))
    assert place.append(writer, 0, 1, [["a", 0, 1]]) == UpperMismatch(Frontier(4))
    run_sync(place.consensus.land())
    assert place.snapshot(3) == []


def test_a_refusal_counts_only_on_a_state_fetched_after_the_call(place):
    """Damage: a caller is refused because its process had a stale state."""
    stale, writer = place.writer(), place.writer()
    place.append(writer, 0, 3)
    assert place.append(stale, 3, 4) == Appended(Frontier(4))
    assert place.append(stale, 3, 4) == UpperMismatch(Frontier(4))


def test_a_usage_error_counts_only_on_a_state_fetched_after_the_call(place):
    """Damage: a hold that another process registered cannot be moved here."""
    stale = place.writer()._machine
    other = place.writer()._machine
    run_sync(other.commit(lambda state: register_critical(state, "r")))
    run_sync(stale.commit(lambda state: compare_and_downgrade(state, "r", 0, 1, Frontier(2))))
    assert place.state().since == Frontier(2)
    with pytest.raises(InvalidUsage):
        run_sync(stale.commit(lambda state: compare_and_downgrade(state, "x", 0, 1, Frontier(2))))


def test_a_command_that_changes_nothing_makes_no_version(place):
    """Damage: idle processes fill Consensus."""
    writer = place.writer()
    before = seqno(place)
    run_sync(writer.admit())
    assert seqno(place) == before


def test_coroutines_that_share_a_machine_all_get_through(place):
    """Damage: two users of one process lose each other's commits."""
    client = place.client()
    writers = [place.writer(client=client) for _ in range(2)]
    place.plan.append(LATE)
    place.clock.meanwhile.append(lambda: writers[1].compare_and_append([], Frontier(0), Frontier(1)))
    assert place.append(writers[0], 0, 1) == UpperMismatch(Frontier(1))
    assert place.append(writers[0], 1, 2) == Appended(Frontier(2))


def test_a_law_that_would_break_stops_the_commit(place):
    """Damage: the effect of a bug becomes durable."""
    writer = place.writer()
    place.append(writer, 0, 1, [["a", 0, 1]])
    before = seqno(place)
    with pytest.raises(AssertionError, match="law P2"):
        run_sync(writer._machine.commit(lambda state: (replace(state, upper=Frontier(0)), None)))
    assert seqno(place) == before


def test_walltime_never_goes_back(place):
    """Damage: after a clock stepped back, live leases look expired."""
    place.clock.now = 9_000
    writer = place.writer()
    place.clock.now = 5
    place.append(writer, 0, 1)
    assert place.state().walltime_ms == 9_000


def test_too_many_writers_at_once_is_unavailable(place):
    """Damage: a caller hangs for ever in a race that it always loses."""
    writer = place.writer()
    missing = CompareAndSet("s", 99, Versioned(100, b""))
    assert run_sync(place.consensus.compare_and_set(missing)) == Mismatch()

    async def always_lost(request):
        return Mismatch()

    place.consensus.compare_and_set = always_lost
    with pytest.raises(Unavailable, match="too many writers"):
        place.append(writer, 0, 1)


# ---- rollups


def test_a_rollup_is_written_every_so_many_versions_and_is_the_state(place):
    """Damage: opening a shard costs all of its history."""
    writer = place.writer(client=place.client(rollup_every=5))
    for at in range(20):
        place.append(writer, at, at + 1, [["a", at, 1]])
    seqnos = [r.seqno for r in writer.state.rollups]
    assert all(b - a in {5, 6} for a, b in itertools.pairwise(seqnos))
    assert writer.state.seqno - seqnos[-1] <= 5
    assert len(place.objects) == len(seqnos)
    for rollup in writer.state.rollups:
        at, flat = codec.decode_rollup("s", rollup.key, place.objects[rollup.key])
        assert codec.restore("s", at, flat).seqno == rollup.seqno
    assert place.state() == writer.state


def test_a_rollup_every_version_would_never_end(place):
    """Damage: one append writes rollups for ever."""
    with pytest.raises(AssertionError, match="never end"):
        place.writer(client=place.client(rollup_every=1))


@pytest.mark.parametrize("outcome", [1, 2, 3])
def test_a_rollup_that_cannot_be_written_fails_no_commit_and_is_written_later(place, outcome):
    """Damage: an append that is durable is reported as failed; or no rollup is ever written again."""
    fail = [True]
    blob = UnreliableBlob(place.blob, lambda label, n: outcome if fail[0] and label == "blob.set" else 0)
    place.writer()
    client = place.client(rollup_every=4)
    client.blob = blob
    writer = place.writer(client=client)
    for at in range(6):
        assert place.append(writer, at, at + 1) == Appended(Frontier(at + 1))
    assert len(writer.state.rollups) == 1
    fail[0] = False
    place.append(writer, 6, 7)
    assert len(writer.state.rollups) == 2
    assert place.state() == writer.state


def test_an_unnamed_rollup_is_deleted_after_a_definite_refusal(place):
    """Damage: rollups that lost their race fill the store."""
    slow, fast = (place.writer(client=place.client(rollup_every=4)) for _ in range(2))
    for at in range(3):
        place.append(fast, at, at + 1)
    run_sync(slow.refresh())
    state = slow.state
    run_sync(fast._machine.commit(lambda s: (replace(s, rollups=(*s.rollups, Rollup(s.seqno, "elsewhere"))), 1)))
    before = set(place.objects)
    slow._machine._state = state  # as if it had not seen the newer version
    run_sync(slow._machine.maintain())
    assert set(place.objects) == before


def test_a_store_that_never_answers_is_unavailable(place):
    """Damage: opening hangs."""
    place.writer()

    async def refuse(*_):
        raise Determinate("no")

    place.consensus.head = refuse
    with pytest.raises(Unavailable, match="could not be opened"):
        place.writer()


def test_admitting_through_a_machine_is_durable(place):
    """Damage: only its own process knows a fence."""
    run_sync(place.writer()._machine.commit(lambda state: admit(state, 7)))
    assert place.state().epoch == 7
