"""The views of an instance: waves of small steps, and lanes for the long ones.

A *wave* steps all stages whose inputs have moved: together, in as few durable writes as that takes.  A stage whose step
takes long, because it computes anew or has much to catch up with, leaves the waves for a *lane*, and comes back when it
has stepped.  What reads it stands still meanwhile; nothing else does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack

from strandline.compute.step import StageRun
from strandline.compute.tick import TickReport, levels, tick, written_by
from strandline.frontier.antichain import MINIMUM, Frontier
from strandline.instance.commands import RunDataflow
from strandline.instance.equipment import Equipment
from strandline.instance.loop import Loop
from strandline.instance.problems import Problems
from strandline.instance.running.dataflows import Dataflows
from strandline.instance.running.lanes import Lanes
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.patience import Deadline


class Views:
    """The views that are maintained here."""

    def __init__(
        self,
        equipment: Equipment,
        problems: Problems,
        epoch: int,
        *,
        may_write: bool,
        moved: Callable[[], None],
        behind: Callable[[], Iterator[str]],
    ) -> None:
        """``moved`` is called when a wave has ended for which no caller waits.

        ``behind``: the collections that are still brought to where views are to come.
        """
        beside = equipment.patience.beside
        self.dataflows = Dataflows(equipment.client, equipment.engine, epoch, may_write=may_write)
        self._equipment = equipment
        self._problems = problems
        self._moved = moved
        self._behind = behind
        self._upper = MINIMUM
        self._waves = Loop(beside, self._wave)
        self._lanes = Lanes(beside, equipment.lanes, self._alone)
        self._awaited = False
        self._stuck: set[str] = set()  # did not get on in a lane since views were brought on last
        self._troubles: dict[str, str] = {}  # by stage
        self.report = TickReport()
        """What has happened since views were brought on last from where all of them rested."""

    async def start(self, name: str, command: RunDataflow, readers: Mapping[str, ReadHandle]) -> None:
        """Let a view take part from the next wave on; see `Dataflows.start`."""
        await self.dataflows.start(name, command, readers)

    async def stop(self, name: str) -> None:
        """Take a view out; a step of it that is under way is ended."""
        stages = {run.name for run in self.dataflows.runs_of(name)}
        await self._waves.idle()
        self.dataflows.stop(name)
        await self._lanes.drop(stages - {run.name for run in self.dataflows.runs})

    async def halt(self) -> None:
        """End all turns."""
        await self._waves.end()
        await self._lanes.end()

    async def at_rest(self) -> None:
        """Return when no wave is under way."""
        await self._waves.idle()

    def under_way(self) -> Iterator[str]:
        """Yield the views that are on their way to where they are to come."""
        held = self._lanes.held
        for view in self.dataflows.views:
            if not self._waves.resting or any(run.name in held for run in self.dataflows.runs_of(view)):
                yield view

    def wake(self) -> None:
        """Have what has moved be followed, beside the caller: by views, and then by what follows them."""
        self._waves.wake()

    async def bring(self, upper: Frontier, deadline: Deadline | None) -> TickReport:
        """Bring all views to ``upper``, or to where their inputs are known; return what has happened by the deadline.

        Raises `FencedError` if a newer epoch has taken over.
        """
        if self._waves.resting and self._lanes.resting(frozenset()):
            self.report = TickReport()
        self._upper, self._awaited = upper, True
        self._stuck.clear()
        older = frozenset() if deadline is None else self._lanes.busy
        try:
            due = self._waves.wake() or deadline is None
            while due and await self._waves.rest(deadline) and await self._lanes.rest(deadline, older):
                due = not (self._waves.resting and self._lanes.resting(older))
            self._waves.check()
        finally:
            self._awaited = False
        return self.report

    @property
    def may_write(self) -> bool:
        """Whether what is computed is written."""
        return self.dataflows.may_write

    async def _wave(self) -> None:
        apart = self._lanes.held | self._stuck
        runs = [run for run in self.dataflows.runs if run.name not in apart]
        have = self._equipment
        report = await tick(have.client, have.engine, runs, self._upper, have.together, aside=self._set_aside)
        self._learn(runs, report)
        if not self._awaited:
            self._moved()

    def _set_aside(self, run: StageRun) -> None:
        run.stepping_ms = self._equipment.client.clock.now_ms()  # from here on something is begun for it
        self._lanes.take(run)

    async def _alone(self, run: StageRun) -> None:
        have = self._equipment
        with ExitStack() as waiting:
            for view in self.dataflows.views_with(run):
                waiting.enter_context(self._problems.waiting(view))
            stood = run.sink.writer.state.upper, run.sink.desired
            report = await tick(have.client, have.engine, [run], self._upper, have.together)
        if run.name in report.failed or (run.sink.writer.state.upper, run.sink.desired) == stood:
            self._stuck.add(run.name)
        self._learn([run], report)
        self._waves.wake()

    def _learn(self, runs: Sequence[StageRun], report: TickReport) -> None:
        """Take note of what has happened to some stages, and of what stands in the way of views."""
        self.report.add(report)
        under_way, again = self._under_way(), self._waves.again  # something has moved since the wave began
        for run in runs:
            waits = (again or run.name in under_way) and run.name not in report.failed
            self._troubles[run.name] = "" if waits else report.problem(run.name)
        for name in self.dataflows.views:
            problems = [self._troubles.get(run.name, "") for run in self.dataflows.runs_of(name)]
            self._problems.note(name, next(filter(None, problems), ""))

    def _under_way(self) -> AbstractSet[str]:
        """Return the stages that stand still only until what they read has come to where they are to come."""
        behind, found, shards = {*self._behind()}, {*self._lanes.held}, set[str]()
        if not behind and not found:
            return found  # as at almost every wave
        for level in levels(self.dataflows.runs):
            found |= {run.name for run in level if not (behind.isdisjoint(run.inputs) and shards.isdisjoint(run.reads))}
            shards |= {written_by(run) for run in level if run.name in found}
        return found
