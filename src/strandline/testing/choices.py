"""Where a simulation's choices come from: a seed, a list, or every list there is.

A run of the simulation is a function of its choices: small integers, each one of ``0 .. n - 1``, each asked for by a
label.  So a failing run is a list that replays it, a shorter list may be the smaller example, and small worlds can be
searched whole.

Two kinds of label: ``fault:<what>`` asks whether something unusual happens, and 0 says no; any other asks which of
several equals.

Source: craft page "reliability" (3.1: seed, list, exhaustive); two-level rates as in FoundationDB's buggify: a fault is
first switched on or off for the whole run, and those that are on then fire at a rate.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

from strandline.errors import InvalidUsage
from strandline.store.unreliable import Choose

FAULT: Final = "fault:"
"""Starts every label under which 0 means that nothing unusual happens."""

FAULT_RATES: Final = (0.0, 0.02, 0.1, 0.3)
"""How often a run's faults fire; which of these is part of the seed."""
SWITCHED_ON: Final = 0.5
"""How likely a fault is to be possible at all at one label in one run."""
FOCUS_RATE: Final = 0.5
"""How often faults fire at the one site that a run may focus on: what only repeated failure brings is met there."""
assert all(0 <= rate < 1 for rate in (*FAULT_RATES, FOCUS_RATE)), "at rate 1 nothing ever gets done"


class Seeded:
    """Choices from a random generator: faults at rates drawn first (swarm testing), all else evenly.

    The generator is the caller's, so that a seed is all there is to remember: ``Seeded(random.Random(17))``.
    ``focus``: the site that meets any of its fates at `FOCUS_RATE`, whatever is switched on.
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
    """Yield choices for one run after another, until every list of choices has been taken once.

    Each must be used for one whole run before the next is asked for: what the run asks decides what comes next.

    >>> [(choose("a", 2), choose("b", 2)) for choose in every_list()]
    [(0, 0), (0, 1), (1, 0), (1, 1)]

    Raises:
        InvalidUsage: a run did not ask again what it had asked after the same choices: it is not a function of them.
    """
    asked: list[tuple[int, str, int]] = []  # value, label, n: the odometer, and what its digits stand for
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
