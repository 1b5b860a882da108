"""The views of an instance: dataflows of stages, stepped in waves if their steps are small, else in lanes.

A dataflow is a view as stage runs, in the order in which they must be stepped; a stage that several views need runs
once.

A *wave* steps all stages whose inputs have moved: together, in as few durable writes as possible.  A stage whose step
takes long, because it is recomputed or has much to catch up with, leaves the waves for a *lane*, and comes back when it
has stepped.  Meanwhile only its readers wait.

As many stages step alone at a time as there are lanes; further ones wait in the order in which they came.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from typing import Any, Final

import msgspec

from strandline.compute.sink.actor import Sink
from strandline.compute.stage import Stage
from strandline.compute.step import StageRun
from strandline.compute.tick import TickReport, levels, tick, written_by
from strandline.frontier import MINIMUM, Frontier, Pace, Refresh
from strandline.instance.commands import RunDataflow
from strandline.instance.connections import Equipment
from strandline.instance.loop import Loop
from strandline.instance.problems import Problems
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle
from strandline.persist.shard.patience import Deadline
from strandline.plane import Engine
from strandline.store.clock import Beside

FINGERPRINT_DIGITS: Final = 32


class Dataflows:
    """The running stages of an instance's views."""

    def __init__(self, client: PersistClient, engine: Engine, epoch: int, *, may_write: bool = True) -> None:
        self._client = client
        self._engine = engine
        self._epoch = epoch
        self.may_write = may_write
        self._runs: dict[str, StageRun] = {}  # by stage name, inputs first
        self._users: dict[str, set[str]] = {}  # stage name to the views that need it
        self._views: dict[str, Sink] = {}

    @property
    def runs(self) -> tuple[StageRun, ...]:
        """All stages, each after those that it reads."""
        return tuple(self._runs.values())

    @property
    def views(self) -> tuple[str, ...]:
        """The names of the views that are maintained, in the order in which they were started."""
        return tuple(self._views)

    @property
    def sinks(self) -> Mapping[str, Sink]:
        """The sink of each view's own shard."""
        return self._views

    def runs_of(self, view: str) -> tuple[StageRun, ...]:
        """The stages of one view; the last one writes the view's own shard."""
        return tuple(run for name, run in self._runs.items() if view in self._users[name])

    def views_with(self, run: StageRun) -> tuple[str, ...]:
        """The views that need a stage."""
        return tuple(sorted(self._users.get(run.name, ())))

    def allow_writes(self) -> None:
        """Let every sink mint from now on."""
        self.may_write = True
        for run in self._runs.values():
            run.sink.may_write = True

    async def start(self, name: str, command: RunDataflow, readers: Mapping[str, ReadHandle]) -> None:
        """Open the view's sinks under this epoch (older ones are fenced from here on) and let it take part in ticks.

        ``readers``: of the collections that the view reads, by name.
        """
        inputs = dict(readers)
        for stage in command.stages:
            final = stage is command.stages[-1]
            shard = command.output.shard if final else command.shards[stage.name]
            if stage.name not in self._runs:
                read = {each: inputs[each] for each in stage.inputs}
                epoch = self._epoch + (command.fence if final else 0)
                run = await self._open(stage, shard, epoch, read, command, Pace(command.refresh, shown=final))
                if final and command.seed:
                    run.seed = await self._client.reader(
                        command.seed, stage.schema, f"{command.output.name} (prepared)"
                    )
                run.begins = command.begins if final else 0
                self._runs[stage.name] = run
            self._users.setdefault(stage.name, set()).add(name)
            shown = command.output.name if final else f"{command.output.name}/{stage.name}"
            reader = await self._client.reader(shard, stage.schema, shown)
            assert reader is not None, f"shard {shard!r} was opened for writing a moment ago"
            inputs[stage.name] = reader
        sink = self._views[name] = self._runs[command.stages[-1].name].sink
        time = sink.writer.state.upper.at or command.begins
        for run in self.runs_of(name):
            if run.sink.fresh and time:  # it was planned otherwise before, or it is to replace another view
                run.begins_by = time if run.begins_by is None else min(time, run.begins_by)

    def stop(self, view: str) -> None:
        """Take the view out of ticks; stages that others need go on."""
        self._views.pop(view, None)
        for name in list(self._runs):
            self._users[name].discard(view)
            if not self._users[name]:
                del self._runs[name], self._users[name]

    async def _open(
        self,
        stage: Stage,
        shard: str,
        epoch: int,
        inputs: Mapping[str, ReadHandle],
        command: RunDataflow,
        pace: Pace,
    ) -> StageRun:
        forgiven = command.forgiven & inputs.keys()
        writer = await self._client.writer(shard, epoch, schema=stage.schema.ddl, sort=stage.sort)
        meaning = fingerprint(stage, inputs, command.conf, forgiven, command.refresh)
        sink = Sink(self._engine, writer, stage.schema, meaning)
        sink.may_write = self.may_write
        await sink.open()
        return StageRun(stage, self._engine, inputs, sink, forgiven, pace)


