"""Each bug planted above persist breaks a law of the whole system; without it the same history breaks none."""

from __future__ import annotations

from functools import partial

import pytest

from planted import alive, schedules
from planted.bugs import Bug
from planted.whole import BUGS, WATCHED_BUGS
from worlds.campaign import ASKED_FOR
from worlds.histories import must_break
from worlds.whole import play

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

SEEDS_MAX = 2_000
WATCHED_SEEDS_MAX = 600
"""A bug must be found by then; the unmodified code passes the seed that finds it (`planted.known`)."""
BUGS_MIN = 24


@pytest.mark.drawn(2)
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("bug", [*BUGS, *alive.BUGS, *schedules.BUGS], ids=lambda bug: bug.name)
def test_a_bug_planted_above_persist_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that others have made, and we would ship it."""
    must_break(bug, "whole", play, None, SEEDS_MAX, record_property)


@pytest.mark.parametrize("bug", WATCHED_BUGS, ids=lambda bug: bug.name)
def test_a_bug_planted_in_what_is_said_beside_ticks_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation would not see that a tick which hangs says nothing."""
    must_break(bug, "watched", partial(play, watched=True), {"silent", "L2"}, WATCHED_SEEDS_MAX, record_property)


def test_there_are_enough_bugs_and_no_two_of_one_name() -> None:
    """Damage: two figures under one name, of which one is read."""
    bugs = [*BUGS, *alive.BUGS, *schedules.BUGS]
    assert len({bug.name for bug in bugs}) == len(bugs) >= BUGS_MIN
