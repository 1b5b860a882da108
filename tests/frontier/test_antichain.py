"""Frontiers of time are a lattice whose greatest element is the empty one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.frontier import EMPTY, MINIMUM, TIME_MAX, Frontier, join, meet

times = st.integers(0, TIME_MAX)
frontiers = st.one_of(st.just(EMPTY), st.builds(Frontier, st.integers(0, 5)), st.builds(Frontier, times))


@given(frontiers, frontiers, frontiers)
def test_meet_and_join_make_a_lattice(a, b, c):
    """Damage: the result depends on the order in which frontiers are combined."""
    for combine in (meet, join):
        assert combine([a, b]) == combine([b, a])
        assert combine([combine([a, b]), c]) == combine([a, combine([b, c])]) == combine([a, b, c])
        assert combine([a, a]) == a
    assert meet([a, join([a, b])]) == a
    assert join([a, meet([a, b])]) == a


@given(frontiers, frontiers)
def test_the_order_is_total_and_that_of_meet_and_join(a, b):
    """Damage: an append is admitted although the shard is beyond it."""
    assert (a <= b) == (meet([a, b]) == a) == (join([a, b]) == b)
    assert (a < b) + (a == b) + (b < a) == 1
    assert (a <= b) == (a < b or a == b)
    assert (a > b, a >= b) == (b < a, b <= a)


@given(frontiers)
def test_minimum_is_least_and_empty_greatest(a):
    """Damage: sealing a collection takes its upper back to the beginning."""
    assert MINIMUM <= a <= EMPTY
    assert (meet([a, EMPTY]), join([a, MINIMUM])) == (a, a)
    assert (meet([]), join([])) == (EMPTY, MINIMUM)


@given(frontiers, times)
def test_a_time_may_change_iff_the_frontier_has_not_passed_it(a, time):
    """Damage: a snapshot is taken of a time that is not complete."""
    assert a.beyond(time) == (a <= Frontier(time))
    assert EMPTY.beyond(time) is False
    assert MINIMUM.beyond(time) is True


@given(frontiers, times, times)
def test_advancing_is_monotone_idempotent_and_keeps_readable_times_distinct(a, s, t):
    """Law P4.  Damage: compaction changes what is read at a readable time."""
    assert a.advance(a.advance(t)) == a.advance(t) >= t
    if s <= t:
        assert a.advance(s) <= a.advance(t)
    if a.beyond(t):
        assert a.advance(t) == t
        assert (a.advance(s) <= t) == (s <= t)


@pytest.mark.parametrize("time", [-1, TIME_MAX + 1, 5.0, "5", True])
def test_an_invalid_time_makes_no_frontier(time):
    """Damage: a time wraps around in Spark's BIGINT; or a bound is stored that cannot be read again."""
    with pytest.raises(ValueError, match="is not an int within"):
        Frontier(time)


def test_emptiness_is_a_named_property():
    """Damage: a frontier at 0 counts as empty."""
    assert (EMPTY.empty, MINIMUM.empty) == (True, False)
    assert (str(EMPTY), str(MINIMUM)) == ("[]", "[0]")
