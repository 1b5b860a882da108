"""Each bug planted above persist breaks a law of the whole system; without it the same seeds break none."""

from __future__ import annotations

import pytest

from planted.bugs import Bug
from planted.whole import BUGS, WATCHED_BUGS
from worlds.campaign import ASKED_FOR
from worlds.whole import law_of, play

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

SEEDS_MAX = 2_000
WATCHED_SEEDS_MAX = 600
"""Fewer than the histories of the campaigns that the unmodified code passes, and the same seeds."""
BUGS_MIN = 24


def first_broken(bug: Bug, *, watched: bool = False) -> tuple[int, str] | None:
    """Return the first seed whose history breaks a law while ``bug`` lives, and the law."""
    with bug.planted():
        for seed in range(WATCHED_SEEDS_MAX if watched else SEEDS_MAX):
            try:
                play(seed, watched=watched)
            except Exception as error:  # noqa: BLE001  # a bug may also end a run by what it raises: that is no law
                if law := law_of(error):
                    return seed, law
    return None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_bug_planted_above_persist_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that others have made, and we would ship it."""
    found = first_broken(bug)
    seed, law = found or (SEEDS_MAX, "none")
    verdict = "pass" if found else "miss"
    record_property("FIGURE", f"planted.whole.{bug.name} seeds={seed + 1},law={law} <={SEEDS_MAX} {verdict}")
    assert found, bug.mistake


@pytest.mark.parametrize("bug", WATCHED_BUGS, ids=lambda bug: bug.name)
def test_a_bug_planted_in_what_is_said_beside_ticks_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation would not see that a tick which hangs says nothing."""
    seed, law = first_broken(bug, watched=True) or (WATCHED_SEEDS_MAX, "none")
    verdict = "pass" if law != "none" else "miss"
    record_property("FIGURE", f"planted.watched.{bug.name} seeds={seed + 1},law={law} <={WATCHED_SEEDS_MAX} {verdict}")
    assert law in {"silent", "L2"}, bug.mistake


def test_there_are_enough_bugs_and_no_two_of_one_name() -> None:
    """Damage: two figures under one name, of which one is read."""
    assert len({bug.name for bug in BUGS}) == len(BUGS) >= BUGS_MIN
