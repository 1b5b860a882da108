"""Each bug planted in compute or sources breaks a law in the small world of its floor; without it no history does."""

from __future__ import annotations

import pytest

from laws.broken import LawBrokenError
from planted.bugs import Bug
from planted.rooms import SINK_BUGS, SOURCE_BUGS
from worlds.campaign import ASKED_FOR
from worlds.seats import Model
from worlds.small_sink import FED
from worlds.small_source import COMING

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

PLANTED = [*((bug, FED) for bug in SINK_BUGS), *((bug, COMING) for bug in SOURCE_BUGS)]


@pytest.mark.parametrize(("bug", "model"), PLANTED, ids=lambda each: getattr(each, "name", str(each)))
def test_a_bug_planted_in_a_small_world_breaks_a_law(bug: Bug, model: Model, record_property) -> None:
    """Damage: the small world would not see the mistake either, and that it is searched whole says nothing."""
    with bug.planted(), pytest.raises(LawBrokenError) as broken:
        model.search()
    record_property("FIGURE", f"planted.small.{bug.name} law={broken.value.law} all pass")


def test_without_a_bug_the_same_worlds_break_no_law() -> None:
    """Damage: the laws fail for a reason of their own, and prove nothing about the bugs."""
    for model in (FED, COMING):
        assert model.search().ends
