"""Planted mistakes in the Kafka reader: random histories of a topic, held against its messages, must notice each."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest

from strandline.frontier import meet
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import contents
from strandline.sources import spec
from strandline.sources.ingest import PERIOD_MS, Ingestion
from strandline.sources.readers.kafka import reader as reader_module
from strandline.sources.readers.kafka.broker import Beginnings, Span
from strandline.sources.readers.kafka.options import KafkaOptions
from strandline.sources.readers.kafka.reader import KafkaReader, Ranges
from strandline.sources.reclock import Binding
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.upstreams.memory_broker import MemoryBroker, MemoryTopic
from strandline.testing.upstreams.number_messages import SCHEMA, NumberDecoder

Plant = Callable[[pytest.MonkeyPatch], None]
HISTORIES: Final = 60
OPTIONS: Final = understood("source 's'", KafkaOptions, {"servers": "k:9092", "topic": "t", "format": "text"})


class History:
    """A topic with what was ever written to it, a location, and the incarnations of one source."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.topic, self.clock = MemoryTopic(), HandClock()
        self.engine = ListEngine(MemoryBlob())
        self.client = PersistClient(self.clock, CountingIds(), MemoryBlob(), MemoryConsensus(), self.engine)
        self.said: dict[tuple[str, int], int] = {}
        self.bound: list[Binding] = []
        self.time = self.number = 0

    async def open(self) -> None:
        """Open the source as a fresh process would."""
        beginnings = await Beginnings.open(await self.client.records("progress", 1), 1)
        reader = KafkaReader(
            self.clock,
            MemoryBroker(self.topic),
            beginnings,
            None,
            self.engine,
            NumberDecoder(),
            SCHEMA,
            OPTIONS,
            OPTIONS.decoding,
            name="s",
        )
        self.remap = await RemapShard.open(await self.client.records("remap", 1), 1)
        self.data = await self.client.writer("data", 1, schema=SCHEMA.ddl)
        output = OutputShard("", SCHEMA, self.data)
        self.ingestion = await Ingestion.open(self.clock, self.engine, reader, self.remap, [output], name="s")

    def begin(self) -> None:
        """Let some messages be gone before the source sees the topic."""
        for partition in range(self.chance.randrange(3)):
            self.produce(partition)
            self.produce(partition)
            self.topic.forget(partition, 1)
            del self.said[str(partition), 0]

    def produce(self, partition: int, *, successor: bool = False) -> None:
        """Append a message; what a successor of the topic says is none of the source's."""
        self.number += 1
        self.topic.produce(partition, str(self.number).encode())
        if not successor:
            self.said[str(partition), self.topic.logs[partition].stable - 1] = self.number

    async def move(self) -> None:
        """Do one thing."""
        match self.chance.randrange(9):
            case 0 | 1 | 2:
                self.produce(self.chance.randrange(3))
            case 3:
                self.topic.skip(self.chance.randrange(3))
            case 4 if self.topic.committed:
                partition, offset = self.chance.choice(sorted(self.topic.committed.items()))
                self.topic.forget(partition, offset)
            case 5:
                await self.ingestion.catch_up()
            case 6:
                await self.open()
            case _:
                await self.tick()

    async def tick(self) -> None:
        """Bind a time."""
        self.clock.now += PERIOD_MS
        self.time += 1
        await self.ingestion.tick(self.time)
        newest = self.remap.remap.frontier
        if not self.bound or self.bound[-1].offsets != newest:
            self.bound.append(Binding(self.time, newest))

    async def accident(self) -> None:
        """Let the cluster lose a message that was announced, or the topic be made anew; others come in its place."""
        partitions = sorted(p for p, log in self.topic.logs.items() if log.low < log.stable)
        if not partitions:
            return
        await self.tick()
        if self.chance.random() < 0.5:
            ends = {partition: log.stable for partition, log in self.topic.logs.items()}
            self.topic.make_anew()
        else:
            partition = self.chance.choice(partitions)
            ends = {partition: self.topic.logs[partition].stable}
            self.topic.lose(partition, ends[partition] - 1)
            if self.chance.random() < 0.5:
                await self.ingestion.catch_up()
            await self.tick()  # a loss that was filled before a tick sees it is none to see
        for partition, end in ends.items():
            while self.topic.logs[partition].stable < end + 2:
                self.produce(partition, successor=True)

    async def wrong(self) -> str:
        """Return what is wrong with what is durable; empty if nothing is."""
        upper = self.data.state.upper
        times = {each.time: each.offsets for each in self.bound if upper.at is not None and each.time < upper.at}
        placed = [(p, o, time) for time in times for p, o in spec.target(times, time, self.said)]
        wanted = Counter((self.said[p, o], p, o, time) for p, o, time in placed)
        rows = await self.engine.read(contents(self.data.state, SCHEMA, 0, upper.at or 0, advance=0))
        found: Counter[Any] = Counter()
        for row in listed(rows).rows:
            found[row["n"], row["part"], row["at"], row["__time"]] += row["__diff"]
        if found != wanted:
            return f"laws R2, R3: {found - wanted} too many, {wanted - found} are missing"
        durable = self.remap.remap.resume([meet([upper, self.remap.remap.upper])])
        for partition, offset in self.topic.committed.items():
            if offset > durable[str(partition)]:
                return f"law R4: {offset} was committed of partition {partition}, and {durable.entries} is durable"
        return ""


