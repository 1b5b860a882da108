"""One fault, everywhere: each fate at each I/O point of small scenarios, each late effect at each later moment.

The scenarios run alone and in fair weather but for that one fault, so that every run is short and all of them can be
made.  Whoever crashes begins anew with its name only.  All laws of the world of persist are checked, as in campaigns.

Source: craft page "reliability" (S3, crash completeness).
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from strandline.testing.choices import FAULT
from strandline.testing.simulation import CHANGE, READ, WAIT, Fate
from worlds.campaign import ASKED_FOR
from worlds.persist import World
from worlds.scenarios import SCENARIOS, Scenario

pytestmark = pytest.mark.skipif(ASKED_FOR, reason="certain histories were asked for, and nothing else")

LAND = FAULT + "land"
FATES = {len(fates): fates for fates in (CHANGE, READ, WAIT)}
"""A site's fates, by how many they are."""
assert len(FATES) == 3
LATE = (Fate.LATE, Fate.CRASH_LATE)


class OneFault:
    """Nothing unusual, but the fate ``fate`` at fault point ``at``; what is late lands at the ``landing``-th chance."""

    def __init__(self, at: int = -1, fate: int = 0, landing: int = 0) -> None:
        self.points: list[int] = []
        self.landings = 0
        self._at, self._fate, self._landing = at, fate, landing

    def __call__(self, label: str, n: int) -> int:
        """Return one of ``0 .. n - 1``."""
        if label == LAND:
            self.landings += 1
            return int(self.landings == self._landing + 1)
        if not label.startswith(FAULT):
            return 0
        self.points.append(n)
        return self._fate if len(self.points) == self._at + 1 else 0


def run(scenario: Scenario, choose: OneFault, patience: int) -> World:
    """Run a scenario to its end; all laws are checked."""
    world = World(choose, patience=patience)
    world.simulation.spawn("c1", lambda _: scenario(world, "c1"))
    world.run()
    return world


def faults(scenario: Scenario, patience: int) -> Iterator[tuple[int, Fate, int]]:
    """Make every run with one fault; yield which: point, fate, landing."""
    calm = OneFault()
    run(scenario, calm, patience)
    for at, n in enumerate(calm.points):
        for fate in range(1, n):
            landing = 0
            while True:
                choose = OneFault(at, fate, landing)
                world = run(scenario, choose, patience)
                met = [step.fate for step in world.trace if step.fate is not None][at]
                assert met is FATES[n][fate], "the run must be the calm one up to its fault"
                assert world.acknowledged >= 1
                yield at, met, landing
                if met not in LATE or choose.landings <= landing:
                    break  # it landed only when nothing else was left to happen
                landing += 1


@pytest.mark.parametrize("patience", [64, 1])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_single_fault_at_every_point_leaves_all_laws_intact(scenario, patience: int, record_property) -> None:
    """Damage: there is an instruction at which a crash, or a lost answer, loses or repeats what was acknowledged."""
    calm = OneFault()
    run(scenario, calm, patience)
    possible = sum(n - 1 for n in calm.points)
    runs, reached = 0, set()
    for at, fate, _ in faults(scenario, patience):
        runs += 1
        reached.add((at, fate))
    verdict = "pass" if len(reached) == possible else "miss"
    name = f"simulation.crash-points.{scenario.__name__}.patience-{patience}"
    record_property("FIGURE", f"{name} {len(reached)}/{possible},points={len(calm.points)},runs={runs} all {verdict}")
    assert len(reached) == possible
    assert runs > possible
