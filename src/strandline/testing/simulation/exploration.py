"""The choices of a simulation (from a seed, a list, or all lists), and exhaustive search of a small world.

A run of the simulation is a function of its choices: small integers, each one of ``0 .. n - 1``, each requested by a
label.  So a list replays a failing run, a shorter list may be a smaller example, and small worlds can be searched
exhaustively.  There are two kinds of label: ``fault:<what>`` asks whether a fault happens, and 0 means no; any other
label chooses among equal alternatives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from strandline.errors import InvalidUsage
from strandline.store.unreliable import Choose

FAULT: Final = "fault:"
"""The prefix of every label for which 0 means that no fault happens."""

FAULT_RATES: Final = (0.0, 0.02, 0.1, 0.3)
"""How often a run's faults fire; the seed chooses one of these rates."""
SWITCHED_ON: Final = 0.5
"""How likely a fault is to be enabled at one label in one run."""
FOCUS_RATE: Final = 0.5
"""How often faults fire at the site that a run focuses on, to find bugs that need repeated failures."""
assert all(0 <= rate < 1 for rate in (*FAULT_RATES, FOCUS_RATE)), "at rate 1 nothing ever gets done"


class Seeded:
    """Choices from a random generator: faults at rates drawn first (swarm testing), all else evenly.

    The caller passes the generator, so that a seed reproduces the run: ``Seeded(random.Random(17))``.
    ``focus``: the site at which all faults fire at `FOCUS_RATE`, whether enabled or not.

    The rates have two levels, as in FoundationDB's buggify: a fault is first switched on or off for the whole run, and
    those that are on then fire at a rate.
    """

    def __init__(self, rng: random.Random, focus: str = "") -> None:
        self._random = rng.random
        self._focus = FAULT + focus
        self._rate = FAULT_RATES[int(rng.random() * len(FAULT_RATES))]
        self._on: dict[tuple[str, int], list[int]] = {}

    def __call__(self, label: str, n: int) -> int:
        """Return one of ``0 .. n - 1``."""
        if not label.startswith(FAULT):
            return int(self._random() * n)
        if label == self._focus and self._random() < FOCUS_RATE:
            return int(self._random() * n)
        on = self._on.get((label, n))
        if on is None:
            on = [value for value in range(1, n) if self._random() < SWITCHED_ON]
            self._on[label, n] = on
        if not on or self._random() >= self._rate:
            return 0
        return on[int(self._random() * len(on))]


class Listed:
    """Choices from a list, then zeros.  Every list of integers is a legal run: values are taken modulo ``n``."""

    def __init__(self, choices: Sequence[int]) -> None:
        self._choices = iter(choices)

    def __call__(self, label: str, n: int) -> int:
        """Return one of ``0 .. n - 1``."""
        return next(self._choices, 0) % n


def every_list() -> Iterator[Choose]:
    """Yield the choices of one run after another, until every list of choices has been used once.

    Use each for one whole run before you request the next, because the requests of the run decide the next list.

    >>> [(choose("a", 2), choose("b", 2)) for choose in every_list()]
    [(0, 0), (0, 1), (1, 0), (1, 1)]

    Raises:
        InvalidUsage: a run made other requests after the same choices, so it is not a function of them.
    """
    asked: list[tuple[int, str, int]] = []  # value, label, n: the odometer, and the meaning of its digits
    while True:
        position = 0

        def choose(label: str, n: int) -> int:
            nonlocal position
            if position == len(asked):
                asked.append((0, label, n))
            value, before, bound = asked[position]
            if (before, bound) != (label, n):
                raise InvalidUsage(f"choice {position} was {before!r} of {bound}, and is now {label!r} of {n}")
            position += 1
            return value

        yield choose
        while asked and asked[-1][0] + 1 == asked[-1][2]:
            asked.pop()
        if not asked:
            return
        value, label, n = asked[-1]
        asked[-1] = (value + 1, label, n)


LAND: Final = FAULT + "land"
"""Whether a late effect lands now: a choice of the moment, and no additional fault."""

Arrived: TypeAlias = Callable[[Hashable], None]
"""A run calls this between steps, with the key of the state that it has reached."""


class _SeenError(Exception):
    """The run reached a known state."""


@dataclass(slots=True)
class Exploration:
    """A search in which each run has at most ``faults_max`` faults, at ``sites``; `explore` runs it.

    It makes all runs, except those that reach a known state.  The same choices reach the same state again; and two runs
    that reach one state continue alike, so the second may end there.  The world defines a state: the durable data, what
    each actor has received since its last start (its code is a function of that), the late effects, and the memory of
    the observers.

    Trap: differences that the key of a state leaves out are not searched.  Time must not move, each actor must have its
    own ids, and actors may share only the stores.
    """

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
