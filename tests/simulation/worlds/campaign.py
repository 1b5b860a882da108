"""Many histories in a row: which seeds, and what they amount to.

``STRANDLINE_SIM_SEED`` makes a campaign begin there and, alone, be that one history; ``STRANDLINE_SIM_RUNS`` says how
many there are (``make sim SEED=… N=…``).  Without them a campaign always makes the same histories.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

from strandline.testing.simulation.kernel import CHANGE, READ, WAIT, Fate
from worlds.persist import Populate, World, play
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


@dataclass(slots=True)
class Campaign:
    """What some histories amount to."""

    histories: int = 0
    acknowledged: int = 0
    io_points: int = 0
    reads: int = 0
    rollups: int = 0
    steps_max: int = 0
    cpu_seconds: float = 0.0
    traces: set[str] = field(default_factory=set)
    reached: set[tuple[str, Fate]] = field(default_factory=set)
    marks: Counter[str] = field(default_factory=Counter)

    def make(self, these: Iterable[int], populate: Populate) -> Campaign:
        """Make the histories of ``these`` seeds.  Raises whatever one of them breaks, with its seed in a note."""
        begun = time.process_time()
        for seed in these:
            self._add(play(seed, populate))
        self.cpu_seconds += time.process_time() - begun
        return self

    def join(self, other: Campaign) -> None:
        """Count the histories of ``other`` too."""
        self.histories += other.histories
        self.acknowledged += other.acknowledged
        self.io_points += other.io_points
        self.reads += other.reads
        self.rollups += other.rollups
        self.steps_max = max(self.steps_max, other.steps_max)
        self.cpu_seconds += other.cpu_seconds
        self.traces |= other.traces
        self.reached |= other.reached
        self.marks += other.marks

    def _add(self, world: World) -> None:
        self.histories += 1
        self.acknowledged += world.acknowledged
        self.io_points += world.io_points
        self.reads += world.history.reads
        self.rollups += world.places.rollups_named
        self.steps_max = max(self.steps_max, world.simulation.steps)
        self.traces.add(world.simulation.trace_hash())
        self.reached |= world.simulation.coverage() & POSSIBLE
        self.marks += world.marks


def wage(these: range, populate: Populate) -> Campaign:
    """Make the histories of ``these`` seeds on all processors."""
    whole = Campaign()
    for part in deal(these, partial(_make, populate)):
        whole.join(part)
    return whole


def deal(these: range, make: Callable[[range], T]) -> Iterator[T]:
    """Have all processors ``make`` slices of the seeds ``these``; give what came of each, in the order of the seeds.

    A history depends on its seed alone, so any processor may make it.  ``make`` must be picklable, and what it
    raises ends the whole.
    """
    return spread(make, [these[at : at + SLICE] for at in range(0, len(these), SLICE)])


def _make(populate: Populate, these: range) -> Campaign:
    return Campaign().make(these, populate)
