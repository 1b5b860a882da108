"""Each planted bug breaks a law within so many seeds; without it the same seeds break none (`test_persist.py`)."""

from __future__ import annotations

import pytest

import planted.limits  # their bugs are among those of `planted.bugs`
import planted.sharing
import planted.upkeep
from planted.bugs import BUGS, Bug
from worlds.campaign import ASKED_FOR
from worlds.cast import populate
from worlds.persist import law_of, play

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

SEEDS_MAX = 6_000
"""Fewer than the histories of the campaign that the unmodified code passes, and the same seeds."""
LAWS = frozenset(
    {
        *("P1", "P2", "P3", "P5", "P5g", "P6", "L1"),
        *("atomic", "bounds", "fence", "fresh", "holds", "lease", "negative", "observed"),
        *("register", "rollup", "swept"),
    }
)


def first_broken(bug: Bug) -> tuple[int, str] | None:
    """Return the first seed whose history breaks a law while ``bug`` lives, and the law."""
    with bug.planted():
        for seed in range(SEEDS_MAX):
            try:
                play(seed, populate)
            except Exception as error:  # noqa: BLE001  # a bug may also end a run by what it raises: that is no law
                if law_of(error) in LAWS:
                    return seed, law_of(error)
    return None


assert planted.upkeep.UNSEALED
assert {bug.wrong.__module__ for bug in BUGS} >= {planted.limits.__name__, planted.sharing.__name__}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_breaks_a_law(bug: Bug, record_property) -> None:
    """Damage: the simulation is blind to a mistake that others have made, and we would ship it."""
    found = first_broken(bug)
    seed, law = found or (SEEDS_MAX, "none")
    verdict = "pass" if found else "miss"
    record_property("FIGURE", f"planted.{bug.name} seeds={seed + 1},law={law} <={SEEDS_MAX} {verdict}")
    assert found, bug.mistake


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
