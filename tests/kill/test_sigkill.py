"""`strandline run` is killed with SIGKILL at random moments, again and again, and started again by nobody's hand.

Every incarnation logs what it did (``run --json``).  Before each start the shards say what the one before left in
flight: files that are bound to a time and not durable.  Exactly those records are read again, no others; and at the
end the views are what plain Spark says, and DuckDB holds the views.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from strandline.cli import main
from strandline.cli.demo import data, definitions, proof, story
from strandline.environment.catalog import CatalogStore, Source
from strandline.persist.client import PersistClient
from strandline.persist.register import Register
from strandline.sources.file_sequence import FileSequence
from strandline.sources.files import PARTITION
from strandline.sources.remap import RemapShard
from strandline.store.file import FileBlob
from strandline.store.sqlite import SQLiteConsensus
from strandline.store.system import SystemClock, SystemIds

SEED = 20130101
MONTH = 12
TICK_MS = 100
START_S_MAX = 120.0
RUN_S_MAX = 4.0
"""A kill comes so long after the first tick at the latest; a step takes about as long."""
EARLY_SHARE = 0.2
"""So many kills come before the first tick, while the process is starting."""


class Town:
    """The demo's project, its files arriving, and the process that runs it."""

    def __init__(self, root: Path, spark) -> None:
        self.root, self.spark = root, spark
        self.data = data.load()
        self.day = 0
        definitions.write_project(root)
        with (root / "strandline.yml").open("a") as settings:
            # A JVM that lives for seconds is not worth compiling well for.
            settings.write('  spark.driver.extraJavaOptions: "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"\n')
        self.logs: list[Path] = []

    def arrive(self) -> None:
        """Let the next day's files appear."""
        self.day += 1
        for source, lines in (("flights", self.data.flights), ("weather", self.data.weather)):
            name = f"{data.YEAR}-{MONTH}-{self.day:02}.csv"
            story.arrive(self.root / definitions.INCOMING / source / name, lines.file(lines.of((MONTH, self.day))))

    def prepare(self) -> None:
        """Create everything, fill the table, and let the first day in; in this process, so that it costs no JVM."""
        incoming = self.root / definitions.INCOMING
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

    def ticks(self, number: int = -1) -> list[dict]:
        """Return what an incarnation logged: a document a tick (a kill may have cut the last one off)."""
        lines = self.logs[number].read_text().split("\n")[:-1]
        return [json.loads(line) for line in lines]

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
        return (self.root / definitions.INCOMING / source / file).read_text().count("\n") - 1


def kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and the JVM that it started, without warning."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_and_kill(town: Town, random: Random) -> None:
    """Run one incarnation up to a random moment; files arrive before, and while it runs."""
    town.arrive()
    process = town.start()
    try:
        early = random.random() < EARLY_SHARE
        if not early:
            wait_for_tick(town, process)
            if town.day < 30:
                town.arrive()
        with pytest.raises(subprocess.TimeoutExpired):  # it runs until it is killed
            process.wait(random.uniform(0, RUN_S_MAX))
    finally:
        kill(process)


def wait_for_tick(town: Town, process: subprocess.Popen[bytes]) -> None:
    """Return once the incarnation has logged a tick."""
    for _ in range(int(START_S_MAX / 0.1)):
        if town.logs[-1].stat().st_size:
            return
        try:
            status = process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
        pytest.fail(f"it ended with status {status}: {town.logs[-1].with_suffix('.err').read_text()}")
    pytest.fail("it did not tick")


def check_rereading(town: Town, left: dict[str, int]) -> None:
    """What the incarnation read again is what its predecessor had left in flight, neither more nor less."""
    for tick in town.ticks():
        again = {name: counts["reread_records"] for name, counts in tick["sources"].items()}
        assert again == left, f"incarnation {len(town.logs)}: read again {again}, in flight were {left}"


def survive(kills: int, root: Path, spark) -> None:
    """Kill ``kills`` times, then let it finish, and compare everything."""
    random = Random(SEED + kills)
    town = Town(root, spark)
    town.prepare()
    for _ in range(kills):
        left = town.in_flight()
        run_and_kill(town, random)
        check_rereading(town, left)
    assert main(["run", "--once", "--project", str(root)], spark=spark) == 0

    views, tables = proof.prove(spark.newSession(), root, town.data.airlines)
    assert [each.count for each in (*views, *tables)] == [0] * 6, (views, tables)
    assert any(town.ticks(number) for number in range(kills)), "some incarnation got to work"


@pytest.mark.kill
def test_three_kills_change_nothing(tmp_path, spark):
    """A crash at a bad moment would lose rows, count them twice, or leave an endpoint that is not its view."""
    survive(3, tmp_path, spark)


@pytest.mark.slow
def test_twenty_five_kills_change_nothing(tmp_path, spark):
    """A crash at a rare bad moment would lose rows, count them twice, or leave an endpoint that is not its view."""
    survive(25, tmp_path, spark)
