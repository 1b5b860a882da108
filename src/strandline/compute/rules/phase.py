"""The three sides of an input in a step, and how its frames are called.

A step over ``[lower, upper)`` sees each of its inputs as up to three frames: ``DELTA`` holds the updates of the
window, ``OLD`` the contents before ``lower`` (their times advanced to ``lower``), ``NEW`` both.  So for each input
new = old + Δ, as multisets of updates.  The stage's own stored output is one more input, of which only ``OLD`` is
read.  In a stage's first step nothing is old, so Δ = new, and it is called ``NEW``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

_MARK: Final = ":"
_NUMBER: Final = "#"


class Phase(Enum):
    """A side of an input."""

    DELTA = "delta"
    OLD = "old"
    NEW = "new"


def frame(name: str, phase: Phase) -> str:
    """Return how the frame of the collection ``name`` is called in a step plan.

    >>> frame("flights", Phase.OLD)
    'flights:old'
    """
    return f"{name}{_MARK}{phase.value}"


def source(frame_name: str) -> tuple[str, Phase]:
    """Return the collection and the phase that a step plan's frame stands for: the inverse of `frame`.

    >>> source("a:b:delta") == ("a:b", Phase.DELTA)
    True

    A number that tells look-ups of one side apart is passed over.

    >>> source("a#b:old#3") == ("a#b", Phase.OLD)
    True
    """
    name, _, phase = frame_name.rpartition(_MARK)
    return name, Phase(phase.partition(_NUMBER)[0])


@dataclass(frozen=True, slots=True)
class Window:
    """What is known of a step before it is planned.

    ``changed``: the inputs that have updates in the window (those of all others are known to be empty).  ``times``:
    the times that these updates may have, ascending; empty when they are not known.  ``first``: this is the stage's
    first step, so all its old sides are empty and ``times`` is not.  ``small``: the updates are few, so broadcast
    them.
    """

    changed: frozenset[str]
    times: tuple[int, ...]
    first: bool = False
    small: bool = True

    def __post_init__(self) -> None:
        if list(self.times) != sorted(set(self.times)):
            raise ValueError(f"times {self.times} are not strictly ascending")
        if self.first and not self.times:
            raise ValueError("the first step of a stage needs the time that it starts at")

    @property
    def start(self) -> int | None:
        """The time at which constants and global aggregates come to be, if that is in this window."""
        return self.times[0] if self.first else None
