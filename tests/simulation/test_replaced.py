"""Views that get other queries while replicas and controllers crash, sleep and are cut off: one query or the other."""

from __future__ import annotations

import pytest

from planted.replaced import BUGS, Bug
from worlds.campaign import ASKED_FOR, deal, mixed
from worlds.histories import made, must_break
from worlds.replaced import play

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

HISTORIES = 125
"""Those that are the same each time; as many new ones come with them."""
LONG_HISTORIES = 10_000
SEEDS_MAX = 1_500
"""A planted bug must be found by then; the unmodified code passes the seed that finds it."""
BUGS_MIN = 2
MARKS = frozenset(
    {
        *("replaced: goes on", "replaced: anew", "replaced: read at once", "replaced: at the end"),
        *("replacing: taken back", "torn", "fenced", "caught up"),
    }
)
"""What these histories meet: each must come up, or the laws were not tried where it matters."""


def hold(record_property, seeds) -> None:
    """Make histories, and insist that they were worth it."""
    marks, traces = set(), set()
    for some, _, distinct, _ in deal(seeds, made_replaced):
        marks |= set(some)
        traces |= distinct
    assert marks >= MARKS, f"nothing met {MARKS - marks}"
    assert len(traces) >= 0.99 * len(seeds)
    record_property("FIGURE", f"replaced.histories {len(seeds)} >={len(seeds)} pass")
    record_property("FIGURE", f"replaced.newest-seed {seeds[-1]} - info")


def made_replaced(seeds):
    """Make the histories of ``seeds``."""
    return made(play, seeds)


@pytest.mark.time_limit(900)
def test_each_time_is_of_one_query_and_none_of_an_earlier_one_than_the_time_before(record_property) -> None:
    """Damage: a reader sees the rows of a query that is gone, or rows of no query, and they may stay."""
    hold(record_property, mixed("replaced", HISTORIES))


@pytest.mark.slow
@pytest.mark.time_limit(7_200)
def test_so_it_is_in_many_more_histories(record_property) -> None:
    """Damage: as above, where it takes rare luck."""
    hold(record_property, range(4_000_000, 4_000_000 + LONG_HISTORIES))


@pytest.mark.time_limit(900)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that an engineer will make."""
    must_break(bug, "replaced", play, None, SEEDS_MAX, record_property)


def test_there_are_enough_bugs_and_no_two_of_one_name() -> None:
    """Damage: two figures under one name, of which one is read."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= BUGS_MIN
