"""One fault, everywhere, breaks no law."""

from __future__ import annotations

import pytest

from worlds.campaign import ASKED_FOR
from worlds.one_fault import PATIENCE, PERSIST_QUICK, PERSIST_REST, Job, Tried, try_all
from worlds.scenarios import SCENARIOS

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")


def hold(record_property, stage: str, job: Job, tried: Tried) -> None:
    """Record a figure, and insist that every fate was met and no law was broken."""
    assert not tried.broken, tried.broken
    verdict = "pass" if tried.reached == tried.possible else "miss"
    scenario, patience = job
    met = f"{tried.reached}/{tried.possible},points={tried.points},runs={tried.runs}"
    record_property("FIGURE", f"{stage}.crash-points.{scenario}.patience-{patience} {met} all {verdict}")
    assert tried.reached == tried.possible
    assert tried.runs > tried.possible


@pytest.mark.parametrize("job", PERSIST_QUICK, ids=lambda job: f"{job[0]}-{job[1]}")
def test_every_single_fault_at_every_point_leaves_all_laws_intact(job: Job, record_property) -> None:
    """Damage: there is an instruction at which a crash, or a lost answer, loses or repeats what was acknowledged."""
    hold(record_property, "simulation", job, try_all(PERSIST_QUICK)[job])


@pytest.mark.slow
@pytest.mark.parametrize("job", PERSIST_REST, ids=lambda job: f"{job[0]}-{job[1]}")
def test_every_single_fault_leaves_all_laws_intact_with_the_other_patience(job: Job, record_property) -> None:
    """Damage: the same, where persist tries longer, or not as long."""
    hold(record_property, "long", job, try_all(PERSIST_REST)[job])


def test_every_scenario_is_tried_with_every_patience() -> None:
    """Damage: a scenario is dropped, or half of what can become of it is tried nowhere."""
    assert sorted((*PERSIST_QUICK, *PERSIST_REST)) == sorted((s.__name__, p) for s in SCENARIOS for p in PATIENCE)
    assert {name for name, _ in PERSIST_QUICK} == {scenario.__name__ for scenario in SCENARIOS}
