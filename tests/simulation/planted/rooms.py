"""Bugs that are planted in compute and sources, to prove that their small worlds and scripts see them.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from planted.bugs import Bug, registrar
from strandline.compute.sink import actor as sinking
from strandline.compute.sink.actor import Mint, Sink
from strandline.compute.step import StageRun
from strandline.frontier import MINIMUM, Frontier, as_time
from strandline.sources.ingest import ResumptionFrontier
from strandline.sources.reclock import Remap, Slice

SINK_BUGS: Final[list[Bug]] = []
RACE_BUGS: Final[list[Bug]] = []
SOURCE_BUGS: Final[list[Bug]] = []
MOVE_BUGS: Final[list[Bug]] = []
PROMOTION_BUGS: Final[list[Bug]] = []
UNPREPARED_BUGS: Final[list[Bug]] = []
sink_bug = registrar(SINK_BUGS)
race_bug = registrar(RACE_BUGS)
move_bug = registrar(MOVE_BUGS)
source_bug = registrar(SOURCE_BUGS)
promotion_bug = registrar(PROMOTION_BUGS)
unprepared_bug = registrar(UNPREPARED_BUGS)


@sink_bug("a first step is made again although the one before it has happened after all", (Sink, "start"))
async def first_step_repeated(self: Sink, as_of: int, since: int | None = None) -> None:
    """Begin at ``as_of`` whatever is there; only what `StageRun` asks for afterwards says that it is fresh."""
    await self.writer.open_at(as_of)
    self._accounted, self.desired = MINIMUM, as_of
    if not self.fresh:
        self._correction.withdraw(await self._stored(self.writer.state, 0, self.writer.state.upper.at or 0))
        self._accounted = self.writer.state.upper


@sink_bug("a sink believes that a failed append happened", (Sink, "forget"))
def append_believed(self: Sink) -> None:
    """Forget nothing."""


@sink_bug("a sink that was opened again still waits for what became of its last description", (Mint, "give_up"))
def last_one_awaited(self: Mint) -> None:
    """Give nothing up."""
    self.begin_anew()


@sink_bug("a lower is minted once, also if its append has not happened", (Mint, "give_up"))
def never_minted_again(self: Mint) -> None:
    """Take what was given up for settled."""
    self.valid = False
    self.begin_anew()


_adopted = Sink._adopted


@race_bug("the loser of a race owes what it desired, though a replica has appended the same", (Sink, "_adopted"))
def owed_all_the_same(self: Sink, state: Any, mine: Any = None) -> bool:
    """Clear nothing."""
    held = list(self._correction._held)
    found = _adopted(self, state, mine)
    self._correction._held[:] = held
    return found


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


_adopt = Sink.adopt


@promotion_bug("what was prepared is taken for what the inputs come to where the view stands", (Sink, "adopt"))
async def prepared_to_where_it_stands(self: Sink, seed: Any) -> None:
    """Forget how far the inputs were read for it."""
    await _adopt(self, seed)
    if self.desired is not None:
        self.desired = as_time(self.writer.state.upper)


@promotion_bug("what was prepared comes to what the version before has left", (Sink, "adopt"))
async def added_to_what_was_there(self: Sink, seed: Any) -> None:
    """Withdraw nothing."""
    await _adopt(self, seed)
    self._correction._held[1:] = []


@unprepared_bug("state that is new begins where its inputs are, and not where the view stands", (StageRun, "_begins"))
def begun_where_inputs_are(self: StageRun, known: Frontier) -> tuple[int, int | None]:
    """Ask no view."""
    return self._pace.start(known, self._earliest)
