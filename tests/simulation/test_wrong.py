"""A replica that is wrong is named, it alone; and what it wrote is right again."""

from __future__ import annotations

import pytest

from planted.wrong import BUGS, Bug
from worlds.campaign import ASKED_FOR, deal, mixed
from worlds.histories import made, must_break
from worlds.wrong import play

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

HISTORIES = 20
"""Those that are the same each time."""
NEW_HISTORIES = 15
"""So many new ones come with them."""
LONG_HISTORIES = 5_000
SEEDS_MAX = 600
"""A planted bug must be found by then; the unmodified code passes the seed that finds it."""
BUGS_MIN = 7
NAMED_MIN = 0.4
"""In so large a part of histories the wrong replica is found; in others it is away, or loses no race and wins none."""


def hold(record_property, seeds) -> None:
    """Make histories, and insist that they were worth it."""
    named, traces = 0, set()
    for marks, _, distinct, _ in deal(seeds, made_wrong):
        named += marks["histories: named"]
        traces |= distinct
    assert named >= NAMED_MIN * len(seeds)
    assert len(traces) >= 0.99 * len(seeds)
    record_property("FIGURE", f"wrong.histories {len(seeds)} >={len(seeds)} pass")
    record_property("FIGURE", f"wrong.named {named / len(seeds):.2f} >={NAMED_MIN} pass")
    record_property("FIGURE", f"wrong.newest-seed {seeds[-1]} - info")


def made_wrong(seeds):
    """Make the histories of ``seeds``."""
    return made(play, seeds)


@pytest.mark.time_limit(900)
def test_the_wrong_replica_alone_is_named_and_its_views_are_right_again(record_property) -> None:
    """Damage: after some crash or cut the right replica is stopped, or wrong rows stay in a view."""
    hold(record_property, mixed("wrong", HISTORIES, NEW_HISTORIES))


@pytest.mark.slow
@pytest.mark.time_limit(7_200)
def test_so_it_is_in_many_more_histories(record_property) -> None:
    """Damage: as above, where it takes rare luck."""
    hold(record_property, range(3_000_000, 3_000_000 + LONG_HISTORIES))


@pytest.mark.time_limit(600)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that an engineer will make."""
    must_break(bug, "wrong", play, None, SEEDS_MAX, record_property)


def test_there_are_enough_bugs_and_no_two_of_one_name() -> None:
    """Damage: two figures under one name, of which one is read."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= BUGS_MIN
