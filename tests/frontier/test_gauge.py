"""Offsets are a lattice in which most pairs are incomparable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.frontier import Offsets

offsets = st.builds(Offsets, st.dictionaries(st.sampled_from("abc"), st.integers(0, 4)))
NONE = Offsets()


@given(offsets, offsets, offsets)
def test_meet_and_join_make_a_distributive_lattice(a, b, c):
    """Damage: where a source resumes depends on the order in which its readers report."""
    for combine in (Offsets.join, Offsets.meet):
        assert combine(a, b) == combine(b, a)
        assert combine(combine(a, b), c) == combine(a, combine(b, c))
        assert combine(a, a) == a
    assert a.join(a.meet(b)) == a.meet(a.join(b)) == a
    assert a.meet(b.join(c)) == a.meet(b).join(a.meet(c))
    assert (NONE.join(a), NONE.meet(a)) == (a, NONE)


@given(offsets, offsets, offsets)
def test_the_order_is_partial_and_that_of_join(a, b, c):
    """Damage: a binding that forgets a partition counts as progress."""
    assert (a <= b) == (a.join(b) == b) == (a.meet(b) == a)
    assert a <= Offsets(dict(a.entries))
    assert a >= NONE
    if a <= b <= a:
        assert a == b
    if a <= b <= c:
        assert a <= c


@given(offsets, offsets)
def test_equal_offsets_cover_the_same_messages_and_hash_alike(a, b):
    """Damage: an explicit zero makes two equal positions differ."""
    everything = [(p, o) for p in "abcd" for o in range(6)]
    same = all(a.covers(*message) == b.covers(*message) for message in everything)
    assert (a == b) == same
    padded = Offsets({**dict.fromkeys("abcd", 0), **dict(a.entries)})
    assert (padded, hash(padded)) == (a, hash(a))


@given(offsets, offsets)
def test_messages_are_counted_by_what_is_newly_covered(earlier, later):
    """Damage: a progress display that goes back, or a re-read that is not counted."""
    fresh = [(p, o) for p in "abc" for o in range(6) if later.covers(p, o) and not earlier.covers(p, o)]
    assert later.messages_since(earlier) == len(fresh)


def test_negative_offsets_are_refused():
    """Damage: a position before the beginning covers nothing, and everything is read again."""
    with pytest.raises(ValueError, match="negative"):
        Offsets({"a": -1})
