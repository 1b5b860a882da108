"""Each planted bug breaks a law in the history of some seed; without it that one breaks none (`test_persist.py`)."""

from __future__ import annotations

from functools import partial

import pytest

import planted.limits  # their bugs are among those of `planted.bugs`
import planted.sharing
import planted.upkeep
from planted.bugs import BUGS, Bug
from worlds.campaign import ASKED_FOR
from worlds.cast import populate
from worlds.histories import must_break
from worlds.persist import play

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

SEEDS_MAX = 6_000
"""A bug must be found by then; the unmodified code passes the seed that finds it (`planted.known`)."""
LAWS = frozenset(
    {
        *("P1", "P2", "P3", "P5", "P5g", "P6", "L1"),
        *("atomic", "bounds", "fence", "fresh", "holds", "lease", "negative", "observed"),
        *("register", "rollup", "swept"),
    }
)


assert planted.upkeep.UNSEALED
assert {bug.wrong.__module__ for bug in BUGS} >= {planted.limits.__name__, planted.sharing.__name__}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that others have made, and we would ship it."""
    must_break(bug, "persist", partial(play, populate=populate), LAWS, SEEDS_MAX, record_property)


def test_a_bug_lives_only_while_it_is_planted() -> None:
    """Damage: a planted bug leaks into other tests, and they fail or, worse, pass for it."""
    for bug in BUGS:
        before = [getattr(owner, name) for owner, name in bug.places]
        with bug.planted():
            assert all(getattr(owner, name) is bug.wrong for owner, name in bug.places)
        assert [getattr(owner, name) for owner, name in bug.places] == before


def test_there_are_no_two_bugs_of_one_name() -> None:
    """Damage: two figures under one name, of which one is read."""
    assert len({bug.name for bug in BUGS}) == len(BUGS)
