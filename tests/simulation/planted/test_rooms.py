"""Each bug planted in compute or sources breaks a law in the small world of its floor; without it no history does."""

from __future__ import annotations

import pytest

from laws.broken import LawBrokenError
from planted.bugs import Bug
from planted.rooms import MOVE_BUGS, PROMOTION_BUGS, RACE_BUGS, SINK_BUGS, SOURCE_BUGS, UNPREPARED_BUGS
from worlds.campaign import ASKED_FOR
from worlds.one_fault import Share
from worlds.persist import law_of
from worlds.seats import Model
from worlds.small_sink import FED, RACING
from worlds.small_source import COMING
from worlds.upper_points import try_one
from worlds.upper_scenarios import PROMOTE, STRANGER

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

MOVE_EVERY = 5
"""Of so many pairs of point and fate of the script one is tried."""
PLANTED = [*((bug, FED) for bug in SINK_BUGS), *((bug, RACING) for bug in RACE_BUGS)]
PLANTED += [(bug, COMING) for bug in SOURCE_BUGS]


@pytest.mark.parametrize(("bug", "model"), PLANTED, ids=lambda each: getattr(each, "name", str(each)))
def test_a_bug_planted_in_a_small_world_breaks_a_law(bug: Bug, model: Model, record_property) -> None:
    """Damage: the small world would not see the mistake either, and that it is searched whole says nothing."""
    with bug.planted(), pytest.raises(AssertionError, match="law ") as broken:
        model.search()
    record_property("FIGURE", f"planted.small.{bug.name} law={law_of(broken.value)} all pass")


SCRIPTED = [*((bug, STRANGER, 64) for bug in MOVE_BUGS), *((bug, PROMOTE, 64) for bug in PROMOTION_BUGS)]
SCRIPTED += [(bug, PROMOTE, 1) for bug in UNPREPARED_BUGS]


@pytest.mark.parametrize(("bug", "script", "patience"), SCRIPTED, ids=lambda each: getattr(each, "name", str(each)))
def test_a_bug_that_is_planted_breaks_a_law_in_a_script(bug: Bug, script: str, patience: int, record_property) -> None:
    """Damage: a view is wrong after one crash, and no script would show it.

    With a single attempt nothing is prepared, since no shard is made: the views are computed with the promotion.
    """
    with bug.planted():
        try:
            broken = try_one(((script, patience), Share(MOVE_EVERY))).broken
        except LawBrokenError as error:  # without any fault
            broken = repr(error)
    seen = LawBrokenError.__name__ in broken
    record_property("FIGURE", f"planted.script.{bug.name} every={MOVE_EVERY} all {'pass' if seen else 'miss'}")
    assert seen, bug.mistake


def test_without_a_bug_the_script_breaks_no_law() -> None:
    """Damage: the script fails for a reason of its own, and proves nothing about the bugs."""
    assert not try_one(((STRANGER, 64), Share(MOVE_EVERY))).broken


@pytest.mark.time_limit(600)
def test_without_a_bug_the_same_worlds_break_no_law() -> None:
    """Damage: the laws fail for a reason of their own, and prove nothing about the bugs."""
    for model in (FED, COMING):
        assert model.search().ends
