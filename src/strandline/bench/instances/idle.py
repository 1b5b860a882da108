"""`strandline bench idle`: what `strandline run` costs while nothing changes.

A project of a folder of files, a table and many views runs in a process of its own.  Once all is computed, it is left
alone, and what its processes take from a processor, what they write and how many Spark jobs they start is counted from
outside: by the kernel, by the location's stores, and by Spark's event log.

Nothing is not quite nothing: every few intervals one tick says that all is complete as it was, and raises each upper.
"""

from __future__ import annotations

import os
import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Any, Final

from strandline.bench.feed import FOLLOWING, HEADER, event, events, following
from strandline.bench.instances.processes import CONTROLLER, Site
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.wiring.loop import at_once

if TYPE_CHECKING:
    from collections.abc import Iterator

VIEWS: Final = 50
SECONDS: Final = 60.0
QUIET_S: Final = 15.0
"""For so long nothing is written before it is measured."""
QUIET_WITHIN_S: Final = 300.0
LOOK_S: Final = 0.001
INTERVAL_S: Final = 1.0
PAUSE: Final = Event()
"""Never set: waiting for it is a pause."""
TICKS: Final = os.sysconf("SC_CLK_TCK")
_JOB: Final = '"SparkListenerJobStart"'
_KINDS: Final = (
    *FOLLOWING[:2],
    "SELECT e.kind, k.label, e.amount FROM events e JOIN kinds k ON e.kind = k.kind WHERE e.n % {n} = 0",
)


def measure_idle(directory: Path, *, views: int = VIEWS, seconds: float = SECONDS) -> dict[str, Any]:
    """Measure in ``directory`` and return every figure.

    ``core_percent``: of one processor, by the process and its JVM; ``writes_per_interval``: commits of the consensus,
    each an fsync, and objects in the blob store, by interval; ``versions_per_interval``: of all shards, many of which
    share a commit; ``jobs``: Spark jobs in ``seconds``; ``hydrated_s``: how long it took until all was there.
    """
    directory.mkdir(exist_ok=True)
    for name in ("events", "log"):
        (directory / name).mkdir()
    (directory / "events" / "a.csv").write_text("\n".join([HEADER, *map(event, range(1000)), ""]))
    spark = {
        "spark.master": "local[1]",
        "spark.driver.memory": "1g",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": (directory / "log").as_uri(),
    }
    settings = {"location": "data", "tick_ms": round(INTERVAL_S * 1000), "spark": spark}
    with Site(directory / "project", (), settings) as site:
        _define(site, directory / "events", views)
        begun = time.perf_counter()
        controller = site.start(CONTROLLER)
        controller.until("event=running")
        place = _Place(site.root / "data", directory / "log", controller.pid)
        hydrated_s = place.until_quiet() - begun
        before = place.seen()
        commits = place.commits(seconds)
        after = place.seen()
        status = controller.end()
    passed_s = after.at_s - before.at_s
    intervals, objects = passed_s / INTERVAL_S, len(after.objects - before.objects)
    return {
        "core_percent": round(100 * (after.cpu_s - before.cpu_s) / passed_s, 2),
        "writes_per_interval": round((commits + objects) / intervals, 2),
        "versions_per_interval": round((after.versions - before.versions) / intervals, 2),
        "jobs": after.jobs - before.jobs,
        "seconds": round(passed_s, 1),
        "views": views,
        "jobs_before": before.jobs,
        "hydrated_s": round(hydrated_s, 1),
        "ended_with": status,
    }


def _define(site: Site, folder: Path, views: int) -> None:
    site.write(
        {
            "sources/events.sql": events(folder),
            "tables/kinds.sql": "CREATE TABLE kinds (kind STRING, label STRING)",
        }
    )
    for name, query in following(views, _KINDS):
        site.write({f"views/{name}.sql": f"CREATE MATERIALIZED VIEW {name} AS {query}"})


@dataclass(frozen=True)
class _Seen:
    """What was counted, all since the beginning, ``at_s``."""

    at_s: float
    cpu_s: float
    versions: int
    objects: frozenset[str]
    jobs: int


@dataclass(frozen=True)
class _Place:
    """Where it is counted: the location, Spark's event log, and the process."""

    location: Path
    log: Path
    pid: int

    def until_quiet(self) -> float:
        """Return when the last object was written or job begun, once that was `QUIET_S` ago."""
        begun = since = time.perf_counter()
        known: Any = None
        while time.perf_counter() - since < QUIET_S:
            assert time.perf_counter() - begun < QUIET_WITHIN_S, f"it does not come to rest: {known[1]} jobs"
            PAUSE.wait(INTERVAL_S)
            seen = self.seen()
            if (now := (seen.objects, seen.jobs)) != known:
                known, since = now, time.perf_counter()
        return since

    def seen(self) -> _Seen:
        """Count everything."""
        jobs = sum(path.read_text(errors="replace").count(_JOB) for path in self.log.rglob("*") if path.is_file())
        objects = frozenset(str(path) for path in (self.location / "blob").rglob("*") if path.is_file())
        return _Seen(time.perf_counter(), sum(self._cpu_s()), at_once(self._versions()), objects, jobs)

    def commits(self, seconds: float) -> int:
        """Return how many commits another connection of the consensus's file sees in so many seconds."""
        with closing(sqlite3.connect(f"{(self.location / 'consensus.db').as_uri()}?mode=ro", uri=True)) as looking:
            seen, found, begun = None, 0, time.perf_counter()
            while time.perf_counter() - begun < seconds:
                version = looking.execute("PRAGMA data_version").fetchone()
                found += seen not in (None, version)
                seen = version
                PAUSE.wait(LOOK_S)
            return found

    async def _versions(self) -> int:
        """Return how often anything in the consensus was changed."""
        store = SQLiteConsensus(self.location / "consensus.db", existing=True)
        try:
            heads = [await store.head(key) for key in await store.list_keys()]
        finally:
            store.close()
        return sum(1 + head.seqno for head in heads if head is not None)

    def _cpu_s(self) -> Iterator[float]:
        """Yield what the process and each one below it has taken, in user and kernel mode, with children that ended."""
        stats = {int(each.name): fields for each in Path("/proc").iterdir() if (fields := _stat(each)) is not None}
        for pid, fields in stats.items():
            above = pid
            while above in stats and above != self.pid:
                above = int(stats[above][1])
            if above == self.pid:
                yield sum(map(int, fields[11:15])) / TICKS


def _stat(process: Path) -> list[str] | None:
    """Return the kernel's fields about a process, from its state on; None if it is none, or has ended."""
    try:
        return (process / "stat").read_text().rpartition(")")[2].split() if process.name.isdigit() else None
    except OSError:
        return None
