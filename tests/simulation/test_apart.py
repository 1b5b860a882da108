"""A controller and replicas that crash, sleep, are cut off and take each other's place keep every law."""

from __future__ import annotations

import pytest

from planted.apart import BUGS, Bug
from worlds.apart import play
from worlds.campaign import ASKED_FOR, deal, mixed
from worlds.histories import made, must_break

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

HISTORIES = 120
"""Those that are the same each time."""
NEW_HISTORIES = 60
"""So many new ones come with them."""
LONG_HISTORIES = 20_000
SEEDS_MAX = 1_500
"""A planted bug must be found by then; the unmodified code passes the seed that finds it."""
BUGS_MIN = 10
MARKS = frozenset(
    {"tick: problems", "caught up", "fenced", "replicas: reused", "replicas: created", "replicas: dropped"}
)
"""What controllers and replicas meet: each must come up, or the laws were not tried where it matters."""
SITES = frozenset({"carrier.send", "carrier.receive", "carrier.dial"})


def hold(record_property, seeds) -> None:
    """Make histories, and insist that they were worth it."""
    marks, traces, sites = set(), set(), set()
    for some, _, distinct, fates in deal(seeds, made_apart):
        marks |= set(some)
        traces |= distinct
        sites |= {site for site, _ in fates}
    assert marks >= MARKS, f"nothing met {MARKS - marks}"
    assert sites >= SITES
    assert len(traces) >= 0.99 * len(seeds)
    record_property("FIGURE", f"apart.histories {len(seeds)} >={len(seeds)} pass")
    record_property("FIGURE", f"apart.newest-seed {seeds[-1]} - info")


def made_apart(seeds):
    """Make the histories of ``seeds``."""
    return made(play, seeds)


@pytest.mark.time_limit(900)
def test_every_law_holds_in_every_history(record_property) -> None:
    """Damage: after some crash or cut, a view stands still in silence, runs twice, or is wrong."""
    hold(record_property, mixed("apart", HISTORIES, NEW_HISTORIES))


@pytest.mark.slow
@pytest.mark.time_limit(7_200)
def test_every_law_holds_in_many_more_histories(record_property) -> None:
    """Damage: as above, where it takes rare luck."""
    hold(record_property, range(1_000_000, 1_000_000 + LONG_HISTORIES))


def test_a_history_is_a_function_of_its_seed() -> None:
    """Damage: what a seed found cannot be found again."""
    assert play(7).simulation.trace_hash() == play(7).simulation.trace_hash()
    assert play(7).simulation.trace_hash() != play(8).simulation.trace_hash()


@pytest.mark.time_limit(600)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that an engineer will make."""
    must_break(bug, "apart", play, None, SEEDS_MAX, record_property)


def test_there_are_enough_bugs_and_no_two_of_one_name() -> None:
    """Damage: two figures under one name, of which one is read."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= BUGS_MIN
