"""One fault, everywhere in whole environments, breaks no law; and everything catches up without help."""

from __future__ import annotations

from functools import cache

import pytest

from worlds.campaign import ASKED_FOR
from worlds.one_fault import Job, Share, Tried, one_patience_each
from worlds.upper_points import EVERY, try_each
from worlds.upper_scenarios import SCRIPTS

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

JOBS = tuple((script.name, patience) for script in SCRIPTS for patience in script.patience)
QUICK = tuple(one_patience_each({script.name: script.patience for script in SCRIPTS}))
SCRIPTS_MIN = 8

SOME = Share.drawn(EVERY)
ALL = Share()

tried_once = cache(try_each)
"""What came of scripts, tried once for all tests."""


def hold(record_property, stage: str, tried: Tried, job: Job, share: Share) -> None:
    """Record a figure, and insist that every fate was met and no law was broken."""
    assert not tried.broken, f"{share}: {tried.broken}"
    verdict = "pass" if tried.reached == tried.possible else "miss"
    script, patience = job
    met = f"{tried.reached}/{tried.possible},{share},points={tried.points},runs={tried.runs}"
    record_property("FIGURE", f"{stage}.upper-points.{script}.patience-{patience} {met} all {verdict}")
    assert tried.reached == tried.possible
    assert tried.runs > tried.possible or share != ALL


@pytest.mark.parametrize("job", QUICK, ids=lambda job: f"{job[0]}-{job[1]}")
def test_a_share_of_single_faults_at_all_points_leaves_all_laws_intact(job: Job, record_property) -> None:
    """Damage: there is an instruction at which a crash, or a lost answer, makes a view wrong, or stops it for good."""
    hold(record_property, "simulation", tried_once(QUICK, SOME)[job], job, SOME)


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job[0]}-{job[1]}")
def test_every_single_fault_at_every_point_leaves_all_laws_intact(job: Job, record_property) -> None:
    """Damage: the same, at an instruction that the share leaves out."""
    hold(record_property, "long", tried_once(JOBS, ALL)[job], job, ALL)


def test_what_is_late_lands_at_several_moments_in_a_share_too() -> None:
    """Damage: a late effect is tried at one moment alone, at which it does no harm."""
    tried = tried_once(QUICK, SOME).values()
    assert sum(each.runs for each in tried) > sum(each.possible for each in tried)


def test_there_are_enough_scripts_and_no_two_of_one_name() -> None:
    """Damage: two figures under one name, of which one is read; or a script is dropped and its floor goes untried."""
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS) >= SCRIPTS_MIN
