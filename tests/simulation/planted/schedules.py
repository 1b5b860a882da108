"""Bugs that are planted where views have schedules.  See `planted.whole`."""

from __future__ import annotations

from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.compute.sink.actor import Sink
from strandline.frontier import MINIMUM, Frontier, Pace, Refresh, as_time

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)

_start, _before, _draft, _window = Pace.start, Refresh.before, Sink.draft, Pace.window


@bug("a window up to a refresh begins at the refresh before it", (Pace, "window"))
def window_repeated(self: Pace, lower: int, changed: int) -> tuple[int, int] | None:
    """Take what changed at that refresh once more."""
    found = _window(self, lower, changed)
    return None if found is None else (max(0, found[0] - 1), found[1])


@bug("a view can be read as soon as it is computed, before its first refresh", (Pace, "start"))
def shown_early(self: Pace, known: Frontier, earliest: Frontier) -> tuple[int, int | None]:
    """Begin its history at the time of its first contents."""
    return _start(self, known, earliest)[0], None


@bug("a certificate says that inputs were read as far as the shard is known", (Sink, "draft"))
async def read_to_the_next_refresh(self: Sink, delta: Any, upper: Frontier, **options: Any) -> Any:
    """Say nothing of how far they were."""
    return await _draft(self, delta, upper, **{**options, "read": None if upper.at is not None else options["read"]})


@bug("a view takes what changes after its refresh", (Pace, "read"))
def read_as_far_as_known(self: Pace, known: Frontier) -> Frontier:
    """Read on, once a refresh is due."""
    if self.refresh is None:
        return known
    return MINIMUM if _before(self.refresh, as_time(known)) is None else known


@bug("a view has refreshes from before it was created", (Refresh, "before"))
def before_its_creation(self: Refresh, time: int) -> int | None:
    """Count them from the beginning."""
    found = _before(self, time)
    aligned = [each for each in self.everies if each.aligned_ms is not None]
    if found is None and self.created is not None and aligned and time > 0:
        return time - 1 - (time - 1 - (aligned[0].aligned_ms or 0)) % aligned[0].interval_ms
    return found