def noticed(seed: int) -> str:
    """Play a history; return what was noticed.

    In half of the histories few messages are too many bytes to be kept in memory.
    """

    async def body() -> str:
        history = History(seed)
        await history.open()
        history.begin()
        for _ in range(history.chance.randint(5, 40)):
            await history.move()
            if wrong := await history.wrong():
                return wrong
        if seed % 2:
            await history.accident()
        for _ in range(3):
            await history.tick()
            await history.ingestion.catch_up()
            if wrong := await history.wrong():
                return wrong
        return "" if seed % 2 else history.ingestion.status.stalled

    with patch.object(reader_module, "HELD_BYTES_MAX", 300 if seed % 4 < 2 else reader_module.HELD_BYTES_MAX):
        return asyncio.run(body())


def _begins_at_its_end(patch: pytest.MonkeyPatch) -> None:
    right = Beginnings.register

    async def register(self: Any, topic: str, begins: Mapping[int, int]) -> None:
        late = {p: at + 1 if self.topic else at for p, at in begins.items()}
        await right(self, topic, late)

    patch.setattr(Beginnings, "register", register)


def _begins_at_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Beginnings, "__getitem__", lambda *_: 0)


def _looks_at_no_id(patch: pytest.MonkeyPatch) -> None:
    right = MemoryBroker.look

    async def look(self: Any) -> Any:
        found = await right(self)
        return found and type(found)("topic-1", found.partitions)

    patch.setattr(MemoryBroker, "look", look)


def _sees_no_loss(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(KafkaReader, "_refuse_missing", lambda *_: None)


def _commits_what_it_saw(patch: pytest.MonkeyPatch) -> None:
    right = KafkaReader.commit

    async def commit(self: Any, resume: Any) -> None:
        await right(self, resume.join(self._reached))

    patch.setattr(KafkaReader, "commit", commit)


def _time_of_the_range_before(patch: pytest.MonkeyPatch) -> None:
    right = Ranges._time_of
    patch.setattr(Ranges, "_time_of", lambda self, p, offset: right(self, p, max(offset - 1, self.spans[p].lower)))


def _last_message_left_out(patch: pytest.MonkeyPatch) -> None:
    right = MemoryBroker.fetch

    def fetch(self: Any, spans: Mapping[int, Span]) -> Any:
        return right(self, {p: Span(span.lower, max(span.lower, span.upper - 1)) for p, span in spans.items()})

    patch.setattr(MemoryBroker, "fetch", fetch)


def _what_was_fetched_ahead_counts(patch: pytest.MonkeyPatch) -> None:
    right = Ranges._time_of

    def time_of(self: Any, partition: int, offset: int) -> int | None:
        return right(self, partition, min(offset, self.spans[partition].upper - 1))

    fetch = MemoryBroker.fetch

    def ahead(self: Any, spans: Mapping[int, Span]) -> Any:
        return fetch(self, {p: Span(span.lower, self.topic.logs[p].stable) for p, span in spans.items()})

    patch.setattr(Ranges, "_time_of", time_of)
    patch.setattr(MemoryBroker, "fetch", ahead)


def _reads_what_fits(patch: pytest.MonkeyPatch) -> None:
    async def held(self: Any, wanted: Ranges) -> Any:
        tables, size = [wanted.table()], 0
        async for fetched in self._fetched(wanted):
            size += fetched.nbytes
            if size <= reader_module.HELD_BYTES_MAX:
                tables.append(fetched)
        return pa.concat_tables(tables), frozenset()

    patch.setattr(KafkaReader, "_held", held)


def _reads_the_rest(patch: pytest.MonkeyPatch) -> None:
    right = KafkaReader._by_portions

    async def by_portions(self: Any, wanted: Ranges, *given: Any, **more: Any) -> Any:
        fetched, size = self._fetched, 0

        async def rest(wanted: Ranges) -> Any:
            nonlocal size
            async for each in fetched(wanted):
                size += each.nbytes
                if size > reader_module.HELD_BYTES_MAX:
                    yield each

        self._fetched = rest
        try:
            return await right(self, wanted, *given, **more)
        finally:
            del self._fetched

    patch.setattr(KafkaReader, "_by_portions", by_portions)


DEFECTS: Final[dict[str, Plant]] = {
    "a partition that comes later begins behind its first message": _begins_at_its_end,
    "a partition begins at offset 0, though that was deleted": _begins_at_nothing,
    "a topic made anew is taken for the one before": _looks_at_no_id,
    "what the cluster lost is read from what has come in its place": _sees_no_loss,
    "what was seen is committed, durable or not": _commits_what_it_saw,
    "the first message of a binding gets the time of the one before": _time_of_the_range_before,
    "the last message of a range is left out": _last_message_left_out,
    "what the client has fetched ahead is of the range": _what_was_fetched_ahead_counts,
    "of a step of many bytes that alone is read which is kept in memory": _reads_what_fits,
    "of a step of many bytes that alone is read which is not kept in memory": _reads_the_rest,
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_planted_defect_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the laws of a source pass though its reader breaks them."""
    DEFECTS[name](monkeypatch)
    assert any(map(noticed, range(HISTORIES)))


def test_without_a_defect_nothing_is_noticed() -> None:
    """Laws R2, R3, R4.  Damage: a source of a topic lacks a message, has one twice, or one of another topic."""
    assert [(seed, found) for seed in range(HISTORIES) if (found := noticed(seed))] == []
