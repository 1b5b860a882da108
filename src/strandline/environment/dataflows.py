"""Dataflows: the views of the catalog as stage runs, in the order that they must be stepped.

A view is planned from its SQL every time an environment opens: the plan is not stored, its meaning is.  Each internal
stage has a shard of its own, found in the catalog by the stage's name; a new version of the planner that plans
otherwise finds no shard, makes one, and hydrates it.

A stage that is wanted by several views runs once.

Source: design page "compute" (from SQL to a dataflow; stages are shared).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from strandline.compute.plan.analyst import Analyst
from strandline.compute.plan.view import PlannedView, plan_view
from strandline.compute.sink.actor import Sink
from strandline.compute.stage import Stage, split
from strandline.compute.step import StageRun
from strandline.environment.catalog import Catalog, Materialization, View
from strandline.persist.client import PersistClient
from strandline.persist.plane import Engine
from strandline.persist.read import ReadHandle
from strandline.store.clock import Ids

FINGERPRINT_DIGITS: Final = 32


@dataclass(frozen=True)
class Definition:
    """A view with its plan: what the catalog says, and what follows from it."""

    view: View
    planned: PlannedView
    stages: tuple[Stage, ...]


class Dataflows:
    """The running stages of an environment's views."""

    def __init__(self, client: PersistClient, engine: Engine, epoch: int) -> None:
        self._client = client
        self._engine = engine
        self._epoch = epoch
        self._runs: dict[str, StageRun] = {}  # by stage name, inputs first
        self._users: dict[str, set[str]] = {}  # stage name to the views that need it
        self.definitions: dict[str, Definition] = {}

    @property
    def runs(self) -> tuple[StageRun, ...]:
        """All stages, each after those that it reads."""
        return tuple(self._runs.values())

    def runs_of(self, view: str) -> tuple[StageRun, ...]:
        """The stages of one view; the last one writes the view's own shard."""
        return tuple(run for name, run in self._runs.items() if view in self._users[name])

    async def start(self, definition: Definition, readers: Mapping[str, ReadHandle]) -> None:
        """Open the view's sinks under this epoch (older ones are fenced from here on) and let it take part in ticks.

        ``readers``: the collections that the view imports.
        """
        view = definition.view
        inputs = dict(readers)
        for stage in definition.stages:
            final = stage is definition.stages[-1]
            shard = view.shard if final else view.stages[stage.name]
            if stage.name not in self._runs:
                run = await self._open(stage, shard, {name: inputs[name] for name in stage.inputs}, view.conf)
                self._runs[stage.name] = run
            self._users.setdefault(stage.name, set()).add(view.name.lower())
            reader = await self._client.reader(shard, stage.schema, view.name if final else f"{view.name}/{stage.name}")
            assert reader is not None, f"shard {shard!r} was opened for writing a moment ago"
            inputs[stage.name] = reader
        self.definitions[view.name.lower()] = definition

    def stop(self, view: str) -> None:
        """Let the view take no part in ticks any more; stages that others need go on."""
        self.definitions.pop(view, None)
        for name in list(self._runs):
            self._users[name].discard(view)
            if not self._users[name]:
                del self._runs[name], self._users[name]

    async def _open(self, stage: Stage, shard: str, inputs: Mapping[str, ReadHandle], conf: dict[str, str]) -> StageRun:
        writer = await self._client.writer(shard, self._epoch, schema=stage.schema.ddl)
        sink = Sink(self._engine, writer, stage.schema, fingerprint(stage, inputs, conf), ())
        await sink.open()
        return StageRun(stage, self._engine, inputs, sink)


def fingerprint(stage: Stage, inputs: Mapping[str, ReadHandle], conf: Mapping[str, str]) -> str:
    """Return what a certificate names: the stage's meaning, its inputs' shards, and the conf that changes answers."""
    shards = sorted((name, reader.state.shard) for name, reader in inputs.items())
    described = [stage.kind.value, repr(stage.plan), stage.schema.ddl, stage.stored, shards, sorted(conf.items())]
    return hashlib.sha256(msgspec.json.encode(described)).hexdigest()[:FINGERPRINT_DIGITS]


def define(
    name: str, sql: str, catalog: Catalog, analyst: Analyst, *, distrusted: bool = False
) -> tuple[PlannedView, tuple[Stage, ...]]:
    """Plan the view ``name`` against the catalog; ``distrusted``: see `plan_view`.

    Raises `DefinitionError` as `plan_view` does.
    """
    schemas = {
        key: item.schema
        for key, item in catalog.items.items()
        if not isinstance(item, Materialization) and key != name.lower()
    }
    planned = plan_view(sql, schemas, analyst, distrusted=distrusted)
    return planned, split(planned, name.lower())


def stage_shards(stages: tuple[Stage, ...], catalog: Catalog, ids: Ids) -> dict[str, str]:
    """Return a shard for each internal stage: the one that another view has it in already, or a fresh one."""
    known = {
        name: shard for view in catalog.items.values() if isinstance(view, View) for name, shard in view.stages.items()
    }
    return {stage.name: known.get(stage.name) or ids.fresh("s") for stage in stages[:-1]}
