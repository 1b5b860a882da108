"""What some user saw of a thing that never goes back: each look is held against the one before.

- observed: along the looks of one process at one thing (a frontier, an epoch, where a hold stands) what it sees only
  grows, whichever of its coroutines looks.
"""

from __future__ import annotations

from laws.broken import LawBrokenError
from strandline.frontier import Frontier


class Observed:
    """The newest look at each thing.  A thing is named by whose it is (any object of the run) and by what it is."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, str], float] = {}
        self.looks = 0

    def look(self, whose: object, what: str, value: Frontier | int) -> None:
        """Note that ``what`` of ``whose`` is ``value`` now."""
        self.looks += 1
        now = _number(value)
        before = self._seen.get((whose, what), now)
        if now < before:
            raise LawBrokenError("observed", f"{what} was seen at {before}, and then at {now}")
        self._seen[whose, what] = now


def _number(value: Frontier | int) -> float:
    if isinstance(value, Frontier):
        return float("inf") if value.at is None else value.at
    return value
