"""Exhaustive search of a small world: all runs, except those that reach a known state.

A run is a function of its choices, so the same choices reach the same state again; and two runs that reach one state
continue alike, so the second may end there.  The world defines a state: the durable data, what each actor has received
since its last start (its code is a function of that), the late effects, and the memory of the observers.

Trap: differences that the key of a state leaves out are not searched.  Time must stand still, each actor must have its
own ids, and actors may share only the stores.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from strandline.store.unreliable import Choose
from strandline.testing.simulation.choices import FAULT

LAND: Final = FAULT + "land"
"""Whether a late effect lands now: a choice of the moment, and no additional fault."""

Arrived: TypeAlias = Callable[[Hashable], None]
"""A run calls this between steps, with the key of the state that it has reached."""


class _SeenError(Exception):
    """The run reached a known state."""


@dataclass(slots=True)
class Exploration:
    """A search in which each run has at most ``faults_max`` faults, at ``sites``; `explore` runs it."""

    faults_max: int
    sites: frozenset[str]
    runs: int = 0
    ends: int = 0
    states: set[int] = field(default_factory=set)

    def explore(self, run: Callable[[Choose, Arrived], None]) -> None:
        """Make every run, depth first.  An error of ``run`` ends the search."""
        ahead: list[tuple[int, ...]] = [()]
        while ahead:
            self.runs += 1
            taken = _Taken(ahead.pop(), ahead, self)
            try:
                run(taken.choose, taken.arrived)
            except _SeenError:
                continue
            self.ends += 1


class _Taken:
    """One run: a prefix of choices, then the first alternative of each later choice; others are for later runs."""

    def __init__(self, prefix: tuple[int, ...], ahead: list[tuple[int, ...]], whole: Exploration) -> None:
        self._prefix = prefix
        self._ahead = ahead
        self._whole = whole
        self._choices: list[int] = []
        self._faults = 0

    def choose(self, label: str, n: int) -> int:
        """Return the prefix's choice; beyond it 0, and leave the others to later runs."""
        fault = label.startswith(FAULT) and label != LAND
        if fault and (self._faults == self._whole.faults_max or label.removeprefix(FAULT) not in self._whole.sites):
            return 0
        position = len(self._choices)
        if position < len(self._prefix):
            value = self._prefix[position]
        else:
            value = 0
            self._ahead += [(*self._choices, other) for other in range(1, n)]
        self._choices.append(value)
        self._faults += fault and value > 0
        return value

    def arrived(self, key: Hashable) -> None:
        """End the run if an earlier one reached this state with as many faults."""
        if len(self._choices) < len(self._prefix):
            return
        state = hash((self._faults, key))
        if state in self._whole.states:
            raise _SeenError
        self._whole.states.add(state)
