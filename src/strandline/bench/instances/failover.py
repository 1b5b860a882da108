"""`strandline bench failover`: what it costs when the controller of an instance, or one of its two replicas, is killed.

A controller and two replicas run as processes over one location.  Files of rows come into a folder at a steady rate, a
source in the controller reads them, and views in the instance follow it, so both replicas compute each of them.  A row
is readable once every view has a complete time that holds it.  This process reads the shards every 50 ms, as any other
reader may: so every figure is as exact as that.

Undisturbed: how fresh rows are, and what the replicas undo of each other (``conflicts``, ``audits``).

The controller is killed again and again, and another one is started at once.  What it takes has two parts: until it
takes the location over (the process and Spark begin), and from there (``opened_ms`` of its holder in the catalog) until
a view is complete at a time that only this controller can have minted, and until all are.

Then a replica is killed at regular intervals, each in turn, and is started again at once.  ``freshness_p99_ratio``: the
freshness of the rows that came meanwhile ÷ of those that came undisturbed.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from strandline.bench.feed import FILE_ROWS, HEADER, Feed, event, events, following
from strandline.bench.instances.processes import CONTROLLER, Site
from strandline.bench.measured import percentile, spread
from strandline.controller.asking.status import live_counters
from strandline.controller.asking.verification import verify
from strandline.controller.core import Core
from strandline.controller.instances.replicas import ReplicaStatus
from strandline.controller.location.config import Config, Mode
from strandline.errors import InvalidUsage
from strandline.frontier import MINIMUM, Frontier, meet
from strandline.instance import live
from strandline.wiring.assemble import assemble

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RATE: Final = 200
"""Rows per second."""
SECONDS: Final = 60.0
"""How long the views are followed undisturbed."""
WARM_SECONDS: Final = 30.0
VIEWS: Final = 10
CONTROLLER_KILLS: Final = 20
REPLICA_KILLS: Final = 8
EVERY_SECONDS: Final = 30.0
"""How often a replica is killed."""
REPLICAS: Final = ("a", "b")
SETTLED_S: Final = 3.0
"""After so long, a controller that has brought on all views has published how it found the replicas."""
PATIENCE_S: Final = 300.0
POLL_S: Final = 0.05
MEMORY: Final = "1g"


@dataclass(frozen=True)
class Load:
    """What is done: ``every_seconds`` a replica is killed, and ``replica_kills`` times in all."""

    rate: int = RATE
    seconds: float = SECONDS
    warm_seconds: float = WARM_SECONDS
    views: int = VIEWS
    controller_kills: int = CONTROLLER_KILLS
    replica_kills: int = REPLICA_KILLS
    every_seconds: float = EVERY_SECONDS


def measure_failover(session: SparkSession, directory: Path, load: Load) -> dict[str, Any]:
    """Measure in ``directory`` and return every figure.

    ``reused``: how many dataflows the replicas kept, over all controllers; ``rebuilt``: how many they did not.
    ``controller_restart_s_p50``: from the take-over to the first view at a time of the new controller; ``…_views_…``:
    to the last view.  ``controller_opening_s_p50``: the part of it until everything is commanded (``running`` in the
    log).  ``controller_start_s_p50``: before the take-over.  ``controller_whole_s_p50``: from the start of the process
    to the last view.  ``replica_back_s_p50``: from a replica's death to when its successor obeys.
    """
    directory.mkdir(exist_ok=True)
    (directory / "events").mkdir()
    settings = {"location": "data", "spark": {"spark.master": "local[1]", "spark.driver.memory": MEMORY}}
    feed = Feed(directory / "events", HEADER, event, load.rate, 24 * 3600)
    with Site(directory / "project", REPLICAS, settings) as site, ThreadPoolExecutor(1) as pool:
        _define(site, feed, load)
        site.complete()
        run = _Run(site, feed, load)
        asyncio.run(run.go(session, pool))
        run.statuses = [site.processes[each].end() for each in (CONTROLLER, *REPLICAS)]
    return run.figures()


def _define(site: Site, feed: Feed, load: Load) -> None:
    site.write({"sources/events.sql": events(feed.folder)})
    for name, query in following(load.views):
        site.write({f"views/{name}.sql": f"CREATE MATERIALIZED VIEW {name} IN INSTANCE x AS {query}"})


@dataclass(frozen=True)
class _Restart:
    """One restart of the controller, in seconds from its start; what replicas kept then, and what they did not."""

    opened_s: float
    running_s: float
    first_s: float
    views_s: float
    reused: int
    rebuilt: int


@dataclass
class _Run:
    site: Site
    feed: Feed
    load: Load
    readable: list[float] = field(default_factory=list)
    restarts: list[_Restart] = field(default_factory=list)
    back_s: list[float] = field(default_factory=list)
    undone: dict[str, int] = field(default_factory=dict)
    wrong: int = 0
    statuses: list[int] = field(default_factory=list)
    _before: tuple[float, float] = (0.0, 0.0)
    _during: tuple[float, float] = (0.0, 0.0)
    _uppers: list[Frontier] = field(default_factory=list)
    _core: Core = field(init=False)

    async def go(self, session: SparkSession, pool: Executor) -> None:
        """Measure while the processes run."""
        config = Config()
        assembly = assemble(str(self.site.root / "data"), spark=session, consensus=None, config=config, mode=Mode.READ)
        try:
            self._core = await Core.open(assembly, config, Mode.READ)
            await self._core.look()
            writing = pool.submit(self.feed.run)
            watching = asyncio.create_task(self._watch())  # noqa: TID251 - it measures beside
            try:
                await self._measure()
                self.feed.stop()
                writing.result()
                await self._until("every row is readable", lambda: len(self.readable) == len(self.feed.durable))
            finally:
                self.feed.stop()
                watching.cancel()
            for number in range(self.load.views):
                self.wrong += not (await verify(self._core, f"v{number}", None)).ok
            await self._core.close()
        finally:
            assembly.close()

    async def _measure(self) -> None:
        await self._until("every view has rows", lambda: bool(self.readable))
        await self._pause(self.load.warm_seconds)
        undone, begun = await self._undone(), time.perf_counter()
        await self._pause(self.load.seconds)
        self._before = begun, time.perf_counter()
        came = len(self.feed.durable)
        await self._until("what came undisturbed is readable", lambda: len(self.readable) >= came)
        self.undone = {name: count - undone[name] for name, count in (await self._undone()).items()}
        for _ in range(self.load.controller_kills):
            self.restarts.append(await self._restarted())
        begun = time.perf_counter()
        for name in itertools.islice(itertools.cycle(REPLICAS), self.load.replica_kills):
            await self._killed(name)
        self._during = begun, time.perf_counter()

    # ---- killing -----------------------------------------------------------------------------------------------------

    async def _restarted(self) -> _Restart:
        before = self._core.catalog.epoch
        self.site.kill(CONTROLLER)
        begun_ms, process = self._now_ms(), self.site.start(CONTROLLER)
        while (catalog := await self._core.catalogs.read()).epoch == before:
            assert process.runs, process.said
            await self._pause(POLL_S)
        assert catalog.holder is not None
        opened_ms = catalog.holder.opened_ms  # all times that this controller mints are later
        await self._until("a view goes on", lambda: max(self._uppers) > Frontier(opened_ms))
        first_ms = self._now_ms()
        await self._until("all views go on", lambda: min(self._uppers) > Frontier(opened_ms))
        views_ms = self._now_ms()
        await self._pause(SETTLED_S)
        found = await self._obeying()
        return _Restart(
            opened_s=(opened_ms - begun_ms) / 1000,
            running_s=(process.said_at_ms("event=running") - begun_ms) / 1000,
            first_s=(first_ms - begun_ms) / 1000,
            views_s=(views_ms - begun_ms) / 1000,
            reused=sum(each.reused for each in found.values()),
            rebuilt=sum(each.created + each.dropped + sum(each.replaced.values()) for each in found.values()),
        )

    async def _killed(self, name: str) -> None:
        """Kill a replica and start it again; return when it has been back for a while, and the next one's turn is."""
        before, begun = (await self._obeying())[name].incarnation, time.perf_counter()
        self.site.kill(name)
        self.site.start(name)
        while (found := await self._obeying())[name].incarnation == before:
            await self._pause(POLL_S)
        self.back_s.append(time.perf_counter() - begun)
        assert found[name].created + found[name].reused == self.load.views, found
        await self._pause(begun + self.load.every_seconds - time.perf_counter())

    async def _obeying(self) -> dict[str, ReplicaStatus]:
        """Return what is published of the replicas, as soon as both obey."""
        end = time.perf_counter() + PATIENCE_S
        while True:
            found = (await self._core.health.published_replicas.read()).get("x", {})
            if found and all(each.incarnation and not each.problem for each in found.values()):
                return found
            assert time.perf_counter() < end, f"a replica does not obey: {found}"
            await self._pause(POLL_S)

    # ---- watching ----------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Note how far views are, and when rows are readable in all of them."""
        due: list[tuple[Frontier, int]] = []
        source, *views = [
            self._core.catalog.collection(name).shard
            for name in ("events", *(f"v{number}" for number in range(self.load.views)))
        ]
        client = self._core.client
        while True:
            for shard in (source, *views):
                await client.look(shard)
            states = [client.known(shard) for shard in (source, *views)]
            if all(states):
                events, *self._uppers = [MINIMUM if state is None else state.upper for state in states]
                rows = sum(batch.rows for batch in client.state_of(source).batches)
                if not due or due[-1] != (events, rows):
                    due.append((events, rows))
                reached = meet(self._uppers)
                complete = [rows for upper, rows in due if upper <= reached]
                if complete:
                    now = time.perf_counter()
                    self.readable += [now] * (complete[-1] // FILE_ROWS - len(self.readable))
                    due = due[len(complete) - 1 :]
            await self._pause(POLL_S)

    async def _undone(self) -> dict[str, int]:
        """Return how often sinks withdrew what another wrote, or computed all anew: in the replica that did so most."""
        counted = await live_counters(self._core)
        sinks = [live.of(counted, live.SINK, f"v{number}") for number in range(self.load.views)]
        assert all(sinks), "the controller says what its replicas count"
        return {name: sum(each[name] for each in sinks) for name in ("conflicts", "audits")}

    async def _until(self, what: str, holds: Callable[[], bool]) -> None:
        end = time.perf_counter() + PATIENCE_S
        while not holds():
            assert time.perf_counter() < end, f"{what}: not within {PATIENCE_S} s"
            await self._pause(POLL_S)

    async def _pause(self, seconds: float) -> None:
        await self._core.client.clock.sleep(max(0.0, seconds))

    def _now_ms(self) -> int:
        return self._core.client.clock.now_ms()

    # ---- figures -----------------------------------------------------------------------------------------------------

    def figures(self) -> dict[str, Any]:
        """Return all figures."""
        before, during = self._freshness(*self._before), self._freshness(*self._during)
        parts = {
            "controller_restart_s": [each.first_s - each.opened_s for each in self.restarts],
            "controller_opening_s": [each.running_s - each.opened_s for each in self.restarts],
            "controller_restart_views_s": [each.views_s - each.opened_s for each in self.restarts],
            "controller_start_s": [each.opened_s for each in self.restarts],
            "controller_whole_s": [each.views_s for each in self.restarts],
            "replica_back_s": self.back_s,
        }
        return {
            "reused": sum(each.reused for each in self.restarts),
            "rebuilt": sum(each.rebuilt for each in self.restarts),
            **{f"{name}_p50": round(percentile(each, 50), 2) for name, each in parts.items() if each},
            **{f"{name}_max": round(max(each), 2) for name, each in parts.items() if each},
            "undisturbed": before,
            "replicas_killed": during,
            "freshness_p99_ratio": round(during["p99_ms"] / before["p99_ms"], 2),
            **self.undone,
            "wrong": self.wrong,
            "ended_with": self.statuses,
            "controller_kills": len(self.restarts),
            "replica_kills": len(self.back_s),
            "every_seconds": self.load.every_seconds,
            "seconds": self.load.seconds,
            "views": self.load.views,
            "rows_per_s": self.load.rate,
        }

    def _freshness(self, begun: float, ended: float) -> dict[str, float]:
        pairs = zip(self.feed.durable, self.readable, strict=True)
        ms = [(there - came) * 1000 for came, there in pairs if begun <= came < ended]
        if not ms:
            raise InvalidUsage("no row came while it was measured: let it take longer")
        return spread(ms)
