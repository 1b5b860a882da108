"""The cost of a stage's step: by its inputs' changes, or anew from all that its inputs hold.

Which of the two is cheaper depends on the query, the rows and the machine, so it is measured.  Both are exact at every
time, so a wrong guess costs time and no answer.

A measurement ages whenever the other way is taken, so that a way that was dear once is tried again in time.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

ROWS_MIN: Final = 20_000
"""Fewer rows than this count as this many: most of such a step's time does not depend on them."""
KNOWN_MIN: Final = 3
"""The cost of small windows is known after this many steps.  The first ones prepare plans and arrange."""
AGED: Final = 0.95
"""What is left of a measurement each time that the other way is taken."""
COLD: Final = 4
"""The first computation of a stage plans and compiles: it takes at least this many times as long as a later one."""
SHARE_MAX: Final = 0.05
"""Where nothing is known, a large window with a greater share of the inputs' updates is computed anew."""


@dataclass(slots=True)
class Measured:
    """The last measurements of one way: rows that were read, and milliseconds."""

    taken: deque[tuple[int, float]] = field(default_factory=lambda: deque(maxlen=KNOWN_MIN))

    def expected(self, rows: int) -> float:
        """Return the milliseconds that ``rows`` will take: the least by any measurement."""
        return min(ms * max(rows, ROWS_MIN) / max(read, ROWS_MIN) for read, ms in self.taken)

    def age(self) -> None:
        """Let what was measured count for less."""
        self.taken = deque(((rows, ms * AGED) for rows, ms in self.taken), maxlen=KNOWN_MIN)


@dataclass(slots=True)
class Costs:
    """What the two ways cost of one stage, as measured in this process."""

    changes: Measured = field(default_factory=Measured)
    anew: Measured = field(default_factory=Measured)

    def note(self, *, anew: bool, rows: int, ms: float) -> None:
        """Note what a step took that read ``rows`` updates of its inputs."""
        measured, other = (self.anew, self.changes) if anew else (self.changes, self.anew)
        measured.taken.append((rows, ms / COLD if anew and not measured.taken else ms))
        other.age()

    def prefer_anew(self, changed: int, held: int, *, times: int, small: bool) -> bool:
        """Return whether a window of ``changed`` updates at so many ``times`` is better computed anew at each.

        ``held``: how many updates the inputs hold.  ``small``: whether it is a small window.
        """
        if changed < ROWS_MIN:
            return False
        if self.anew.taken and len(self.changes.taken) >= (KNOWN_MIN if small else 1):
            return self.anew.expected(held * times) < self.changes.expected(changed)
        return not small and changed > SHARE_MAX * held * times
