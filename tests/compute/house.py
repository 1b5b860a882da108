"""Two inputs and views over them, in memory: histories with rows that fail, kept step by step without Spark."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from strandline.algebra.nodes import Node
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.compute.plan.view import PlannedView
from strandline.compute.sink.actor import Sink
from strandline.compute.stage import split
from strandline.compute.step import StageRun
from strandline.compute.tick import tick
from strandline.errors import EvaluationError, Unavailable
from strandline.frontier import Frontier, Pace, Refresh
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Contents, Half, Rows, StageRequest
from strandline.persist.handles.read import contents
from strandline.persist.shard.batch import Staged
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock, in_turn
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.lists.list_plans import Query
from strandline.testing.simulation.kernel import run_sync

Row: TypeAlias = tuple[Any, ...]
Changes: TypeAlias = Mapping[str, Sequence[tuple[Row, int, int]]]
"""Of each input ``(row, time, diff)``."""

INPUTS: Final = {
    "t": Schema((Column("k", "string"), Column("n", "bigint"))),
    "u": Schema((Column("k", "string"), Column("m", "bigint"))),
}
LAST: Final = 8
"""The last time of a history."""


def history_of(seed: int) -> dict[str, list[tuple[Row, int, int]]]:
    """Return changes ``(row, time, diff)`` of the inputs: bad rows come and go, and all have left at the last time."""
    chance = random.Random(seed)
    history: dict[str, list[tuple[Row, int, int]]] = {}
    for name in INPUTS:
        held: Counter[Row] = Counter()
        changes: list[tuple[Row, int, int]] = []
        for time in range(LAST + 1):
            if chance.random() < 0.2 and time != LAST:
                continue
            gone = [row for row in held.elements() if chance.random() < 0.4 or (time == LAST and not row[1])]
            new = [(chance.choice("ab"), chance.choice([0, 1, 2, 5, 3])) for _ in range(chance.randint(0, 3))]
            new = [row for row in new if row[1] or (time < LAST and chance.random() < 0.6)]
            changes += [(row, time, 1) for row in new] + [(row, time, -1) for row in gone]
            held.update(new)
            held.subtract(gone)
        history[name] = changes
    return history


def failures_of(seed: int) -> dict[str, list[tuple[str, int, int]]]:
    """Return updates ``(error, time, diff)`` of the inputs' own errors: they come and go, and all have left in time."""
    chance = random.Random(f"errors {seed}")
    found: dict[str, list[tuple[str, int, int]]] = {name: [] for name in INPUTS}
    for name, changes in found.items():
        for n in range(chance.choice([0, 0, 1, 2])):
            first = chance.randrange(LAST)
            count = chance.choice([1, 1, 2])
            error = json.dumps({"collection": name, "reason": f"of its own {n}"})
            changes += [(error, first, count), (error, chance.randint(first + 1, LAST), -count)]
    return found


class CountingEngine(ListEngine):
    """Counts the plans that failed on a row.

    ``meanwhile`` happens when a batch of its shard is staged, once; the next read of the shard ``unreadable`` fails.
    """

    failed = 0
    unreadable = ""
    meanwhile: tuple[str, Callable[[], Awaitable[None]]] | None = None

    async def read(self, wanted: Contents) -> Rows:
        """See `Engine.read`."""
        if wanted.shard == self.unreadable:
            self.unreadable = ""
            raise Unavailable("an executor was lost")
        return await super().read(wanted)

    async def stage(self, rows: Rows, request: StageRequest) -> Staged:
        """See `Engine.stage`."""
        if self.meanwhile is not None and self.meanwhile[0] == request.shard:
            (_, happens), self.meanwhile = self.meanwhile, None
            await happens()
        return await super().stage(rows, request)

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """See `Engine.evaluate`."""
        try:
            return await super().evaluate(node, frames, origin=origin)
        except EvaluationError:
            self.failed += 1
            raise


