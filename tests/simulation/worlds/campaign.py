"""Many histories in a row: which seeds, and what they amount to.

``STRANDLINE_SIM_SEED`` makes a campaign begin there and, alone, be that one history; ``STRANDLINE_SIM_RUNS`` says how
many there are (``make sim SEED=… N=…``).  Without them a campaign of ``make test`` makes the same histories each time,
among them those that once showed something, and as many that no run made before; its figures name the last of them.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, Self, TypeVar

from planted.known import telling
from strandline.testing.simulation.kernel import CHANGE, READ, WAIT, Fate, Simulation
from worlds.persist import Populate, play
from worlds.processors import spread

T = TypeVar("T")

SEED: Final = "STRANDLINE_SIM_SEED"
RUNS: Final = "STRANDLINE_SIM_RUNS"

ASKED_FOR: Final = bool(os.environ.get(SEED))
"""Whether the caller wants to see certain histories again, and nothing else."""

SITES: Final = {
    "blob.get": READ,
    "blob.set": CHANGE,
    "blob.delete": CHANGE,
    "blob.list": READ,
    "consensus.head": READ,
    "consensus.scan": READ,
    "consensus.compare_and_set": CHANGE,
    "consensus.compare_and_set_many": CHANGE,
    "consensus.truncate": CHANGE,
    "clock.sleep": WAIT,
}
"""Where persist does I/O, and what may become of it there."""
POSSIBLE: Final = frozenset((site, fate) for site, fates in SITES.items() for fate in fates)
FRESH: Final = 1_000_000_000
"""New seeds begin beyond all that a campaign names, at the millisecond at which they are asked for."""
SLICE: Final = 250
"""How many histories a process makes at a time."""


def seeds(base: int, runs: int) -> range:
    """Return the seeds of a campaign that begins at ``base`` and makes ``runs`` histories; variables override both."""
    first, many = os.environ.get(SEED), os.environ.get(RUNS)
    if many:
        runs = int(many)
    elif first:
        runs = 1
    return range(int(first), int(first) + runs) if first else range(base, base + runs)


def mixed(campaign: str, fixed: int, new: int | None = None) -> Sequence[int]:
    """Return the seeds of a campaign: the ``fixed`` first ones, those that once showed something, and as many new ones.

    ``new``: so many new ones instead.  Variables override that, as in `seeds`.
    """
    if os.environ.get(SEED) or os.environ.get(RUNS):
        return seeds(0, fixed)
    same = [*range(fixed), *sorted(telling(campaign) - frozenset(range(fixed)))]
    first = newest()
    return [*same, *range(first, first + (len(same) if new is None else new))]


def newest() -> int:
    """Return a seed from which on no run made histories before."""
    return FRESH + time.time_ns() // 1_000_000  # noqa: TID251 - other histories each time are the point


class Played(Protocol):
    """A world after one history."""

    simulation: Simulation
    marks: Counter[str]

    @property
    def acknowledged(self) -> int:
        """How many commits were acknowledged."""
        ...

    @property
    def io_points(self) -> int:
        """How many calls were made to what is outside."""
        ...


@dataclass
class Tally:
    """What some histories of any world amount to."""

    histories: int = 0
    acknowledged: int = 0
    io_points: int = 0
    steps_max: int = 0
    cpu_seconds: float = 0.0
    traces: set[str] = field(default_factory=set)
    reached: dict[tuple[str, Fate], int] = field(default_factory=dict)
    """The fates that were met, and the seed of the first history that met each."""
    marks: Counter[str] = field(default_factory=Counter)

    def count(self, world: Played, possible: frozenset[tuple[str, Fate]], seed: int) -> None:
        """Count the history of ``seed``; ``possible`` are the fates that it is to reach."""
        self.histories += 1
        self.acknowledged += world.acknowledged
        self.io_points += world.io_points
        self.steps_max = max(self.steps_max, world.simulation.steps)
        self.traces.add(world.simulation.trace_hash())
        self.reached = dict.fromkeys(world.simulation.coverage() & possible, seed) | self.reached
        self.marks += world.marks

    def join(self, other: Self) -> None:
        """Count the histories of ``other`` too."""
        self.histories += other.histories
        self.acknowledged += other.acknowledged
        self.io_points += other.io_points
        self.steps_max = max(self.steps_max, other.steps_max)
        self.cpu_seconds += other.cpu_seconds
        self.traces |= other.traces
        self.reached = other.reached | self.reached
        self.marks += other.marks


@dataclass
class Campaign(Tally):
    """What some histories of persist amount to."""

    reads: int = 0
    rollups: int = 0

    def make(self, these: Iterable[int], populate: Populate) -> Campaign:
        """Make the histories of ``these`` seeds.  Raises whatever one of them breaks, with its seed in a note."""
        begun = time.process_time()
        for seed in these:
            world = play(seed, populate)
            self.count(world, POSSIBLE, seed)
            self.reads += world.history.reads
            self.rollups += world.places.rollups_named
        self.cpu_seconds += time.process_time() - begun
        return self

    def join(self, other: Self) -> None:
        """Count the histories of ``other`` too."""
        super().join(other)
        self.reads += other.reads
        self.rollups += other.rollups


def wage(these: Sequence[int], populate: Populate) -> Campaign:
    """Make the histories of ``these`` seeds on all processors."""
    whole = Campaign()
    for part in deal(these, partial(_make, populate)):
        whole.join(part)
    return whole


def deal(these: Sequence[int], make: Callable[[Sequence[int]], T]) -> Iterator[T]:
    """Have all processors ``make`` slices of the seeds ``these``; give what came of each, in the order of the seeds.

    A history depends on its seed alone, so any processor may make it.  ``make`` must be picklable, and what it
    raises ends the whole.
    """
    return spread(make, [these[at : at + SLICE] for at in range(0, len(these), SLICE)])


def _make(populate: Populate, these: Sequence[int]) -> Campaign:
    return Campaign().make(these, populate)
