"""Bugs that are planted where items live by themselves: in loops, waves and lanes.  See `planted.whole`."""

from __future__ import annotations

from typing import Final

from planted.bugs import Bug, registrar
from strandline.compute.step import StageRun
from strandline.frontier import Frontier, as_time
from strandline.instance.instance import Instance
from strandline.instance.loop import Loop
from strandline.instance.running.sources import Sources
from strandline.instance.running.views import Views

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


@bug("a loop that is woken in the middle of a turn makes no other one", (Loop, "_turns"))
async def woken_in_vain(self: Loop) -> None:
    """Take the turn for an answer to all that came until its end."""
    self._begun = self._woken
    try:
        await self._turn()
    except Exception as error:  # noqa: BLE001 - as the loop does
        self._error = error
    self._ended, self._running = self._woken, None


@bug("what comes late is not followed", (Sources, "_arrived"))
def late_in_vain(self: Sources, name: str, aim: object) -> None:
    """Leave it to the next tick."""
    self._missed.discard(name)


@bug("a source that is late for two aims is followed at the first one alone", (Sources, "_arrived"))
def followed_once(self: Sources, name: str, aim: object) -> None:
    """Forget that it was missed when it comes to any aim."""
    if name in self._missed:
        self._missed.discard(name)
        self.late()


_alone = Views._alone


@bug("a stage that has stepped alone is not followed", (Views, "_alone"))
async def lane_not_followed(self: Views, run: StageRun) -> None:
    """Wake no wave."""
    wake, self._waves.wake = self._waves.wake, bool  # type: ignore[method-assign, assignment]
    try:
        await _alone(self, run)
    finally:
        self._waves.wake = wake  # type: ignore[method-assign]


@bug("endpoints do not follow a wave that nobody waits for", (Instance, "_deliver"))
def delivered_at_ticks_alone(self: Instance) -> None:
    """Leave it to the next tick."""


def held_where_inputs_are(self: StageRun) -> Frontier:
    """Hold what inputs know now, and not when the step began."""
    return Frontier(max(0, as_time(self.known()) - 1))


BUGS.append(
    Bug(
        held_where_inputs_are.__name__,
        "a step that takes long lets its inputs forget what it begins with",
        ((StageRun, "needed"),),
        property(held_where_inputs_are),
    )
)
