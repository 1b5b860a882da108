"""The plans of a stage's steps: what each window asks for, with the rows that it has to see.

A stage's windows are alike from tick to tick, and so are their plans: the last one is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

from strandline.algebra.nodes import Node, frames
from strandline.compute.care import Care, Careful, by_rows
from strandline.compute.lookups import Lookup, planned
from strandline.compute.rules.phase import Window
from strandline.compute.stage import Stage, delta_plan


@dataclass(frozen=True, slots=True)
class Planned:
    """The plans of a stage's updates and of its own errors (None where there are none), and what `lookups` says."""

    ok: Node | None
    err: Node | None = None
    lookups: tuple[Lookup, ...] = ()

    @property
    def frames(self) -> list[str]:
        """The names of the frames that they read, in order."""
        return sorted({name for plan in (self.ok, self.err) if plan is not None for name in frames(plan)})


class StepPlans:
    """The plans of the steps of one stage."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._careful: Careful | None = None
        self._last: tuple[tuple[Care, Window], Planned] | None = None

    def of(self, care: Care, window: Window) -> Planned:
        """Return the plans of the updates of both halves in ``window``: often those of the step before."""
        if self._last is None or self._last[0] != (care, window):
            self._last = (care, window), self._plan(care, window)
        return self._last[1]

    def _plan(self, care: Care, window: Window) -> Planned:
        if not (window.changed or window.first):
            return Planned(None)
        if care is Care.PLAIN:
            plan = delta_plan(self._stage, window)
            if plan is None or window.first:
                return Planned(plan)
            plan, lookups = planned(plan)
            return Planned(plan, None, lookups)
        if self._careful is None:
            self._careful = by_rows(self._stage)
        return Planned(delta_plan(self._careful.stage, window), self._careful.error_updates(window))
