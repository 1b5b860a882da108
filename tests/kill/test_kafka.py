"""`strandline run` ingests a topic of eight partitions, is killed at random moments, and restarts without an operator.

The brokers count the messages, the shards say what is durable, and `run --json` what each incarnation read again:

- every message is in the collection, once;
- read again are exactly the messages that were bound and not durable, those beyond the resumption frontier;
- the consumer group's offsets are never beyond what is durable, and trail it by at most two of its intervals;
- what lies before them may be deleted; if more is deleted, the source says so and skips nothing.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

import kafka_server as kafka
from kafka_server import KafkaServer
from strandline.cli import main
from strandline.cli.terminal.opening import Opener
from strandline.controller.location.catalog import CatalogStore, Source
from strandline.frontier import Offsets
from strandline.persist.client import PersistClient
from strandline.persist.handles.register import Register
from strandline.sources.remap import RemapShard
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus

PARTITIONS = 8
TICK_MS = 100
INTERVAL_TICKS = 10
"""So many ticks are at least one interval of the commits to the group, which is a second."""
START_S_MAX = 180.0
SMALL_MAX = 500
"""So few messages a step are fetched by the process itself; a burst has more, so that Spark reads it."""
SEED = 20130101
topics = count()


class Town:
    """A topic, a project that reads it, and the process that runs it."""

    def __init__(self, root: Path, server: KafkaServer, messages: int) -> None:
        self.root, self.server, self.messages = root, server, messages
        self.topic = f"kill-{next(topics)}"
        self.group = f"group-of-{self.topic}"
        self.produced = 0
        self.logs: list[Path] = []
        self.random = Random(SEED + messages)
        self._producer: Producer = server.producer()

    def prepare(self, spark) -> None:
        """Make the topic and the project."""
        self.server.make_topic(self.topic, PARTITIONS)
        connector = kafka.jars("kafka-connector")
        (self.root / "strandline.yml").write_text(
            f"location: data\nspark: {{spark.master: 'local[2]', spark.driver.memory: 1g}}\nkafka_jars: {connector}\n"
        )
        (self.root / "sources").mkdir()
        (self.root / "sources" / "events.sql").write_text(
            f"""CREATE SOURCE events (id BIGINT, part INT, at BIGINT) USING kafka OPTIONS (
            servers '{self.server.servers}', topic '{self.topic}', group '{self.group}', format 'json',
            include_partition 'part', include_offset 'at', small_messages_max '{SMALL_MAX}');"""
        )
        assert main(["run", "--once", "--project", str(self.root)], spark=spark) == 0

    def produce(self, messages: int) -> None:
        """Append messages to all partitions; each has a number of its own."""
        for number in range(self.produced, self.produced + messages):
            self._producer.produce(self.topic, json.dumps({"id": number}), partition=number % PARTITIONS)
            if number % 1_000 == 0:
                self._producer.poll(0)
        self.produced += messages
        assert self._producer.flush(180) == 0

    def start(self) -> subprocess.Popen[bytes]:
        """Start the next incarnation."""
        self.logs.append(self.root / f"run-{len(self.logs)}.jsonl")
        command = [sys.executable, "-m", "strandline", "run", "--json", "--project", str(self.root)]
        with self.logs[-1].open("wb") as log, self.logs[-1].with_suffix(".err").open("wb") as err:
            return subprocess.Popen(
                [*command, "--tick-ms", str(TICK_MS)], stdout=log, stderr=err, start_new_session=True
            )

    def ticks(self) -> list[dict]:
        """Return what the last incarnation logged of its ticks (a kill may have cut the last line off)."""
        lines = self.logs[-1].read_text().split("\n")[:-1]
        return [document for line in lines if "sources" in (document := json.loads(line))]

    def problems(self) -> list[str]:
        """Return what the last incarnation complained of."""
        return [what for tick in self.ticks() for what in (*tick["problems"].values(), *tick.get("stalled", ()))]

    def wait(self, process: subprocess.Popen[bytes], done: Callable[[], bool]) -> None:
        """Return once something is ``done``."""
        for _ in range(int(START_S_MAX / 0.1)):
            if done():
                return
            try:
                status = process.wait(0.1)
            except subprocess.TimeoutExpired:
                continue
            pytest.fail(f"it ended with status {status}: {self.logs[-1].with_suffix('.err').read_text()}")
        pytest.fail(f"too little happened: {self.logs[-1].with_suffix('.err').read_text()}")

    def wait_ticks(self, process: subprocess.Popen[bytes], ticks: int) -> None:
        """Return once so many more ticks have ended."""
        known = len(self.ticks())
        self.wait(process, lambda: len(self.ticks()) >= known + ticks)

    def durable(self) -> tuple[Offsets, Offsets]:
        """Return up to where data are durable, and up to where they are bound."""
        return asyncio.run(self._durable())

    async def _durable(self) -> tuple[Offsets, Offsets]:
        clock, ids = SystemClock(), SystemIds()
        consensus = SQLiteConsensus(self.root / "data" / "consensus.db")
        client = PersistClient(clock, ids, FileBlob(self.root / "data" / "blob"), consensus)
        catalog = await CatalogStore(Register("catalog", clock, ids, consensus)).read()
        (source,) = catalog.of_kind(Source)
        remap = (await RemapShard.open(await client.records(source.remap, catalog.epoch), catalog.epoch)).remap
        data = await client.reader(source.shard, source.schema, source.name)  # after it, so it is not forgotten there
        assert data is not None
        consensus.close()
        return remap.resume([data.state.upper, remap.upper]), remap.frontier

    def committed(self) -> Offsets:
        """Return the consumer group's offsets."""
        consumer = Consumer({"bootstrap.servers": self.server.servers, "group.id": self.group})
        found = consumer.committed([TopicPartition(self.topic, p) for p in range(PARTITIONS)], timeout=120)
        consumer.close()
        return Offsets({str(each.partition): max(each.offset, 0) for each in found})

    def ends(self) -> Offsets:
        """Return how far the topic goes."""
        consumer = Consumer({"bootstrap.servers": self.server.servers, "group.id": self.group})
        found = {
            p: consumer.get_watermark_offsets(TopicPartition(self.topic, p), timeout=120) for p in range(PARTITIONS)
        }
        consumer.close()
        return Offsets({str(p): end for p, (_, end) in found.items()})

    def check_committed(self, process: subprocess.Popen[bytes]) -> None:
        """What is durable now is committed two intervals later; what is committed is durable."""
        then, _ = self.durable()
        self.wait_ticks(process, 2 * INTERVAL_TICKS)
        self.wait(process, lambda: then <= self.committed())  # a broker that is held up answers at a later interval
        assert self.committed() <= self.durable()[0]

    def rows(self, spark) -> Counter[tuple[int, int, int]]:
        """Return the collection."""
        opener = Opener(spark)
        with opener.reading(opener.project(self.root), sys.stderr.write) as env:
            return Counter(tuple(row) for row in env.query("SELECT id, part, at FROM events").collect())


def kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and the JVM that it started, without warning."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run_and_kill(town: Town, messages: int) -> None:
    """Let messages come before an incarnation starts and while it runs, and kill it at a random moment."""
    before = town.random.randrange(messages)
    town.produce(before)
    process = town.start()
    try:
        if town.random.random() < 0.75:
            town.wait(process, lambda: len(town.ticks()) > 0)
        left = messages - before
        while left:
            some = min(left, town.random.randrange(1, 3 * SMALL_MAX))
            town.produce(some)
            left -= some
        if town.ticks() and town.random.random() < 0.5:
            town.check_committed(process)
            town.produce(SMALL_MAX)
        with pytest.raises(subprocess.TimeoutExpired):  # it runs until it is killed
            process.wait(town.random.uniform(0, 2))
    finally:
        kill(process)


def survive(kills: int, messages: int, root: Path, server: KafkaServer, spark, record) -> None:
    """Kill ``kills`` times, let it finish, delete what may be deleted, and then what may not."""
    town = Town(root, server, messages)
    town.prepare(spark)
    again = 0
    for _ in range(kills):
        durable, bound = town.durable()
        run_and_kill(town, messages // kills)
        assert town.committed() <= town.durable()[0], "R4"
        for tick in town.ticks():
            found, wanted = tick["sources"]["events"]["reread_records"], bound.messages_since(durable)
            assert found == wanted or (found < wanted and "events" in tick["problems"])  # it may be about to
        again += bound.messages_since(durable) if town.ticks() else 0
    durable, bound = town.durable()
    process = town.start()
    try:
        town.wait(process, lambda: town.durable()[0] == town.ends())
        town.check_committed(process)
        assert town.committed() == town.ends()
        town.wait(process, lambda: len(town.ticks()) > 0)
        assert town.ticks()[-1]["sources"]["events"]["reread_records"] == bound.messages_since(durable)
    finally:
        kill(process)
    again += bound.messages_since(durable)
    expected = Counter((n, n % PARTITIONS, n // PARTITIONS) for n in range(town.produced))
    wrong = sum(((found := town.rows(spark)) - expected).values()) + sum((expected - found).values())
    record("FIGURE", f"kafka_rows_wrong_after_{kills}_kills {wrong} 0 {'miss' if wrong else 'pass'}")
    record("FIGURE", f"kafka_messages_read_again_after_{kills}_kills {again} - info")
    assert not wrong
    delete(town, spark, expected)


def delete(town: Town, spark, expected: Counter[tuple[int, int, int]]) -> None:
    """Delete what is committed, and go on; then delete what was not read, and see that the source says so."""
    committed = town.committed()
    town.server.delete_records(town.topic, {int(p): offset for p, offset in committed.entries})
    first = town.produced
    town.produce(PARTITIONS)
    assert main(["run", "--once", "--project", str(town.root)], spark=spark) == 0
    expected = expected + Counter((n, n % PARTITIONS, n // PARTITIONS) for n in range(first, town.produced))
    assert town.rows(spark) == expected
    durable = town.durable()[0]
    town.produce(2 * PARTITIONS)
    town.server.delete_records(town.topic, {3: durable["3"] + 1})
    process = town.start()
    try:
        gone = f"partition 3: messages from offset {durable['3']} on"
        town.wait(process, lambda: any(gone in problem for problem in town.problems()))
        assert any(f"from {durable['3'] + 1} on only" in problem for problem in town.problems())
    finally:
        kill(process)
    assert town.rows(spark) == expected


@pytest.mark.kill
@pytest.mark.server
@pytest.mark.time_limit(600)
def test_a_kill_neither_loses_nor_doubles_a_message(
    tmp_path, spark, kafka_server, kafka_connector, record_property
) -> None:
    """Damage: after a crash rows are missing or there twice, or Kafka has deleted what was not durable."""
    survive(1, 8_000, tmp_path, kafka_server, spark, record_property)


@pytest.mark.slow
@pytest.mark.server
@pytest.mark.time_limit(7200)
def test_twenty_kills_over_a_million_messages(tmp_path, spark, kafka_server, kafka_connector, record_property) -> None:
    """Damage: at a rare bad moment rows are lost or doubled."""
    survive(20, 1_000_000, tmp_path, kafka_server, spark, record_property)
