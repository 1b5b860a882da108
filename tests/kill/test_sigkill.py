"""`strandline run` is killed with SIGKILL at random moments, again and again, and restarts without an operator.

Every incarnation logs what it did (``run --json``).  Before each start the shards say what the one before left in
flight: files that are bound to a time and not durable.  Exactly those records are read again, no others; and at the
end the views are what plain Spark says, and DuckDB holds the views.

Beside the demo's views there is one for each rule that looks up what a small window touches (`LOOKING_UP`).  In the
moment "steady" they step by prepared plans over arrangements when the kill comes: `explain` says so before.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from strandline.cli import main
from strandline.cli.demo import data, proof, story
from strandline.cli.terminal import opening
from strandline.cli.terminal.opening import Opener
from strandline.controller.location.catalog import CatalogStore
from strandline.controller.location.items import Source
from strandline.persist.client import PersistClient
from strandline.persist.handles.register import Register
from strandline.sources.readers.files.reader import PARTITION
from strandline.sources.readers.files.sequence import FileSequence
from strandline.sources.remap import RemapShard
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus

SEED = 20130101
TICK_MS = 100
START_S_MAX = 240.0
MOMENTS = {"steady": 2.5, "starting": 5.0, "first step": 5.0, "later": 2.5}
"""When a kill comes: within so many seconds of small windows, the start, being open, the first tick; each as often.

A first step, in a JVM that is cold, takes about as long.
"""
WINDOWS, WINDOWS_MAX = 3, 30
"""So many small windows come before a kill is steady; on a busy machine more: a tick may end before it sees one."""
LOOKING_UP = {
    "lately": (
        """SELECT tailnum, time_hour, flight, origin, dest FROM flights WHERE tailnum IS NOT NULL
        QUALIFY row_number() OVER (PARTITION BY tailnum ORDER BY time_hour DESC, flight, origin, dest) = 1""",
        ("tailnum",),
    ),
    "extremes": (
        """SELECT dest, max(arr_delay) AS worst, min(dep_time) AS earliest, count(DISTINCT tailnum) AS planes
        FROM flights GROUP BY dest""",
        ("dest",),
    ),
    "fleet": (
        """SELECT p.tailnum, p.model, count(f.flight) AS flights, max(f.time_hour) AS last
        FROM planes p LEFT JOIN flights f ON p.tailnum = f.tailnum GROUP BY p.tailnum, p.model""",
        ("tailnum", "model"),
    ),
}
"""Views by a key, by aggregating groups again, and by a join whose other side is looked up; and their keys."""


class Town:
    """The demo's project, its files arriving, and the process that runs it."""

    def __init__(self, root: Path, spark) -> None:
        self.root, self.spark = root, spark
        self.data = data.load()
        self.days = iter(sorted(self.data.flights.days))
        data.write_project(root)
        self.logs: list[Path] = []

    def arrive(self) -> None:
        """Let the next day's files appear."""
        month, day = next(self.days)
        for source, lines in (("flights", self.data.flights), ("weather", self.data.weather)):
            name = f"{data.YEAR}-{month:02}-{day:02}.csv"
            story.arrive(self.root / data.INCOMING / source / name, lines.file(lines.of((month, day))))

    def prepare(self) -> None:
        """Create everything, fill the table, and let the first day in; in this process, so that it costs no JVM."""
        incoming = self.root / data.INCOMING
        story.arrive(incoming / "airports" / "airports.csv", self.data.airports)
        story.arrive(incoming / "planes" / "planes.csv", self.data.planes)
        self.arrive()
        assert main(["run", "--once", "--project", str(self.root)], spark=self.spark) == 0
        rows = ", ".join(f"('{carrier}', '{name}')" for carrier, name in self.data.airlines.items())
        script = self.root / "airlines.sql"
        script.write_text(f"INSERT INTO airlines VALUES {rows};")
        assert main(["sql", "-f", str(script), "--project", str(self.root)], spark=self.spark) == 0

    def start(self) -> subprocess.Popen[bytes]:
        """Start the next incarnation."""
        self.logs.append(self.root / f"run-{len(self.logs)}.jsonl")
        command = [sys.executable, "-m", "strandline", "run", "--json", "--project", str(self.root)]
        with self.logs[-1].open("wb") as log, self.logs[-1].with_suffix(".err").open("wb") as err:
            return subprocess.Popen(
                [*command, "--tick-ms", str(TICK_MS)], stdout=log, stderr=err, start_new_session=True
            )

    def steady(self, process: subprocess.Popen[bytes]) -> int:
        """Let small windows come; return how many stages then step by prepared plans, or look up in arrangements."""
        for _ in range(WINDOWS):
            self._window(process)
        used = self._used()
        for _ in range(WINDOWS, WINDOWS_MAX):
            if used < len(data.VIEWS):
                self._window(process)
                used = self._used()
        self.arrive()
        return used

    def _window(self, process: subprocess.Popen[bytes]) -> None:
        known = len(self.ticks())
        self.arrive()
        wait_until(process, self.logs[-1], lambda: len(self.ticks()) > known)

    def _used(self) -> int:
        """Return how many stages stepped last by a prepared plan, or looked up in an arrangement."""
        opener = Opener(self.spark)
        with opener.reading(opener.project(self.root), sys.stderr.write) as env:
            stages = {stage["name"]: stage["last_step"] for view in data.VIEWS for stage in env.explain(view).stages}
        steps = [step for step in stages.values() if step is not None]
        return sum(step["plan"] == "prepared" or "probe" in step["access"].values() for step in steps)

    def ticks(self, number: int = -1) -> list[dict]:
        """Return what an incarnation logged of its ticks (a kill may have cut the last line off)."""
        lines = self.logs[number].read_text().split("\n")[:-1]
        return [document for line in lines if "sources" in (document := json.loads(line))]

    def in_flight(self) -> dict[str, int]:
        """Return, by source, how many records are bound to a time and not durable."""
        return asyncio.run(self._in_flight())

    async def _in_flight(self) -> dict[str, int]:
        clock, ids = SystemClock(), SystemIds()
        consensus = SQLiteConsensus(self.root / "data" / "consensus.db")
        client = PersistClient(clock, ids, FileBlob(self.root / "data" / "blob"), consensus)
        catalog = await CatalogStore(Register("catalog", clock, ids, consensus)).read()
        found = {}
        for item in catalog.of_kind(Source):
            reader = await client.reader(item.shard, item.schema, item.name)
            remap = await RemapShard.open(await client.records(item.remap, catalog.epoch), catalog.epoch)
            files = await FileSequence.open(await client.records(item.progress, catalog.epoch), catalog.epoch)
            upper = reader.state.upper
            slices = remap.remap.slices(upper, remap.remap.upper) if upper < remap.remap.upper else ()
            numbers = [n for each in slices for n in range(each.lower[PARTITION], each.upper[PARTITION])]
            found[item.name] = sum(self._records(item.name, files[number].name) for number in numbers)
        consensus.close()
        return found

    def _records(self, source: str, file: str) -> int:
        return (self.root / data.INCOMING / source / file).read_text().count("\n") - 1


def kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and the JVM that it started, without warning."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_and_kill(town: Town, moment: str, random: Random) -> int:
    """Run one incarnation up to a random moment; files arrive before it starts, and while it runs.

    Return how many stages were seen to use what is prepared or arranged.
    """
    used = 0
    town.arrive()
    process = town.start()
    log = town.logs[-1]
    try:
        if moment == "first step":
            err = log.with_suffix(".err")
            wait_until(process, err, lambda: err.stat().st_size > 0)
        if moment in ("later", "steady"):
            wait_until(process, log, lambda: len(town.ticks()) > 0)
        if moment == "later":
            town.arrive()
        if moment == "steady":
            used = town.steady(process)
        with pytest.raises(subprocess.TimeoutExpired):  # it runs until it is killed
            process.wait(random.uniform(0, MOMENTS[moment]))
    finally:
        kill(process)
    return used


def wait_until(process: subprocess.Popen[bytes], log: Path, done: Callable[[], bool]) -> None:
    """Return once the process, which writes to ``log``, has ``done`` something."""
    for _ in range(int(START_S_MAX / 0.1)):
        if done():
            return
        try:
            status = process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"it ended with status {status}: {log.with_suffix('.err').read_text()}")
    pytest.fail(f"too little was written to {log}")


def check_rereading(town: Town, left: dict[str, int]) -> None:
    """What the incarnation read again is what its predecessor had left in flight, neither more nor less.

    A source that has a problem may be about to: on a busy machine a tick does not wait for it.
    """
    for tick in town.ticks():
        again = {name: counts["reread_records"] for name, counts in tick["sources"].items()}
        wanted = {name: min(n, again[name]) if name in tick["problems"] else n for name, n in left.items()}
        assert again == wanted, f"incarnation {len(town.logs)}: read again {again}, in flight were {left}"


@pytest.fixture(autouse=True)
def looking_up(monkeypatch):
    """Add views to the demo's; a question waits for its answer, however late a busy machine gives it."""
    monkeypatch.setattr(opening, "ANSWER_S", START_S_MAX)
    for name, (query, key) in LOOKING_UP.items():
        monkeypatch.setitem(data.VIEWS, name, f"\n{query}")
        monkeypatch.setitem(data.KEYS, name, key)


def survive(kills: int, root: Path, spark, record) -> None:
    """Kill ``kills`` times, then let it finish, and compare everything."""
    random = Random(SEED + kills)
    town = Town(root, spark)
    town.prepare()
    reread, steady, used = 0, 0, 0
    moments = list(MOMENTS)
    for n in range(kills):
        left = town.in_flight()
        moment = moments[n % len(moments)]
        found = run_and_kill(town, moment, random)
        if moment == "steady":
            steady, used = steady + 1, used + found
            assert found >= len(data.VIEWS), f"incarnation {len(town.logs)}: {found} stages are prepared or arranged"
        check_rereading(town, left)
        reread += sum(left.values()) if town.ticks() else 0
    assert main(["run", "--once", "--project", str(root)], spark=spark) == 0

    views, tables = proof.prove(spark.newSession(), root, town.data.airlines)
    differences = sum(each.count for each in (*views, *tables))
    record("FIGURE", f"differences_after_{kills}_kills {differences} 0 {'miss' if differences else 'pass'}")
    record("records_read_again", reread)
    record("FIGURE", f"stages_prepared_or_arranged_at_{steady}_kills {used} - info")
    assert not differences, (views, tables)


@pytest.mark.kill
def test_a_kill_in_steady_state_changes_nothing(tmp_path, spark, record_property):
    """A crash at a bad moment would lose rows, count them twice, or leave an endpoint that is not its view."""
    survive(1, tmp_path, spark, record_property)


@pytest.mark.slow
def test_twenty_five_kills_change_nothing(tmp_path, spark, record_property):
    """A crash at a rare bad moment would lose rows, count them twice, or leave an endpoint that is not its view."""
    survive(25, tmp_path, spark, record_property)
