"""One fault, everywhere: each fate at each I/O point of small scenarios, each late effect at each later moment.

The scenarios run alone and in fair weather but for that one fault, so that every run is short and all of them can be
made.  Whoever crashes begins anew with its name only.  All laws of the world of persist are checked, as in campaigns.

Source: craft page "reliability" (S3, crash completeness).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from strandline.testing.choices import FAULT
from strandline.testing.simulation import CHANGE, READ, WAIT, Fate
from worlds.persist import World
from worlds.processors import spread
from worlds.scenarios import SCENARIOS, Scenario

PATIENCE: Final = (64, 1)
LAND: Final = FAULT + "land"
FATES: Final = {len(fates): fates for fates in (CHANGE, READ, WAIT)}
"""A site's fates, by how many they are."""
assert len(FATES) == 3
LATE: Final = (Fate.LATE, Fate.CRASH_LATE)


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one scenario: its I/O points, how many pairs of point and fate there are and were met, its runs.

    ``broken`` is what the last of the runs broke, told as it would be; the search ends there.
    """

    points: int
    possible: int
    reached: int
    runs: int
    broken: str


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
        if label == "meanwhile":
            return n - 1  # no other process acts: with a single attempt, its commit would be one fault more
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


@cache
def try_all() -> dict[tuple[str, int], Tried]:
    """Try every scenario, with every patience, on all processors; by the scenario's name and the patience."""
    jobs = [(scenario.__name__, patience) for scenario in SCENARIOS for patience in PATIENCE]
    return dict(zip(jobs, spread(_try, jobs), strict=True))


def _try(job: tuple[str, int]) -> Tried:
    name, patience = job
    scenario = next(each for each in SCENARIOS if each.__name__ == name)
    calm = OneFault()
    run(scenario, calm, patience)
    runs, reached, broken = 0, set(), ""
    try:
        for at, fate, _ in _faults(scenario, calm.points, patience):
            runs += 1
            reached.add((at, fate))
    except Exception:  # noqa: BLE001 # whatever it is, the test of this scenario shows it, and the others go on
        broken = traceback.format_exc()
    return Tried(len(calm.points), sum(n - 1 for n in calm.points), len(reached), runs, broken)


def _faults(scenario: Scenario, points: list[int], patience: int) -> Iterator[tuple[int, Fate, int]]:
    """Make every run with one fault; yield which: point, fate, landing."""
    for at, n in enumerate(points):
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
