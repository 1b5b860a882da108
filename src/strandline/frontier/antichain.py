"""Frontiers of time: which times may still change.

A time is a number of milliseconds, ``0 <= t < 2**63``.  A frontier is an antichain of times; since time is totally
ordered it has one element or none.  ``Frontier(at)`` says that updates at ``t >= at`` may still come; the empty
frontier (``at is None``) says that none will.  Frontiers are ordered by progress: minimum <= ... <= empty.

`given_time` checks a time that a caller passes: a number that only looks like a time (5.0) would be stored and then be
unreadable.

Trap: the empty frontier is the *greatest* one.  A function that forgets it blocks a sealed collection for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Final

import msgspec

from strandline.errors import InvalidUsage

TIME_MAX: Final = 2**63 - 1


class Frontier(msgspec.Struct, frozen=True):
    """The times that may still change: all ``t >= at``; ``at is None``: none.

    >>> Frontier(3).beyond(3), Frontier(3).beyond(2), EMPTY.beyond(9)
    (True, False, False)
    >>> Frontier(3) <= Frontier(4) <= EMPTY, EMPTY <= Frontier(4), EMPTY <= EMPTY
    (True, False, True)
    >>> str(Frontier(3)), str(EMPTY)
    ('[3]', '[]')
    """

    at: int | None

    def __post_init__(self) -> None:
        at = self.at
        if at is not None and not (at.__class__ is int and 0 <= at <= TIME_MAX):
            raise ValueError(f"time {at!r} is not an int within 0 <= t < 2**63")

    def beyond(self, time: int) -> bool:
        """Return whether ``time`` may still change."""
        return self.at is not None and time >= self.at

    @property
    def empty(self) -> bool:
        """Whether no time may change."""
        return self.at is None

    def __le__(self, other: Frontier) -> bool:
        return other.at is None or (self.at is not None and self.at <= other.at)

    def __lt__(self, other: Frontier) -> bool:
        return self.at is not None and (other.at is None or self.at < other.at)

    def advance(self, time: int) -> int:
        """Return ``time`` advanced by this frontier as a since: the later of the two.

        >>> Frontier(5).advance(3), Frontier(5).advance(8), EMPTY.advance(3) == TIME_MAX
        (5, 8, True)
        """
        return TIME_MAX if self.at is None else max(time, self.at)

    def __str__(self) -> str:
        return "[]" if self.at is None else f"[{self.at}]"


MINIMUM: Final = Frontier(0)
EMPTY: Final = Frontier(None)


def meet(frontiers: Iterable[Frontier]) -> Frontier:
    """Return the greatest frontier that is ``<=`` all of them; without any, the empty frontier.

    >>> str(meet([Frontier(4), EMPTY, Frontier(2)])), str(meet([]))
    ('[2]', '[]')
    """
    times = [f.at for f in frontiers if f.at is not None]
    return Frontier(min(times)) if times else EMPTY


def join(frontiers: Iterable[Frontier]) -> Frontier:
    """Return the least frontier that is ``>=`` all of them; without any, the minimum.

    >>> str(join([Frontier(4), Frontier(2)])), str(join([Frontier(4), EMPTY])), str(join([]))
    ('[4]', '[]', '[0]')
    """
    greatest = MINIMUM
    for frontier in frontiers:
        greatest = max(greatest, frontier)
    return greatest


def as_time(frontier: Frontier) -> int:
    """Return the frontier as an exclusive bound on times; the empty one is beyond all of them.

    >>> as_time(Frontier(3)), as_time(EMPTY) == TIME_MAX
    (3, True)
    """
    return TIME_MAX if frontier.at is None else frontier.at


def whole(number: object) -> int | None:
    """Return a whole number of any integer type (numpy has its own) as an int; None for anything else.

    >>> whole(5), whole(5.0), whole("5"), whole(True), whole(None)
    (5, None, None, None, None)
    """
    if isinstance(number, bool):
        return None
    try:
        # A value without `__index__` raises TypeError, which is the check.
        return int(index(number))  # type: ignore[arg-type]
    except TypeError:
        return None


def given_time(number: object, whose: str) -> int:
    """Check a time that a caller passed, and return it.  Raises `InvalidUsage` that names ``whose`` it is.

    >>> given_time(7, "a tick")
    7
    >>> given_time(7.0, "a tick")
    Traceback (most recent call last):
    strandline.errors.InvalidUsage: a tick: time 7.0 is not a whole number within 0 <= t < 2**63 - 1
    """
    time = whole(number)
    if time is None or not 0 <= time < TIME_MAX:
        raise InvalidUsage(f"{whose}: time {number!r} is not a whole number within 0 <= t < 2**63 - 1")
    return time
