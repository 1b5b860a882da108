"""From a row that upstream has confirmed to a reader of the endpoint: how long it takes.

Rows come in at a steady rate, `COMMITS_PER_S` commits a second: transactions of PostgreSQL, or records that Kafka has
acknowledged.  An environment ticks as ``strandline run`` does, by default once a second.  It reads them by a source,
groups them in a view, and keeps a table equal to that, of a DuckDB file or of PostgreSQL.  Another process looks at it
(`watcher`).  A row is readable once that process has read a result that counts it.

A row belongs to a *lane*, and the rows of a lane are read in the order in which they came.  So a lane's count says
which of its rows are there, and the least count of all lanes which commits are there whole.

There is no peer: a goal is given in seconds.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

from strandline.bench.feed import paced
from strandline.bench.measured import opened, percentile
from strandline.controller.location.config import TICK_MS_DEFAULT
from strandline.store.clock import SystemClock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE: Final = 200
"""Rows per second."""
SECONDS: Final = 60.0
WARM_SECONDS: Final = 20.0
COMMITS_PER_S: Final = 10
LANES: Final = 4
FOLLOWED: Final = "id BIGINT, lane INT, amount BIGINT"
"""The columns of ``events``."""
LATE_SECONDS_MAX: Final = 120.0
"""How long the last rows may take before the benchmark says that they do not come."""
QUERY: Final = "SELECT lane, count(*) AS n, sum(amount) AS amount FROM events GROUP BY lane"


@dataclass(frozen=True)
class Upstream:
    """What rows are put into: ``create`` are the statements that make the collection ``events`` of it.

    ``put`` makes the rows with these numbers durable there, in lane ``number % LANES``, and returns when they are.
    """

    create: Sequence[str]
    put: Callable[[range], None]


@dataclass(frozen=True)
class Downstream:
    """Where rows are looked at: ``into`` as CREATE MATERIALIZATION takes it, ``place`` as `watcher` does."""

    into: str
    place: Sequence[str]


def into_file(file: Path) -> Downstream:
    """Return a DuckDB file."""
    return Downstream(f"duckdb OPTIONS (path '{file}')", ("duckdb", str(file)))


def into_database(options: Mapping[str, str]) -> Downstream:
    """Return a schema of a PostgreSQL database, given as the options of an endpoint; a password comes by PGPASSWORD."""
    return Downstream(into_postgres(options), ("postgres", json.dumps(dict(options))))


def into_postgres(options: Mapping[str, str]) -> str:
    """Return the endpoint of these options, as CREATE MATERIALIZATION takes it."""
    given = ", ".join(f"{name} '{text}'" for name, text in options.items())
    return f"postgres OPTIONS ({given})"


@dataclass
class Followed:
    """Commits of ``rows`` rows each: when each was durable, and what a reader saw when, in seconds of one clock."""

    rows: int
    durable: list[float] = field(default_factory=list)
    seen: list[tuple[float, int]] = field(default_factory=list)

    def waits_ms(self, warm_seconds: float) -> list[float]:
        """Return how long each commit after the first seconds took to be readable.

        >>> Followed(4, [10.0, 11.0, 12.0], [(10.5, 4), (13.0, 12)]).waits_ms(0.0)
        [500.0, 2000.0, 1000.0]
        """
        counted, waits, seen = self.durable[0] + warm_seconds, list[float](), iter(self.seen)
        at, rows = next(seen)
        for number, durable in enumerate(self.durable, start=1):
            while rows < number * self.rows:
                at, rows = next(seen)
            if durable >= counted:
                waits.append((at - durable) * 1000)
        return waits


def measure_endpoint(
    session: SparkSession,
    directory: Path,
    upstream: Upstream,
    downstream: Downstream | None = None,
    *,
    rate: int = RATE,
    seconds: float = SECONDS,
    warm_seconds: float = WARM_SECONDS,
) -> dict[str, Any]:
    """Put rows into ``upstream`` for so many seconds after the first ones, and return every figure.

    ``downstream``: None stands for a DuckDB file in ``directory``.

    ``p50_ms``, ``p99_ms`` and ``max_ms``: from a row's confirmation to its reader; ``tick_ms_p50``: what a tick took.
    """
    directory.mkdir(parents=True)
    followed = Followed(max(1, round(rate / COMMITS_PER_S / LANES)) * LANES)
    commits = round((seconds + warm_seconds) * COMMITS_PER_S)
    with ThreadPoolExecutor(1) as pool:
        into = downstream or into_file(directory / "endpoint.duckdb")
        ticks = asyncio.run(_run(session, directory, upstream, into, followed, commits, pool))
    waits = followed.waits_ms(warm_seconds)
    return {
        "p50_ms": round(percentile(waits, 50), 1),
        "p99_ms": round(percentile(waits, 99), 1),
        "max_ms": round(max(waits), 1),
        "rows": len(waits) * followed.rows,
        "rows_per_s": followed.rows * COMMITS_PER_S,
        "tick_ms_p50": round(percentile(ticks, 50), 1),
        "interval_ms": TICK_MS_DEFAULT,
    }


async def _run(
    session: SparkSession,
    directory: Path,
    upstream: Upstream,
    downstream: Downstream,
    followed: Followed,
    commits: int,
    pool: Executor,
) -> list[float]:
    """Tick until a reader has seen all commits; return what each tick took."""
    clock, ticks = SystemClock(), list[float]()
    async with opened(session, directory / "location") as env:
        for statement in upstream.create:
            await env.execute(statement)
        await env.execute(f"CREATE MATERIALIZED VIEW totals AS {QUERY}")
        await env.execute(f"CREATE MATERIALIZATION counted INTO {downstream.into} AS totals KEY (lane)")
        await env.tick()
        with _Watcher(downstream.place, commits * followed.rows, directory / "seen") as watcher:
            putting = pool.submit(_put, upstream, followed, commits)
            ended: float | None = None
            while not watcher.done:
                begun = time.perf_counter()
                tick = await env.tick()
                assert not tick.problems, f"the environment has problems: {tick.problems}"
                ticks.append(tick.ms)
                if putting.done():
                    putting.result()
                    ended = ended or begun
                    assert begun - ended < LATE_SECONDS_MAX, f"rows do not reach {downstream.place[0]}"
                await clock.sleep(max(0.0, TICK_MS_DEFAULT / 1000 - (time.perf_counter() - begun)))
    followed.seen += watcher.seen()
    return ticks


def _put(upstream: Upstream, followed: Followed, commits: int) -> None:
    rows = followed.rows
    paced(commits, 1 / COMMITS_PER_S, lambda n: upstream.put(range(n * rows, (n + 1) * rows)), followed.durable)


class _Watcher:
    """The process that looks at the table, until it has seen ``rows``; it writes what it sees into ``log``."""

    def __init__(self, place: Sequence[str], rows: int, log: Path) -> None:
        self._log = log
        self._command = [sys.executable, "-m", "strandline.bench.sources.watcher", *place, str(rows), str(log)]
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command)  # noqa: S603 - our own module
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()

    @property
    def done(self) -> bool:
        """Whether it has seen all rows.  Raises `RuntimeError` if it failed."""
        assert self._process is not None
        status = self._process.poll()
        if status:
            raise RuntimeError(f"the reader of the endpoint has failed with status {status}")
        return status == 0

    def seen(self) -> list[tuple[float, int]]:
        """Return when it saw how many rows."""
        return [(float(at), int(rows)) for at, rows in (line.split() for line in self._log.read_text().splitlines())]
