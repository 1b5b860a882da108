"""One fault, everywhere: each fate at each I/O point of small scenarios, each late effect at each later moment.

The scenarios run alone and in fair weather but for that one fault, so that every run is short and all of them can be
made.  A user that crashes begins anew with its name only.  All laws of the scenario's world are checked, as in
campaigns.
"""

from __future__ import annotations

import secrets  # noqa: TID251 - other faults each time are the point
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count
from typing import Final, NamedTuple

from strandline.testing.simulation.exploration import FAULT
from strandline.testing.simulation.kernel import CHANGE, READ, WAIT, Fate
from worlds.outside import AT_ONCE
from worlds.persist import World
from worlds.processors import spread
from worlds.scenarios import SCENARIOS, Scenario

PATIENCE: Final = (64, 1)
LAND: Final = FAULT + "land"
SOME: Final = "consensus.compare_and_set_many.some"
MANY: Final = FAULT + "consensus.compare_and_set_many"
FATES: Final = {len(fates): fates for fates in (CHANGE, READ, WAIT, AT_ONCE)}
"""A site's fates, by how many they are; what else is asked (whether an engine fails) has another number of answers."""
assert len(FATES) == 4
LATE: Final = (Fate.LATE, Fate.CRASH_LATE)
UNREPORTED: Final = (*LATE, Fate.DONE_UNREPORTED, Fate.CRASH_AFTER)
CUTS: Final = 3
"""Which part of an unreported call that is not atomic happens: all of it, all but its first request, or only that."""


@dataclass(frozen=True, slots=True)
class Tried:
    """What came of one scenario: its I/O points, how many pairs of point and fate there are and were met, its runs.

    ``broken`` is the law that the last run broke, as a failure reports it; the search ends there.
    """

    points: int
    possible: int
    reached: int
    runs: int
    broken: str


class Point(NamedTuple):
    """Where a fault may come: what is asked, and how many answers there are, the usual one included."""

    label: str
    n: int


class OneFault:
    """Nothing unusual, but the fate ``fate`` at fault point ``at``; what is late lands at the ``landing``-th chance.

    ``cut``: which part happens of a call that is not atomic (`CUTS`).  Once it is ``over``, nothing unusual happens any
    longer, and what is late lands at once.
    """

    def __init__(self, at: int = -1, fate: int = 0, landing: int = 0, cut: int = 0) -> None:
        self.points: list[Point] = []
        self.landings = 0
        self.over = False
        self._at, self._fate, self._landing, self._cut = at, fate, landing, cut
        self._requests = 0

    def __call__(self, label: str, n: int) -> int:
        """Return one of ``0 .. n - 1``."""
        if label == LAND:
            self.landings += not self.over
            return int(self.over or self.landings == self._landing + 1)
        if label == SOME:
            self._requests += 1
            return int(self._cut == (1 if self._requests == 1 else 2))
        if label == "meanwhile":
            return n - 1  # no other process acts: with a single attempt, its commit would be one fault more
        if self.over or not label.startswith(FAULT):
            return 0
        self.points.append(Point(label, n))
        return self._fate if len(self.points) == self._at + 1 else 0


Run = Callable[[OneFault], None]
"""Make one run of a scenario, to its end; what it breaks is raised."""


class Attempted(NamedTuple):
    """One run: which fate at which point."""

    at: int
    fate: int


def calm(run: Run) -> list[Point]:
    """Make the run without a fault, and return its points."""
    choose = OneFault()
    run(choose)
    return choose.points


def pairs(points: Sequence[Point]) -> list[tuple[int, int]]:
    """Return every pair of a point and a fate."""
    return [(at, fate) for at, point in enumerate(points) for fate in range(1, point.n)]


def with_each(
    run: Run,
    points: Sequence[Point],
    these: Iterable[tuple[int, int]],
    landings: Callable[[], Iterable[int]] = count,
) -> Iterator[Attempted]:
    """Make every run with one of ``these`` faults, late ones at each of ``landings``; yield which, once it is made."""
    for at, fate in these:
        point = points[at]
        met = FATES[point.n][fate] if point.n in FATES else None
        for cut in range(CUTS if point.label == MANY and met in UNREPORTED else 1):
            for landing in landings():
                choose = OneFault(at, fate, landing, cut)
                run(choose)
                assert choose.points[: at + 1] == points[: at + 1], "the run must be the calm one up to its fault"
                yield Attempted(at, fate)
                if met not in LATE or choose.landings <= landing:
                    break  # it landed only when nothing else was left to happen


def tried(points: Sequence[Point], these: Sequence[tuple[int, int]], runs: Iterable[Attempted]) -> Tried:
    """Make ``runs`` and count them; what one of them breaks ends them."""
    many, reached, broken = 0, set(), ""
    try:
        for at, fate in runs:
            many += 1
            reached.add((at, fate))
    except Exception:  # noqa: BLE001 # whatever it is, the test of this scenario shows it, and the others go on
        broken = traceback.format_exc()
    return Tried(len(points), len(these), len(reached), many, broken)


# ---- persist ---------------------------------------------------------------------------------------------------------


def play(scenario: Scenario, choose: OneFault, patience: int) -> None:
    """Run a scenario of persist to its end; all laws are checked."""
    world = World(choose, patience=patience)
    world.simulation.spawn("c1", lambda _: scenario(world, "c1"))
    world.run()
    assert world.acknowledged >= 1


Job = tuple[str, int]
"""A scenario or script, by its name, and with which patience it is tried."""


class Share(NamedTuple):
    """One in ``every`` of the pairs of point and fate, from the ``first`` on."""

    every: int = 1
    first: int = 0

    @classmethod
    def drawn(cls, every: int) -> Share:
        """Return a share that is another one in each run; figures and failures name it."""
        return cls(every, secrets.randbelow(every))

    def of(self, these: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
        """Return the share of ``these`` pairs."""
        return these[self.first :: self.every]

    def __str__(self) -> str:
        return f"every={self.every},first={self.first}"


def one_patience_each(jobs: Mapping[str, Sequence[int]]) -> list[Job]:
    """Return each scenario with one of the patiences that it is tried with, in turn.

    >>> one_patience_each({"a": (64, 1), "b": (64, 1), "c": (64, 1)})
    [('a', 64), ('b', 1), ('c', 64)]
    """
    return [(name, patience[n % len(patience)]) for n, (name, patience) in enumerate(jobs.items())]


PERSIST_JOBS: Final = tuple((scenario.__name__, patience) for scenario in SCENARIOS for patience in PATIENCE)
PERSIST_QUICK: Final = tuple(one_patience_each({scenario.__name__: PATIENCE for scenario in SCENARIOS}))


@cache
def try_all(jobs: tuple[Job, ...], share: Share) -> dict[Job, Tried]:
    """Try a share of what can become of scenarios of persist, on all processors."""
    return dict(zip(jobs, spread(_try, [(job, share) for job in jobs]), strict=True))


def _try(asked: tuple[Job, Share]) -> Tried:
    (name, patience), share = asked
    scenario = next(each for each in SCENARIOS if each.__name__ == name)

    def run(choose: OneFault) -> None:
        play(scenario, choose, patience)

    points = calm(run)
    these = share.of(pairs(points))
    return tried(points, these, with_each(run, points, these))
