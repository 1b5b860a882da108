"""One fault, everywhere, breaks no law."""

from __future__ import annotations

import pytest

from worlds.campaign import ASKED_FOR
from worlds.one_fault import PATIENCE, try_all
from worlds.scenarios import SCENARIOS

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")


@pytest.mark.parametrize("patience", PATIENCE)
@pytest.mark.parametrize("scenario", [scenario.__name__ for scenario in SCENARIOS])
def test_every_single_fault_at_every_point_leaves_all_laws_intact(
    scenario: str, patience: int, record_property
) -> None:
    """Damage: there is an instruction at which a crash, or a lost answer, loses or repeats what was acknowledged."""
    tried = try_all()[scenario, patience]
    assert not tried.broken, tried.broken
    verdict = "pass" if tried.reached == tried.possible else "miss"
    met = f"{tried.reached}/{tried.possible},points={tried.points},runs={tried.runs}"
    record_property("FIGURE", f"simulation.crash-points.{scenario}.patience-{patience} {met} all {verdict}")
    assert tried.reached == tried.possible
    assert tried.runs > tried.possible
