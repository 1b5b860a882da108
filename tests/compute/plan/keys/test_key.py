"""The key of a plan tells its rows apart, at every time."""

from __future__ import annotations

from strandline.algebra.nodes import Get, Join, Reduce
from strandline.algebra.scalar import scalar
from strandline.compute.plan.matching import key


def grouped(name: str, *keys: str) -> Reduce:
    """Return a collection grouped by some of its columns; by none it is one row."""
    below = Get(name, tuple((key, key) for key in keys) or (("n", "n"),))
    return Reduce(below, tuple((key, scalar(f"`{key}`")) for key in keys), ())


def test_the_key_of_a_join_is_that_of_all_its_sides_together() -> None:
    """Damage: an endpoint keeps one row of a join by the key of one side, or one at all, and loses the others."""
    sides = grouped("t", "a", "b"), grouped("one"), grouped("u", "c")
    assert key(Join(sides)) == ("a", "b", "c")
    assert key(Join((grouped("one"), grouped("other")))) == ()
    assert key(Join((*sides, Get("v", (("d", "d"),))))) is None