def fingerprint(
    stage: Stage,
    inputs: Mapping[str, ReadHandle],
    conf: Mapping[str, str],
    forgiven: frozenset[str] = frozenset(),
    refresh: Refresh | None = None,
) -> str:
    """Return what a certificate names: the stage's meaning, its inputs' shards, and the conf that changes answers.

    ``forgiven``: inputs whose errors are none of the stage's.  ``refresh``: its schedule.
    """
    shards = sorted((name, reader.state.shard) for name, reader in inputs.items())
    meaning = (stage.kind, repr(stage.plan), stage.schema.ddl, stage.stored)
    described: list[object] = [*meaning, shards, sorted(conf.items()), sorted(forgiven)]
    if refresh is not None:  # what was certified before there were schedules stays certified
        described.append(refresh)
    return hashlib.sha256(msgspec.json.encode(described)).hexdigest()[:FINGERPRINT_DIGITS]


class Lanes:
    """Stages that step alone, each in turn."""

    def __init__(self, beside: Beside, count: int, step: Callable[[StageRun], Coroutine[Any, Any, None]]) -> None:
        self._step = step
        self._waiting: deque[StageRun] = deque()
        self._stepping: dict[int, StageRun] = {}  # by lane
        self._loops = [Loop(beside, lambda lane=lane: self._turn(lane)) for lane in range(count)]  # type: ignore[misc]

    def resting(self, without: AbstractSet[int]) -> bool:
        """Return whether no lane, but for those ``without``, has anything to step."""
        return all(loop.resting for lane, loop in enumerate(self._loops) if lane not in without)

    @property
    def held(self) -> frozenset[str]:
        """The stages that step in a lane or wait for one, by name."""
        return frozenset(run.name for run in (*self._stepping.values(), *self._waiting))

    def take(self, run: StageRun) -> None:
        """Have a stage step alone."""
        self._waiting.append(run)
        for loop in self._loops:
            loop.wake()

    @property
    def busy(self) -> frozenset[int]:
        """The lanes in which a stage steps."""
        return frozenset(self._stepping)

    async def rest(self, deadline: Deadline | None, without: AbstractSet[int]) -> bool:
        """Return whether no lane, but for those ``without``, has anything to step by the deadline.

        Raises as `Loop.rest`.
        """
        for lane, loop in enumerate(self._loops):
            if lane in without:
                loop.check()
            elif not await loop.rest(deadline):
                return False
        return True

    async def drop(self, names: AbstractSet[str]) -> None:
        """Let the stages with these names step no more; a step that is under way is cancelled."""
        self._waiting = deque(run for run in self._waiting if run.name not in names)
        for lane, loop in enumerate(self._loops):
            if (run := self._stepping.get(lane)) is not None and run.name in names:
                await loop.end()
                if self._waiting:
                    loop.wake()

    async def end(self) -> None:
        """End all steps."""
        self._waiting.clear()
        for loop in self._loops:
            await loop.end()

    async def _turn(self, lane: int) -> None:
        while self._waiting:
            run = self._stepping[lane] = self._waiting.popleft()
            try:
                await self._step(run)
            except Exception:
                self._loops[lane].wake()  # the others still wait
                raise
            finally:
                del self._stepping[lane]


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
