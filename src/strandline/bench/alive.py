"""`strandline bench alive`: whether views keep their freshness while another one is computed for a minute.

Files of rows come into a folder at a steady rate, and some views follow them.  Ticks come every second, and wait for
nothing that takes longer.  After a while of that, one more view is defined, over a large table that is joined with
itself: it hydrates for a minute or more, on the same processors.  A row is readable once every view that follows has a
complete time that holds it.

``p99_ratio``: the freshness of rows that came while the large view hydrated ÷ of those that came before.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline.bench.feed import FILE_ROWS, HEADER, Feed, event, events, following
from strandline.bench.measured import Edit, Measured, opened, spread
from strandline.errors import InvalidUsage
from strandline.frontier.antichain import MINIMUM, Frontier, meet
from strandline.persist.shard.patience import Deadline

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE: Final = 200
"""Rows per second."""
SECONDS: Final = 30.0
"""How long the views are followed undisturbed."""
WARM_SECONDS: Final = 15.0
VIEWS: Final = 10
ROWS: Final = 300_000
"""How many rows the large view joins with each other."""
MATCHES: Final = 700
"""With how many of them each."""
LARGE: Final = "large"
INTERVAL_S: Final = 1.0
POLL_S: Final = 0.02
LONGEST_S: Final = 600.0
"""How long the large view may take."""


def measure_alive(
    session: SparkSession,
    directory: Path,
    *,
    rate: int = RATE,
    seconds: float = SECONDS,
    warm_seconds: float = WARM_SECONDS,
    views: int = VIEWS,
    rows: int = ROWS,
    matches: int = MATCHES,
) -> dict[str, Any]:
    """Measure in ``directory`` and return every figure.

    ``before`` and ``beside``: ``p50_ms``, ``p99_ms``, ``max_ms`` of the rows' freshness, and how often in a second
    upstream was told what it may forget; ``p99_ratio``; ``hydrated_s``: how long the large view took.
    """
    directory.mkdir(exist_ok=True)
    folder = directory / "events"
    folder.mkdir()
    feed = Feed(folder, HEADER, event, rate, seconds + warm_seconds + LONGEST_S)
    with ThreadPoolExecutor(1) as pool:
        run = _Run(feed, views, rows, matches)
        asyncio.run(run.go(session, directory / "location", pool, warm_seconds, seconds))
    return run.figures()


@dataclass
class _Phase:
    """A part of the run, from ``begun`` to ``ended`` (seconds), and how often upstream was told something in it."""

    begun: float = 0.0
    ended: float = 0.0
    told: int = 0

    def figures(self, durable: list[float], readable: list[float]) -> dict[str, Any]:
        """Return the freshness of the rows that came in this part."""
        pairs = zip(durable, readable, strict=False)
        ms = [(there - came) * 1000 for came, there in pairs if self.begun <= came < self.ended]
        if not ms:
            raise InvalidUsage("no row came while it was measured: let it take longer")
        return {**spread(ms), "told_per_s": round(self.told / (self.ended - self.begun), 2)}


@dataclass
class _Run:
    feed: Feed
    views: int
    rows: int
    matches: int
    readable: list[float] = field(default_factory=list)
    before: _Phase = field(default_factory=_Phase)
    beside: _Phase = field(default_factory=_Phase)
    _phase: _Phase = field(default_factory=_Phase)

    async def go(self, session: SparkSession, location: Path, pool: Executor, warm_s: float, seconds: float) -> None:
        async with opened(session, location) as env:
            await self._define(env, session)
            writing = pool.submit(self.feed.run)
            watching = asyncio.create_task(self._watch(env))  # noqa: TID251 - it measures beside ticks
            try:
                await self._ticks(env, warm_s)
                self._enter(self.before)
                await self._ticks(env, seconds)
                self._enter(self.beside)
                await env.execute(
                    "CREATE MATERIALIZED VIEW large AS SELECT a.g, count(*) AS n, max(a.id - b.id) AS most "
                    "FROM big a JOIN big b ON a.g = b.g AND a.id <> b.id GROUP BY a.g"
                )
                while self._upper(env, LARGE) == MINIMUM:
                    assert time.perf_counter() - self.beside.begun < LONGEST_S, "the large view takes too long"
                    await self._ticks(env, INTERVAL_S)
                self._enter(_Phase())
                while len(self.readable) < sum(came < self.beside.ended for came in list(self.feed.durable)):
                    await self._ticks(env, INTERVAL_S)
            finally:
                self.feed.stop()
                watching.cancel()
            writing.result()

    def figures(self) -> dict[str, Any]:
        """Return all figures."""
        before = self.before.figures(self.feed.durable, self.readable)
        beside = self.beside.figures(self.feed.durable, self.readable)
        return {
            "before": before,
            "beside": beside,
            "p99_ratio": round(beside["p99_ms"] / before["p99_ms"], 2),
            "hydrated_s": round(self.beside.ended - self.beside.begun, 1),
            "views": self.views,
            "rows_per_s": self.feed.rate,
        }

    async def _define(self, env: Measured, session: SparkSession) -> None:
        await env.execute("CREATE TABLE big (id BIGINT, g BIGINT)")
        groups = max(1, self.rows // self.matches)
        await env.commit([Edit("big", None, session.range(self.rows).selectExpr("id", f"id % {groups} AS g"))])
        await env.execute(events(self.feed.folder))
        for name, query in following(self.views):
            await env.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        await env.tick()

    async def _ticks(self, env: Measured, seconds: float) -> None:
        """Tick every second for so many seconds, as `strandline run` does."""
        clock, until = env.core.client.clock, time.perf_counter() + seconds
        while (begun := time.perf_counter()) < until:
            await env.core.tick(deadline=Deadline(clock, INTERVAL_S))
            problems = dict(env.core.health.problems())
            problems.pop(LARGE, None)  # it says how long it takes
            assert not problems, f"there are problems: {problems}"
            await clock.sleep(max(0.0, INTERVAL_S - (time.perf_counter() - begun)))

    async def _watch(self, env: Measured) -> None:
        """Note when rows are readable in all views, and when upstream learns what it may forget."""
        due: list[tuple[Frontier, int]] = []
        told: object = None
        while True:
            status = env.core.require_writing().instance.report().sources["events"]
            output = status.outputs[""]
            if not due or due[-1] != (output.upper, output.durable_records):
                due.append((output.upper, output.durable_records))
            reached = meet(self._upper(env, f"v{number}") for number in range(self.views))
            complete = [records for upper, records in due if upper <= reached]
            if complete:
                now = time.perf_counter()
                self.readable += [now] * (complete[-1] // FILE_ROWS - len(self.readable))
                due = due[len(complete) - 1 :]
            self._phase.told += told not in (None, status.resume)
            told = status.resume
            await env.core.client.clock.sleep(POLL_S)

    def _upper(self, env: Measured, name: str) -> Frontier:
        state = env.core.client.known(env.core.catalog.collection(name).shard)
        return MINIMUM if state is None else state.upper

    def _enter(self, phase: _Phase) -> None:
        phase.begun = self._phase.ended = time.perf_counter()
        self._phase = phase
