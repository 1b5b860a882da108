"""Dataflows: views as stage runs, in the order that they must be stepped.

A stage that several views need runs once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from strandline.compute.sink.actor import Sink
from strandline.compute.stage import Stage
from strandline.compute.step import StageRun
from strandline.frontier.pace import Pace
from strandline.frontier.refresh import Refresh
from strandline.instance.commands import RunDataflow
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import ReadHandle
from strandline.plane.engine import Engine

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
