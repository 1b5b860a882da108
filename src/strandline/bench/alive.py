"""`strandline bench alive`: whether views keep their freshness while another one is computed for a minute.

Files of rows come into a folder at a steady rate, and some views follow them.  Ticks come every second, and wait for
nothing that takes longer.  After a while of that, one more view is defined, over a large table that is joined with
itself: it hydrates for a minute or more, on the same processors.  Later an endpoint is silent for a while, because
another process has locked its file, and then a source, whose server takes connections and says nothing.  A row is
readable once every view that follows has a complete time that holds it.

``p99_ratio``: the freshness of rows that came while something was late ÷ of those that came before.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import PIPE, Popen
from typing import TYPE_CHECKING, Any, Final

from strandline.bench.feed import FILE_ROWS, HEADER, Feed, event, events, following
from strandline.bench.measured import Edit, Measured, opened, spread
from strandline.errors import InvalidUsage
from strandline.frontier import MINIMUM, Frontier, meet
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
SILENT_SECONDS: Final = 60.0
"""How long an endpoint, and then a source, says nothing."""
LARGE: Final = "large"
ENDPOINT: Final = "slow_endpoint"
SOURCE: Final = "gone_source"
LATE: Final = (LARGE, ENDPOINT, SOURCE)
"""What may have a problem: it says how long it takes."""
INTERVAL_S: Final = 1.0
POLL_S: Final = 0.02
LONGEST_S: Final = 600.0
"""How long the large view may take."""
_LOCK: Final = "import duckdb, sys; held = duckdb.connect(sys.argv[1]); print('locked', flush=True); sys.stdin.read()"


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
    silent_seconds: float = SILENT_SECONDS,
) -> dict[str, Any]:
    """Measure in ``directory`` and return every figure.

    ``before``, and beside what is late (``beside``: the large view; ``endpoint_silent``; ``source_gone``): ``p50_ms``,
    ``p99_ms``, ``max_ms`` of the rows' freshness, and how often in a second upstream was told what it may forget;
    ``p99_ratio`` of each to before; ``hydrated_s``: how long the large view took.
    """
    directory.mkdir(exist_ok=True)
    folder = directory / "events"
    folder.mkdir()
    feed = Feed(folder, HEADER, event, rate, seconds + warm_seconds + LONGEST_S + 2 * silent_seconds)
    with ThreadPoolExecutor(1) as pool:
        run = _Run(feed, views, rows, matches, silent_seconds)
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
    silent_s: float
    readable: list[float] = field(default_factory=list)
    before: _Phase = field(default_factory=_Phase)
    beside: _Phase = field(default_factory=_Phase)
    endpoint_silent: _Phase = field(default_factory=_Phase)
    source_gone: _Phase = field(default_factory=_Phase)
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
                await env.execute(f"DROP MATERIALIZED VIEW {LARGE}")
                await self._silent_endpoint(env, location.parent / "slow.duckdb")
                await self._gone_source(env)
                ended = self._enter(_Phase())
                while len(self.readable) < sum(came < ended for came in list(self.feed.durable)):
                    await self._ticks(env, INTERVAL_S)
            finally:
                self.feed.stop()
                watching.cancel()
            writing.result()

    def figures(self) -> dict[str, Any]:
        """Return all figures."""
        before = self.before.figures(self.feed.durable, self.readable)
        found: dict[str, Any] = {"before": before}
        for name in ("beside", "endpoint_silent", "source_gone"):
            each: dict[str, Any] = getattr(self, name).figures(self.feed.durable, self.readable)
            found[name] = {**each, "p99_ratio": round(each["p99_ms"] / before["p99_ms"], 2)}
        return {
            **found,
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

    async def _silent_endpoint(self, env: Measured, file: Path) -> None:
        """Tick while an endpoint does not answer."""
        options = f"path '{file}'"
        await env.execute(f"CREATE MATERIALIZATION {ENDPOINT} INTO duckdb OPTIONS ({options}) AS v0 KEY (kind)")
        await self._ticks(env, 3 * INTERVAL_S)
        with _locked(file):
            self._enter(self.endpoint_silent)
            await self._ticks(env, self.silent_s)
            self._enter(_Phase())
        await env.execute(f"DROP MATERIALIZATION {ENDPOINT}")

    async def _gone_source(self, env: Measured) -> None:
        """Tick while a source's server takes connections and says nothing."""
        with socket.create_server(("127.0.0.1", 0)) as server:
            options = f"servers '127.0.0.1:{server.getsockname()[1]}', topic 't', format 'json'"
            await env.execute(f"CREATE SOURCE {SOURCE} (n BIGINT) USING kafka OPTIONS ({options})")
            self._enter(self.source_gone)
            await self._ticks(env, self.silent_s)
            self._enter(_Phase())
            await env.execute(f"DROP SOURCE {SOURCE}")

    async def _ticks(self, env: Measured, seconds: float) -> None:
        """Tick every second for so many seconds, as `strandline run` does."""
        clock, until = env.core.client.clock, time.perf_counter() + seconds
        while (begun := time.perf_counter()) < until:
            await env.core.tick(deadline=Deadline(clock, INTERVAL_S))
            problems = {name: why for name, why in env.core.health.problems().items() if name not in LATE}
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

    def _enter(self, phase: _Phase) -> float:
        """Begin a part of the run, and end the one before; return when that was."""
        phase.begun = self._phase.ended = time.perf_counter()
        self._phase = phase
        return phase.begun


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    """Have another process hold the lock of a DuckDB file."""
    with Popen([sys.executable, "-c", _LOCK, file], stdin=PIPE, stdout=PIPE) as locking:  # noqa: S603 - ours
        assert locking.stdout is not None
        locking.stdout.readline()
        yield
        locking.communicate()
