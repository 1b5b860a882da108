"""Exhaustive search of a small world: every run there is, states that were met before left out.

A run is a function of its choices, so a state is reached again by making the same choices; and two runs that come to
one state go on alike, so the second may end there.  What a state is, says the world: what is durable, what each actor
has received since it last began (its code is a function of that), what is late, and whatever the observers remember.

Trap: what the key of a state leaves out is not searched.  Time must stand still, ids must be an actor's own, and actors
may share nothing but the stores.

Source: craft page "reliability" (S8: small-model exhaustion; choices enumerated, states hashed).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from strandline.store.unreliable import Choose
from strandline.testing.choices import FAULT

LAND: Final = FAULT + "land"
"""Whether something late lands now: a moment to choose, and no fault of its own."""

Arrived: TypeAlias = Callable[[Hashable], None]
"""What a run calls between steps, with the key of the state it has come to."""


class _SeenError(Exception):
    """The run came to a state that was met before."""


@dataclass(slots=True)
class Exploration:
    """A search in which each run meets at most ``faults_max`` faults, at ``sites``.  `explore` it; then look at it."""

    faults_max: int
    sites: frozenset[str]
    runs: int = 0
    ends: int = 0
    states: set[int] = field(default_factory=set)

    def explore(self, run: Callable[[Choose, Arrived], None]) -> None:
        """Make every run, depth first.  What ``run`` raises ends the search."""
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
    """One run: the choices that lead to where it leaves others, then the first of each; the rest is for later."""

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
        """End the run if it came where another was, with as many faults met."""
        if len(self._choices) < len(self._prefix):
            return
        state = hash((self._faults, key))
        if state in self._whole.states:
            raise _SeenError
        self._whole.states.add(state)
