"""Views get other queries, and tables columns, while replicas and controllers crash, sleep and are cut off."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pytest

from planted import altered as altered_bugs
from planted import replaced as replaced_bugs
from planted.bugs import Bug
from worlds import altered, replaced
from worlds.campaign import ASKED_FOR, deal, mixed
from worlds.histories import made, must_break
from worlds.replaced import ReplacedWorld

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")


@dataclass(frozen=True, slots=True)
class Tried:
    """A world, what its histories are to meet, and the bugs that they are to show.

    ``histories``: so many are the same each time; as many new ones come with them.
    """

    play: Callable[[int], ReplacedWorld]
    histories: int
    marks: frozenset[str]
    bugs: Sequence[Bug]


MARKS: Final = frozenset({"replaced: goes on", "replaced: anew", "fenced", "caught up"})
REPLACED: Final = frozenset({"replaced: read at once", "replaced: at the end", "replacing: taken back", "torn"})
WORLDS: Final = {
    "replaced": Tried(replaced.play, 125, MARKS | REPLACED, replaced_bugs.BUGS),
    "altered": Tried(altered.play, 60, MARKS | {"altered", "altered: unknown"}, altered_bugs.BUGS),
}
LONG_HISTORIES: Final = 10_000
SEEDS_MAX: Final = 1_500
"""A planted bug must be found by then; the unmodified code passes the seed that finds it."""
BUGS_MIN: Final = 2


def hold(name: str, record_property, seeds) -> None:
    """Make histories, and insist that they were worth it: else the laws were not tried where it matters."""
    marks, traces = set(), set()
    for some, _, distinct, _ in deal(seeds, partial(made, WORLDS[name].play)):
        marks |= set(some)
        traces |= distinct
    assert marks >= WORLDS[name].marks, f"nothing met {WORLDS[name].marks - marks}"
    assert len(traces) >= 0.99 * len(seeds)
    record_property("FIGURE", f"{name}.histories {len(seeds)} >={len(seeds)} pass")
    record_property("FIGURE", f"{name}.newest-seed {seeds[-1]} - info")


@pytest.mark.time_limit(900)
@pytest.mark.parametrize("name", WORLDS)
def test_each_time_is_of_one_query_and_what_was_written_to_a_column_stays(name: str, record_property) -> None:
    """Damage: a reader sees the rows of a query that is gone, or rows of no query; or the values of a new column go."""
    hold(name, record_property, mixed(name, WORLDS[name].histories))


@pytest.mark.slow
@pytest.mark.time_limit(7_200)
@pytest.mark.parametrize("name", WORLDS)
def test_so_it_is_in_many_more_histories(name: str, record_property) -> None:
    """Damage: as above, where it takes rare luck."""
    hold(name, record_property, range(4_000_000, 4_000_000 + LONG_HISTORIES))


@pytest.mark.time_limit(900)
@pytest.mark.parametrize(
    ("name", "bug"), [pytest.param(name, bug, id=bug.name) for name, each in WORLDS.items() for bug in each.bugs]
)
def test_a_planted_bug_breaks_a_law(name: str, bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that an engineer will make."""
    must_break(bug, name, WORLDS[name].play, None, SEEDS_MAX, record_property)


@pytest.mark.parametrize("name", WORLDS)
def test_there_are_enough_bugs_and_no_two_of_one_name(name: str) -> None:
    """Damage: two figures under one name, of which one is read."""
    bugs = WORLDS[name].bugs
    assert len({bug.name for bug in bugs}) == len(bugs) >= BUGS_MIN
