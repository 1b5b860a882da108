"""Refresh: at which times a view takes over what its inputs hold.

Without a schedule a view follows every time of its inputs (ON COMMIT).  With one it changes at its *refreshes* alone:
what changes upstream at a time shows at the first refresh at or after it, and from one refresh to the next the view
stays as it is.  So times of updates and frontiers alike are rounded up to refreshes; after the last refresh nothing can
change, which is the empty frontier.

A view has no refresh before its creation.  Its creation is a time too: the last one at which all that it reads was
complete when the view was defined, or came to be complete after that.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from strandline.frontier.antichain import EMPTY, TIME_MAX, Frontier


class Every(msgspec.Struct, frozen=True):
    """A refresh each ``interval_ms``, one of them at ``aligned_ms``; None: at the creation."""

    interval_ms: int
    aligned_ms: int | None = None


class Refresh(msgspec.Struct, frozen=True):
    """When a view is refreshed: at ``ats``, by each of ``everies``, and ``at_creation`` if that is said.

    ``created``: the view's creation; None as long as it is not known: then there is no refresh yet.

    >>> hourly = Refresh((Every(60), Every(25, 5)), created=10)
    >>> [hourly.up(time) for time in (0, 10, 11, 31)]
    [10, 10, 30, 55]
    >>> [hourly.before(time) for time in (10, 11, 31)]
    [None, 10, 30]
    """

    everies: tuple[Every, ...] = ()
    ats: tuple[int, ...] = ()
    at_creation: bool = False
    created: int | None = None

    def up(self, time: int) -> int | None:
        """Return the first refresh at or after ``time``; None if there is none."""
        if self.created is None:
            return None
        least = max(time, self.created)
        found = [at for at in self._single if at >= least]
        for every in self.everies:
            begin = self._aligned(every)
            found.append(min(TIME_MAX, least + (begin - least) % every.interval_ms))
        return min(found, default=None)

    def before(self, time: int) -> int | None:
        """Return the last refresh before ``time``; None if there is none."""
        if self.created is None or time <= self.created:
            return None
        found = [at for at in self._single if at < time]
        for every in self.everies:
            begin = self._aligned(every)
            found.append(time - 1 - (time - 1 - begin) % every.interval_ms)
        return max((at for at in found if at >= self.created), default=None)

    def frontier(self, time: int) -> Frontier:
        """Return how far a view is known whose inputs are known up to ``time``.

        >>> Refresh(ats=(7, 9), created=0).frontier(8), Refresh(ats=(7, 9), created=0).frontier(10)
        (Frontier(at=9), Frontier(at=None))
        """
        found = self.up(time)
        return EMPTY if found is None else Frontier(found)

    @property
    def clause(self) -> Refresh:
        """What the view's author wrote, whenever the view was created."""
        return msgspec.structs.replace(self, created=None)

    def __str__(self) -> str:
        """As a statement says it.

        >>> str(Refresh((Every(3_600_000, 0), Every(1_500)), (5,), at_creation=True))
        "EVERY '3600 s' ALIGNED TO '1970-01-01 00:00:00.000', EVERY '1.5 s', AT '1970-01-01 00:00:00.005', AT CREATION"
        """
        shown = []
        for every in self.everies:
            aligned = "" if every.aligned_ms is None else f" ALIGNED TO '{_text(every.aligned_ms)}'"
            shown.append(f"EVERY '{every.interval_ms / 1000:g} s'{aligned}")
        shown += [f"AT '{_text(at)}'" for at in self.ats]
        return ", ".join(shown + ["AT CREATION"] * self.at_creation)

    @property
    def _single(self) -> tuple[int, ...]:
        assert self.created is not None, "there is no refresh before the creation is known"
        return (*self.ats, self.created) if self.at_creation else self.ats

    def _aligned(self, every: Every) -> int:
        assert self.created is not None, "there is no refresh before the creation is known"
        return self.created if every.aligned_ms is None else every.aligned_ms


def _text(time: int) -> str:
    return datetime.fromtimestamp(time / 1000, UTC).replace(tzinfo=None).isoformat(" ", "milliseconds")
