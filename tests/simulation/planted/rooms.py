"""Bugs that are planted in compute and sources, to prove that their small worlds and scripts see them.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.compute.sink import actor as sinking
from strandline.compute.sink.actor import Sink
from strandline.frontier.antichain import MINIMUM, Frontier
from strandline.sources.reclock import Remap, Slice
from strandline.sources.resume import ResumptionFrontier

SINK_BUGS: Final[list[Bug]] = []
SOURCE_BUGS: Final[list[Bug]] = []
MOVE_BUGS: Final[list[Bug]] = []
sink_bug = registrar(SINK_BUGS)
move_bug = registrar(MOVE_BUGS)
source_bug = registrar(SOURCE_BUGS)


@sink_bug("a first step is made again although the one before it has happened after all", (Sink, "start"))
async def first_step_repeated(self: Sink, as_of: int) -> None:
    """Begin at ``as_of`` whatever is there; only what `StageRun` asks for afterwards says that it is fresh."""
    await self.writer.open_at(as_of)
    self._accounted, self.desired = MINIMUM, as_of
    if not self.fresh:
        self._correction.withdraw(await self._stored(self.writer.state, 0, self.writer.state.upper.at or 0))
        self._accounted = self.writer.state.upper


@sink_bug("a sink believes that a failed append happened", (Sink, "forget"))
def append_believed(self: Sink) -> None:
    """Forget nothing."""


_certified = sinking._certified


@move_bug("a certificate does not say how far the inputs were read: to the shard's upper", (sinking, "_certified"))
def inputs_unnamed(state: Any, fingerprint: str) -> int | None:
    """Trust a shard that was moved over what its input held otherwise."""
    return None if _certified(state, fingerprint) is None else state.upper.at


_moved = Sink.moved


@move_bug("a stage that was moved has read its inputs, whatever became of their moves", (Sink, "moved"))
def presumption_kept(self: Sink, outcome: Any, upper: Frontier, *, read: Frontier) -> None:
    """Presume that they were moved, too."""
    _moved(self, outcome, upper, read=upper)


@source_bug("what is bound is committed upstream, durable or not", (ResumptionFrontier, "_advance"))
async def bound_let_go(self: ResumptionFrontier, *, wait: bool) -> None:
    """Commit at the newest binding."""
    await self._reader.commit(self._remap.remap.frontier)


_slices = Remap.slices


@source_bug("a step begins one binding too late", (Remap, "slices"))
def begun_one_binding_on(self: Remap, lower: Frontier, upper: Frontier) -> tuple[Slice, ...]:
    """Take the first binding for the one before it."""
    found = _slices(self, lower, upper)
    return (replace(found[0], lower=found[0].upper), *found[1:]) if found else found
