"""One fault, everywhere, breaks no law."""

from __future__ import annotations

import pytest

from worlds.campaign import ASKED_FOR
from worlds.one_fault import PERSIST_JOBS, PERSIST_QUICK, Job, Share, Tried, try_all
from worlds.scenarios import SCENARIOS

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")


SOME = Share.drawn(5)
"""What `make test` tries: 5 has no divisor in common with how many fates any site has, so each fate comes up."""
ALL = Share()


def hold(record_property, stage: str, job: Job, share: Share, tried: Tried) -> None:
    """Record a figure, and insist that every fate was met and no law was broken."""
    assert not tried.broken, f"{share}: {tried.broken}"
    verdict = "pass" if tried.reached == tried.possible else "miss"
    scenario, patience = job
    met = f"{tried.reached}/{tried.possible},{share},points={tried.points},runs={tried.runs}"
    record_property("FIGURE", f"{stage}.crash-points.{scenario}.patience-{patience} {met} all {verdict}")
    assert tried.reached == tried.possible
    assert tried.runs > tried.possible or share != ALL


@pytest.mark.parametrize("job", PERSIST_QUICK, ids=lambda job: f"{job[0]}-{job[1]}")
def test_a_share_of_single_faults_at_all_points_leaves_all_laws_intact(job: Job, record_property) -> None:
    """Damage: there is an instruction at which a crash, or a lost answer, loses or repeats what was acknowledged."""
    hold(record_property, "simulation", job, SOME, try_all(PERSIST_QUICK, SOME)[job])


@pytest.mark.slow
@pytest.mark.parametrize("job", PERSIST_JOBS, ids=lambda job: f"{job[0]}-{job[1]}")
def test_every_single_fault_at_every_point_leaves_all_laws_intact(job: Job, record_property) -> None:
    """Damage: the same, at an instruction that the share leaves out, or where persist tries longer, or not as long."""
    hold(record_property, "long", job, ALL, try_all(PERSIST_JOBS, ALL)[job])


def test_what_is_late_lands_at_several_moments_in_a_share_too() -> None:
    """Damage: a late effect is tried at one moment alone, at which it does no harm."""
    tried = try_all(PERSIST_QUICK, SOME).values()
    assert sum(each.runs for each in tried) > sum(each.possible for each in tried)


def test_a_share_is_tried_of_every_scenario() -> None:
    """Damage: a scenario is dropped, and what can become of it is tried nowhere."""
    assert {name for name, _ in PERSIST_QUICK} == {scenario.__name__ for scenario in SCENARIOS}
