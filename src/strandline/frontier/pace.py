"""Pace: how far a stage reads its inputs, and how far its shard is known then.

A stage without a schedule reads its inputs as far as they are known, and its shard is known as far.  One with a
schedule reads through its last refresh, and its shard is known up to the next one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline.frontier.antichain import MINIMUM, Frontier, as_time
from strandline.frontier.refresh import Refresh


@dataclass(frozen=True, slots=True)
class Pace:
    """The schedule of a stage; None: it follows each time of its inputs.

    ``shown``: the stage is the view itself, which others read; False: only stages of its view do.
    """

    refresh: Refresh | None = None
    shown: bool = True

    def read(self, known: Frontier) -> Frontier:
        """Return how far inputs are to be read that are known up to ``known``; the minimum: no refresh is due yet."""
        if self.refresh is None:
            return known
        last = self.refresh.before(as_time(known))
        return MINIMUM if last is None else Frontier(last + 1)

    def stands(self, read: int) -> Frontier:
        """Return how far the shard is known once the inputs are read to ``read``."""
        return Frontier(read) if self.refresh is None else self.refresh.frontier(read)

    def lands(self, lower: int, upper: int) -> int:
        """Return the time to which those of the window ``[lower, upper)`` are advanced."""
        return lower if self.refresh is None else upper - 1

    def start(self, known: Frontier, earliest: Frontier) -> tuple[int, int | None]:
        """Return the time at which a fresh shard is computed, and from which on it can be read (None: from then).

        ``earliest``: the first time at which all inputs can be read; it is before ``known``.  If no refresh is due, or
        the inputs cannot be read at the last one any longer, the contents of now are computed for the next one.  Other
        stages of the view may read them, and no other reader.

        >>> at_9 = Pace(Refresh(ats=(9,), created=3))
        >>> [at_9.start(Frontier(known), Frontier(earliest)) for known, earliest in ((8, 0), (12, 4), (12, 10))]
        [(7, 9), (9, None), (11, None)]
        """
        time = as_time(known) - 1
        if self.refresh is None:
            return time, None
        last = self.refresh.before(as_time(known))
        if last is not None and earliest <= Frontier(last):
            return last, None
        return time, self.refresh.up(as_time(known)) if self.shown else None

    def rebuilt(self, shard: int, earliest: Frontier) -> int | None:
        """Return the time at which a shard that stands at ``shard`` is computed anew; None: never again.

        ``earliest``: as in `start`.
        """
        if self.refresh is None:
            return shard
        last = self.refresh.before(shard + 1)
        return last if last is not None and earliest <= Frontier(last) else self.refresh.up(shard)

    def window(self, lower: int, changed: int) -> tuple[int, int] | None:
        """Return the window up to the refresh that shows what changed at ``changed``; None: none will.

        It begins after the refresh before that one, or at ``lower`` if that is later.
        """
        assert self.refresh is not None, "a stage without a schedule shows each time"
        shown = self.refresh.up(changed)
        if shown is None:
            return None
        before = self.refresh.before(shown)
        return (lower if before is None else max(lower, before + 1)), shown + 1


FOLLOWING: Final = Pace()