@dataclass
class House:
    """Two inputs and views over them, in memory.

    ``queries``: the queries of these views that only Spark can run, by their texts.  ``failures``: the inputs' own
    errors (`failures_of`).  ``forgiven``: inputs whose errors are none of the views'.  ``refresh``: their schedule.
    """

    views: Mapping[str, PlannedView]
    queries: Mapping[str, Query] = field(default_factory=dict)
    failures: Mapping[str, Sequence[tuple[str, int, int]]] = field(default_factory=dict)
    forgiven: frozenset[str] = frozenset()
    refresh: Refresh | None = None
    engine: CountingEngine = field(init=False)
    blob: MemoryBlob = field(default_factory=MemoryBlob)
    stores: MemoryConsensus = field(default_factory=MemoryConsensus)
    epoch: int = 0

    def __post_init__(self) -> None:
        self.engine = CountingEngine(self.blob, self.queries)
        self.open()

    def open(self) -> None:
        """Open everything anew, as a new process does."""
        self.epoch += 1
        self.client = PersistClient(
            HandClock(), CountingIds(f"p{self.epoch}"), self.blob, self.stores, self.engine, grace_ms=None
        )
        self.writers = {
            name: run_sync(self.client.writer(name, self.epoch, schema=s.ddl)) for name, s in INPUTS.items()
        }
        readers = {name: run_sync(self.client.reader(name, schema, name)) for name, schema in INPUTS.items()}
        self.runs: list[StageRun] = []
        for name, view in self.views.items():
            for stage in split(view, name, self.refresh):
                if stage.name in readers:
                    continue  # two views share it
                writer = run_sync(self.client.writer(stage.name, self.epoch, schema=stage.schema.ddl))
                sink = Sink(self.engine, writer, stage.schema, f"{stage.name} as it is")
                inputs = {each: readers[each] for each in stage.inputs}
                assert all(inputs.values())
                forgiven = self.forgiven & inputs.keys()
                pace = Pace(self.refresh, shown=stage.name == name)
                run = StageRun(stage, self.engine, inputs, sink, forgiven, pace)  # type: ignore[arg-type]
                self.runs.append(run)
                readers[stage.name] = run_sync(self.client.reader(stage.name, stage.schema, stage.name))
        self.readers = readers

    def write(self, history: Mapping[str, Sequence[tuple[Row, int, int]]], lower: int, upper: int) -> None:
        """Append the inputs' changes of ``[lower, upper)``."""
        for name, schema in INPUTS.items():
            rows = [
                dict(zip(schema.names, row, strict=True)) | {TIME: time, DIFF: diff}
                for row, time, diff in history[name]
                if lower <= time < upper
            ]
            rows += [
                dict.fromkeys(schema.names) | {ERROR: error, TIME: time, DIFF: diff}
                for error, time, diff in self.failures.get(name, ())
                if lower <= time < upper
            ]
            writer = self.writers[name]
            request = StageRequest(name, schema, lower, upper, writer.stage_prefix(), inline_bytes_max=1 << 14)
            staged = run_sync(self.engine.stage(updates(schema, rows), request))
            run_sync(writer.compare_and_append([staged] if rows else [], Frontier(lower), Frontier(upper)))

    def tick(self, upper: int) -> None:
        """Bring all views to ``upper``."""
        report = run_sync(tick(self.client, self.engine, self.runs, Frontier(upper), in_turn))
        assert not report.failed, report.failed
        assert not report.standing

    async def overtake(self, name: str, lower: int, upper: int, foreign: Sequence[Row] = ()) -> None:
        """Let another process append ``foreign`` rows to a shard over ``[lower, upper)``, under the same epoch."""
        client = PersistClient(
            HandClock(), CountingIds(f"o{lower}"), self.blob, self.stores, self.engine, grace_ms=None
        )
        schema = next(run.stage.schema for run in self.runs if run.name == name)
        writer = await client.writer(name, self.epoch, schema=schema.ddl)
        request = StageRequest(name, schema, lower, upper, writer.stage_prefix(), inline_bytes_max=1 << 14)
        rows = [dict(zip(schema.names, row, strict=True)) | {TIME: lower, DIFF: 1} for row in foreign]
        staged = await self.engine.stage(updates(schema, rows), request)
        await writer.compare_and_append([staged] if rows else [], Frontier(lower), Frontier(upper))

    def updates(self, name: str, upper: int = LAST + 1) -> Counter[tuple[Row, str | None, int]]:
        """Return all updates of a collection: row, error, time to diff."""
        reader = self.readers[name]
        assert reader is not None
        held = contents(run_sync(reader.refresh()), reader.schema, 0, upper, advance=0, half=Half.BOTH)
        found: Counter[tuple[Row, str | None, int]] = Counter()
        for row in listed(run_sync(self.engine.read(held))).rows:
            found[tuple(row[c] for c in reader.schema.names), row[ERROR], row[TIME]] += row[DIFF]
        return Counter({key: count for key, count in found.items() if count})

    def at(self, name: str, time: int) -> tuple[Counter[Row], Counter[str]]:
        """Return the rows and the errors of a collection at ``time``."""
        rows: Counter[Row] = Counter()
        errors: Counter[str] = Counter()
        for (row, error, at), diff in self.updates(name, max(LAST, time) + 1).items():
            if at <= time and error is None:
                rows[row] += diff
            elif at <= time and error is not None:
                errors[error] += diff
        return Counter({r: n for r, n in rows.items() if n}), Counter({e: n for e, n in errors.items() if n})


def held_at(history: Changes, time: int) -> dict[str, Counter[Row]]:
    """Return the rows of each input at ``time``."""
    held: dict[str, Counter[Row]] = {}
    for name, changes in history.items():
        found: Counter[Row] = Counter()
        for row, at, diff in changes:
            if at <= time:
                found[row] += diff
        held[name] = Counter({row: count for row, count in found.items() if count})
    return held
