"""Leased holds: since follows them when they move, never when they go; a lease lasts to the millisecond."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from strandline.frontier import EMPTY, MINIMUM, Frontier
from strandline.persist.shard.holds import (
    LEASE_MS,
    downgrade_leased,
    expire_leased,
    expire_overdue,
    register_leased,
    release_past,
    seqno_held,
)
from strandline.persist.shard.state import Critical, Downgraded, Leased, ShardState

FRESH = ShardState("s", seqno=4, walltime_ms=1_000)


def holding(*, seqno=9, walltime_ms=1_000, **readers):
    """A state with leased readers ``name=(since, seqno, beat_ms)``."""
    leased = {name: Leased(Frontier(since), at, beat) for name, (since, at, beat) in readers.items()}
    return ShardState("s", seqno=seqno, walltime_ms=walltime_ms, leased=leased)


def test_a_reader_is_registered_once_at_since_and_the_newest_version():
    """Damage: a reader that registers again after an unknown outcome has two holds, or a later one than reported."""
    state, held = register_leased(replace(FRESH, since=Frontier(3)), "r", 1_500)
    assert held == Leased(Frontier(3), 4, 1_500)
    later = replace(state, seqno=8, since=Frontier(3))
    assert register_leased(later, "r", 9_999) == (later, held)


def test_a_clock_behind_the_shards_does_not_shorten_a_lease():
    """Damage: a reader whose clock is an hour slow is dropped at once, each time."""
    _, held = register_leased(FRESH, "r", 7)
    assert held.beat_ms == FRESH.walltime_ms
    state, _ = downgrade_leased(holding(r=(0, 4, 900)), "r", MINIMUM, 4, 7)
    assert state.leased["r"].beat_ms == 1_000


def test_since_follows_the_meet_of_leased_and_critical_holds():
    """Damage: a time that a reader holds is compacted away."""
    state = replace(holding(a=(0, 4, 0), b=(5, 4, 0)), criticals={"c": Critical(Frontier(3), 0)})
    state, answer = downgrade_leased(state, "a", Frontier(9), 4, 0)
    assert (answer, state.since) == (Downgraded(Frontier(9)), Frontier(3))
    state, _ = downgrade_leased(state, "a", Frontier(2), 4, 0)
    assert state.leased["a"].since == Frontier(9)


def test_nothing_that_is_held_goes_back():
    """Damage: after a late request a reader relies on a hold of history that is gone."""
    state = holding(a=(5, 8, 2_000))
    assert downgrade_leased(state, "a", Frontier(3), 6, 0) == (state, Downgraded(Frontier(5)))


def test_a_dropped_reader_gets_none_at_its_next_beat():
    """Damage: a reader that was suspended too long reads on as if it still had its hold."""
    assert downgrade_leased(FRESH, "gone", Frontier(9), 4, 0) == (FRESH, None)


def test_only_a_reader_without_a_beat_for_a_whole_lease_is_dropped_and_since_stays():
    """Damage: a living reader's parts are collected; or a dead one's are kept for ever."""
    state = holding(walltime_ms=LEASE_MS + 11, late=(0, 4, 10), alive=(7, 4, 11))
    after, dropped = expire_overdue(state)
    assert (dropped, list(after.leased), after.since) == (("late",), ["alive"], MINIMUM)
    assert expire_overdue(after) == (after, ())


def dropped_shard(**changes):
    """A closed shard whose only critical reader has released its past; a lease of ``r`` began at 10."""
    held = {"since": Frontier(2), "upper": EMPTY, "criticals": {"c": Critical(EMPTY, 0)}}
    return replace(holding(r=(2, 4, 10)), **held, **changes)


@pytest.mark.parametrize("shards_clock", [0, 10, LEASE_MS + 10, LEASE_MS + 11])
@pytest.mark.parametrize("own_clock", [0, 10, LEASE_MS + 10, LEASE_MS + 11])
def test_the_past_of_a_dropped_shard_goes_when_its_last_lease_is_over_by_either_clock(shards_clock, own_clock):
    """Damage: a query loses its rows in the middle; or a process whose clock is slow keeps dropped tables for ever."""
    state = dropped_shard(walltime_ms=shards_clock)
    over = max(shards_clock, own_clock) > 10 + LEASE_MS
    after, gone = release_past(state, own_clock)
    assert gone is over
    assert (after.since, after.leased) == ((EMPTY, {}) if over else (state.since, state.leased))
    assert release_past(after, own_clock) == (after, over)


@pytest.mark.parametrize(
    "still",
    [
        {"upper": Frontier(9)},
        {"criticals": {}},
        {"criticals": {"c": Critical(EMPTY, 0), "d": Critical(Frontier(2), 0)}},
    ],
    ids=["open", "never held", "held by one"],
)
def test_the_past_of_a_shard_in_use_stays_however_late_it_is(still):
    """Damage: a collection that is written or held by name loses its history."""
    state = replace(dropped_shard(), **still)
    assert release_past(state, 99 * LEASE_MS) == (state, False)


def test_a_reader_that_leaves_moves_nothing():
    """Damage: when the last reader leaves, all history is released, although the next reader may need it."""
    state = holding(a=(7, 4, 0))
    after, _ = expire_leased(state, "a")
    assert (after.leased, after.since) == ({}, MINIMUM)
    assert expire_leased(after, "a") == (after, None)


def test_versions_are_held_from_the_oldest_on():
    """Damage: parts are deleted while they are read."""
    assert seqno_held(holding(seqno=9, a=(0, 6, 0), b=(0, 5, 0))) == 5
    assert seqno_held(FRESH) == FRESH.seqno


def test_an_unreadable_shard_has_no_holds():
    """Damage: readers of a dropped collection create versions of it for ever."""
    for state in (replace(FRESH, since=EMPTY), replace(FRESH, since=EMPTY, upper=EMPTY)):
        assert register_leased(state, "r", 0) == (state, Leased(EMPTY, 4, 1_000))
        assert downgrade_leased(state, "r", Frontier(3), 4, 0) == (state, Downgraded(EMPTY))
        assert expire_leased(state, "r") == (state, None)
