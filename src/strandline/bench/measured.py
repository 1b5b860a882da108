"""An environment whose ticks are measured: by the clock, in Spark jobs, and in classes that Spark compiles.

It is an environment as `strandline.open` makes it, over files and Spark, with the default configuration.  Two things
that run beside ticks are called by hand here, so that no figure holds a share of them that chance decides: large merges
run after each tick and are timed apart, and the self-checks, which have a budget of their own (2 % of the time), are
left out; the benchmarks compare the views themselves.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from strandline.controller.asking import reads
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.creating import create
from strandline.controller.holding import Hold
from strandline.controller.language import arguments
from strandline.controller.language.statements import Create, Drop
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import View
from strandline.errors import InvalidUsage
from strandline.instance.connections import Connectors
from strandline.instance.tables import Change, Statement
from strandline.plane import Engine
from strandline.wiring.assemble import SparkAssembly, assemble

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def seconds(call: Callable[[], object]) -> float:
    """Make a call, and return how many seconds it took."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


class SparkWork:
    """What Spark's driver has done so far, by counters of its own."""

    def __init__(self, session: SparkSession) -> None:
        jvm: Any = session._jvm  # noqa: SLF001 - there is no other way to what the JVM says of itself
        self._scheduler = session.sparkContext._jsc.sc().dagScheduler()  # noqa: SLF001 - likewise
        self._compiled = jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME()

    def jobs(self) -> int:
        """Return how many jobs the application has begun: the number that its next job gets."""
        return int(self._scheduler.numTotalJobs())

    def compiled(self) -> int:
        """Return how many classes were generated and compiled; those found in Spark's cache do not count."""
        return int(self._compiled.getCount())


@dataclass(frozen=True, slots=True)
class Tick:
    """One tick, at ``time``.

    ``waves``: how many levels of stages had something to step; ``steps``: how many stages did; ``problems``: what
    stands in the way of each item afterwards.
    """

    time: int
    ms: float
    jobs: int
    compiled: int
    waves: int
    steps: int
    problems: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Edit:
    """Rows that leave a table and rows that enter it."""

    table: str
    deleted: pa.Table | None
    inserted: pa.Table | DataFrame | None


class Measured:
    """An open environment; see the module."""

    def __init__(self, core: Core, assembly: SparkAssembly, session: SparkSession) -> None:
        self.core = core
        self._engine = assembly.engine
        self._work = SparkWork(session)
        self.merge_ms = 0.0
        """What large merges have taken so far."""

    async def execute(self, text: str) -> None:
        """Run a CREATE (the next tick computes what it defines) or a DROP."""
        match arguments.statement(text):
            case s if isinstance(s, Create):
                await create(self.core, s)
            case Drop() as s:
                await definitions.drop(self.core, s)
            case other:
                raise InvalidUsage(f"no benchmark runs {type(other).__name__}")

    async def commit(self, edits: Sequence[Edit]) -> float:
        """Change tables in one transaction, and return how many milliseconds it took; durable when it returns."""
        begun = time.perf_counter()
        changes: list[Change | Statement] = []
        for edit in edits:
            for rows, diff in ((edit.deleted, -1), (edit.inserted, 1)):
                if rows is not None:
                    changes.append(await self._change(edit.table, rows, diff))
        await self.core.commit(changes, token=None)
        return (time.perf_counter() - begun) * 1000

    async def tick(self) -> Tick:
        """Tick, carry out the large merges that are due, and say what the tick took."""
        jobs, compiled, begun = self._work.jobs(), self._work.compiled(), time.perf_counter()
        at = await self.core.tick()
        ended = time.perf_counter()
        steps, depths = self.core.require_writing().instance.report().steps, self._depths()
        found = Tick(
            time=at,
            ms=(ended - begun) * 1000,
            jobs=self._work.jobs() - jobs,
            compiled=self._work.compiled() - compiled,
            waves=len({depths[name] for name in steps}),
            steps=len(steps),
            problems=self.core.health.problems(),
        )
        begun = time.perf_counter()
        await self.core.merge()
        self.merge_ms += (time.perf_counter() - begun) * 1000
        return found

    async def rows(self, name: str, as_of: int | None = None) -> pa.Table:
        """Return the contents of a collection (None: the latest), every row as often as it is there."""
        reader = await self.core.readers.of(name)
        at = await reads.latest(self.core, [reader]) if as_of is None else as_of
        _, contents = await reads.multiset(self.core, name, reader, at, Hold())
        return await self._engine.collect(contents)

    async def _change(self, name: str, rows: pa.Table | DataFrame, diff: int) -> Change:
        table = self.core.table(name)
        if isinstance(rows, pa.Table):
            frame = await self._engine.local(rows, table.schema, time=0, diff=diff)
            return Change(table, frame, diff < 0, rows.num_rows)
        return Change(table, self._engine.given(rows, table.schema, diff=diff), diff < 0, None)

    def _depths(self) -> Mapping[str, int]:
        """Return for each stage how many stages stand before it at the most."""
        plans, depths = self.core.require_writing().plans, dict[str, int]()
        for item in self.core.catalog.items.values():
            if isinstance(item, View) and (known := plans.get(item)) is not None:
                for stage in known.stages:
                    depths[stage.name] = 1 + max([depths.get(name, 0) for name in stage.inputs], default=0)
        return depths


@asynccontextmanager
async def opened(
    session: SparkSession, directory: Path, connectors: Callable[[Engine], Connectors] | None = None
) -> AsyncIterator[Measured]:
    """Open an environment in ``directory`` on ``session``'s application; closed when the context ends.

    ``connectors``: how its sources are read, if not by the readers that there are.
    """
    config = Config()
    assembly = assemble(directory.as_uri(), spark=session, consensus=None, config=config)
    if connectors is not None:
        assembly = replace(assembly, connectors=connectors(assembly.engine))
    core = await Core.open(assembly, config, Mode.FULL)
    try:
        yield Measured(core, assembly, session)
    finally:
        await core.close()
        assembly.close()


def spread(ms: Sequence[float]) -> dict[str, float]:
    """Return the figures of how long something took, or waited, each time.

    >>> spread([4.0, 1.0, 3.0, 2.0])
    {'p50_ms': 2.0, 'p99_ms': 4.0, 'max_ms': 4.0}
    """
    named = {"p50_ms": percentile(ms, 50), "p99_ms": percentile(ms, 99), "max_ms": max(ms)}
    return {name: round(each, 1) for name, each in named.items()}


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the smallest of ``values`` that at least so many percent of them do not exceed.

    >>> percentile([4, 1, 3, 2], 50), percentile([4, 1, 3, 2], 99)
    (2, 4)
    """
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
