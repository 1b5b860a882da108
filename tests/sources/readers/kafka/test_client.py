"""The reader over a real broker: the contract, and what only a cluster can do.

Messages are numbers, decoded without Spark; what Spark makes of messages is in `test_views.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, TopicPartition

from kafka_server import PASSWORD, USER, KafkaServer
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.readers.kafka.broker import Beginnings, Ends, Message, OutOfRange, Span
from strandline.sources.readers.kafka.client import CALL_SECONDS_MAX, KafkaBroker
from strandline.sources.readers.kafka.options import KafkaOptions
from strandline.sources.readers.kafka.reader import KafkaReader
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import SystemClock
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.contracts.reader_contract import SharedReaderContract
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.upstreams.number_messages import SCHEMA, NumberDecoder

pytestmark = pytest.mark.server
T = TypeVar("T")
NOW_MS = 1_700_000_000_000
BACK_SECONDS_MAX = 120
names = count()


class Place:
    """A topic of the broker, a location, and readers of them."""

    table = ""

    def __init__(self, server: KafkaServer, partitions: int = 2, **config: str) -> None:
        self.server = server
        self.topic = f"t-{next(names)}"
        self.config = config
        server.make_topic(self.topic, partitions, **config)
        self.engine = ListEngine(MemoryBlob())
        self.decoder = NumberDecoder()
        self._client = PersistClient(HandClock(NOW_MS), CountingIds(), MemoryBlob(), MemoryConsensus(), self.engine)
        self._numbers = count()
        self._opened: list[KafkaBroker] = []

    @property
    def group(self) -> str:
        """The consumer group."""
        return f"g-{self.topic}"

    def broker(self, **options: str) -> KafkaBroker:
        """Return a client of the topic."""
        given = {"servers": self.server.servers, "topic": self.topic, "format": "text", **options}
        self._opened.append(KafkaBroker(understood("source 's'", KafkaOptions, given), self.group))
        return self._opened[-1]

    async def reader(self) -> KafkaReader:
        """Open a reader as a fresh process would."""
        beginnings = await Beginnings.open(await self._client.records("s-progress", 1), 1)
        given = {"servers": self.server.servers, "topic": self.topic, "format": "text"}
        options = understood("source 's'", KafkaOptions, given)
        return KafkaReader(
            HandClock(),
            self.broker(),
            beginnings,
            None,
            self.engine,
            self.decoder,
            SCHEMA,
            options,
            options.decoding,
            name="s",
        )

    async def produce(self, *, undecodable: bool = False) -> None:
        """Append numbers to two partitions."""
        for partition in (0, 1):
            self.append(partition, *(str(next(self._numbers)) for _ in range(3)))
        if undecodable:
            self.append(1, "no number")

    def append(self, partition: int, *values: str | bytes | None, **others: Any) -> None:
        """Append messages."""
        self.server.produce(self.topic, list(values), partition=partition, **others)

    async def break_promise(self) -> None:
        """Delete what was announced."""
        ends = self.committable().get_watermark_offsets(TopicPartition(self.topic, 0), timeout=120)
        self.server.delete_records(self.topic, {0: ends[1]})

    def committable(self) -> Consumer:
        """Return a consumer of the group."""
        return Consumer({"bootstrap.servers": self.server.servers, "group.id": self.group})

    def committed(self, *partitions: int) -> list[int]:
        """Return the group's offsets."""
        consumer = self.committable()
        asked = [TopicPartition(self.topic, partition) for partition in partitions]
        found = [each.offset for each in consumer.committed(asked, timeout=120)]
        consumer.close()
        return found

    async def close(self) -> None:
        """Close all clients."""
        for broker in self._opened:
            await broker.close()


@pytest.fixture
def make(kafka_server: KafkaServer) -> Callable[..., Place]:
    """Return how to make a place."""
    return lambda **config: Place(kafka_server, **config)


def run(place: Place, body: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a test's coroutine and close its clients."""

    async def whole() -> T:
        try:
            return await body()
        finally:
            await place.close()

    return asyncio.run(whole())


class TestKafkaReader(SharedReaderContract):
    """The contract, over a real broker."""

    place_of_this_test: Place

    @pytest.fixture
    def place(self, kafka_server: KafkaServer) -> Place:
        """An empty topic."""
        self.place_of_this_test = Place(kafka_server)
        return self.place_of_this_test

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run one test's coroutine, and close its clients."""

        async def body() -> T:
            return await coroutine

        return run(self.place_of_this_test, body)


async def fetched(broker: KafkaBroker, spans: dict[int, Span]) -> list[Message]:
    """Return all messages of these spans."""
    return [each async for some in broker.fetch(spans) for each in some]


async def read(reader: KafkaReader, lower: Offsets, upper: Offsets) -> list[int]:
    """Return the numbers between two offsets, in order."""
    rows = await reader.read([Slice(7, lower, upper)], table="", locate=False)
    return sorted(row["n"] for row in listed(rows).rows)


async def once_back(call: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what ``call`` answers as soon as the broker is back.

    It may be away more than once: a broker that returns takes part in an election first, and its answers of before and
    after it do not agree; and a call from before the outage may have no answer yet.
    """
    async with asyncio.timeout(BACK_SECONDS_MAX):
        while True:
            try:
                return await call()
            except Unavailable:
                await SystemClock().sleep(0.5)


async def marked(reader: KafkaReader, frontier: Offsets) -> Offsets:
    """Return how far upstream can be read once that is ``frontier``, or at last.

    A broker answers a COMMIT first, and marks the transaction in its partitions after that.
    """
    for _ in range(1200):
        if (found := await reader.upstream_frontier()) == frontier:
            break
        await SystemClock().sleep(0.1)
    return found


def test_messages_come_whole(make: Callable[..., Place]) -> None:
    """Damage: a column of metadata says something else than the broker."""
    place = make(partitions=1)
    place.append(0, b"v", key=b"k", headers=[("a", b"1"), ("a", None)], timestamp=1_600_000_000_123)
    place.append(0, None, timestamp=1_600_000_000_456)

    async def body() -> None:
        broker = place.broker()
        assert await fetched(broker, {0: Span(0, 2)}) == [
            Message(0, 0, 1_600_000_000_123, b"k", b"v", (("a", b"1"), ("a", None))),
            Message(0, 1, 1_600_000_000_456, None, None),
        ]
        assert await fetched(broker, {0: Span(1, 2)}) == [Message(0, 1, 1_600_000_000_456, None, None)]
        assert await fetched(broker, {0: Span(1, 1)}) == []
        with pytest.raises(OutOfRange):
            await fetched(broker, {0: Span(1, 3)})
        found = await broker.look()
        assert found is not None
        assert found.partitions == {0: Ends(0, 2)}
        await broker.close()
        await broker.close()

    run(place, body)


def test_what_a_transaction_aborted_is_never_read_and_what_is_open_not_yet(make: Callable[..., Place]) -> None:
    """Damage: rows that upstream took back before any reader saw them are in a view."""
    place = make(partitions=1)

    def transaction(producer: Any, *values: str) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(place.topic, value, partition=0)
        assert producer.flush(30) == 0

    async def body() -> None:
        reader = await place.reader()
        producer = place.server.producer(transactional_id=place.topic)
        producer.init_transactions(30)
        place.append(0, "1")
        transaction(producer, "2", "3")
        assert await reader.upstream_frontier() == Offsets({"0": 1})
        producer.abort_transaction(30)
        aborted = await reader.upstream_frontier()
        assert await read(reader, NOTHING_READ, aborted) == [1]
        transaction(producer, "4")
        producer.commit_transaction(30)
        done = Offsets({"0": 6})  # two marks of transactions, and nothing behind the last
        assert await marked(reader, done) == done
        assert await read(reader, NOTHING_READ, done) == [1, 4]
        assert await read(reader, aborted, done) == [4]
        transaction(producer, "5")
        assert await reader.upstream_frontier() == done
        producer.abort_transaction(30)

    run(place, body)


@pytest.mark.time_limit(600)
def test_a_compacted_topic_is_read_to_its_end(make: Callable[..., Place]) -> None:
    """Damage: a source waits for offsets that no longer hold a message."""
    place = make(partitions=1, cleanup_policy="compact", segment_ms="100", min_cleanable_dirty_ratio="0.01")

    async def body() -> None:
        reader = await place.reader()
        for n in range(5):
            place.append(0, str(n), key="k")
        end = await reader.upstream_frontier()
        found = await read(reader, NOTHING_READ, end)
        for _ in range(1200):  # the log is cleaned in its own time, and never its newest segment
            await SystemClock().sleep(0.2)
            place.append(0, "9", key="last")
            found = await read(reader, NOTHING_READ, end)
            if len(found) < 5:
                break
        assert found[-1:] == [4]
        assert len(found) < 5
        later = await read(reader, Offsets({"0": 1}), end)
        kept = await read(reader, NOTHING_READ, end)
        assert later[-1:] == kept[-1:] == [4]
        assert set(kept) <= set(later) <= set(found), "the log may have been cleaned once more, before or after"

    run(place, body)


def test_partitions_that_are_added_are_read(make: Callable[..., Place]) -> None:
    """Damage: a topic that grows loses every second message."""
    place = make(partitions=1)

    async def body() -> None:
        reader = await place.reader()
        place.append(0, "1")
        before = await reader.upstream_frontier()
        place.server.add_partitions(place.topic, 3)
        place.append(2, "2")
        after = await reader.upstream_frontier()
        assert after == Offsets({"0": 1, "2": 1})
        assert await read(reader, before, after) == [2]

    run(place, body)


def test_a_topic_that_was_dropped_or_made_anew_stops_the_source(make: Callable[..., Place]) -> None:
    """Damage: offsets of one topic are taken for those of another."""
    place = make(partitions=1)

    async def body() -> None:
        reader = await place.reader()
        place.append(0, "1")
        whole = await reader.upstream_frontier()
        place.server.drop_topic(place.topic)
        with pytest.raises(SourceError, match=f"topic '{place.topic}' does not exist"):
            await reader.upstream_frontier()
        place.server.make_topic(place.topic)
        place.append(0, "2", "3")
        for each in (reader, await place.reader()):
            with pytest.raises(SourceError, match="this one, made later"):
                await each.upstream_frontier()
            with pytest.raises(SourceError, match="this one, made later"):
                await read(each, NOTHING_READ, whole)

    run(place, body)


def test_records_may_be_deleted_up_to_what_is_committed_and_no_further(make: Callable[..., Place]) -> None:
    """Damage: an operator who deletes by the group's offsets loses rows; or a gap that no reader sees."""
    place = make(partitions=1)

    async def body() -> None:
        first = await place.reader()
        place.append(0, "1", "2", "3")
        durable = await first.upstream_frontier()
        await first.commit(durable)
        assert place.committed(0) == [3]
        place.append(0, "4", "5")
        place.server.delete_records(place.topic, {0: 3})
        second = await place.reader()
        await second.commit(durable)
        end = await second.upstream_frontier()
        assert await read(second, durable, end) == [4, 5]
        place.server.delete_records(place.topic, {0: 4})
        third = await place.reader()
        await third.commit(durable)
        gone = r"partition 0: messages from offset 3 on have to be read, and the brokers have those from 4 on only"
        with pytest.raises(SourceError, match=gone):
            await third.upstream_frontier()
        with pytest.raises(SourceError, match=gone):
            await read(third, durable, end)

    run(place, body)


@pytest.mark.drawn(2)
@pytest.mark.time_limit(600)
@pytest.mark.parametrize("how", ["kill", "freeze"])
def test_a_broker_that_goes_and_comes_back(kafka_broker: KafkaServer, how: str) -> None:
    """Damage: an outage of Kafka ends a source, blocks its instance, or costs rows."""
    place = Place(kafka_broker, 1)

    async def body() -> None:
        reader = await place.reader()
        place.append(0, "1", "2")
        end = await reader.upstream_frontier()
        await reader.commit(end)
        getattr(kafka_broker, how)()
        for call in (reader.upstream_frontier, lambda: read(reader, NOTHING_READ, end)):
            with pytest.raises(Unavailable, match=f"Kafka at {kafka_broker.servers}"):
                await asyncio.wait_for(call(), 10 * CALL_SECONDS_MAX)  # a busy machine is late
        kafka_broker.thaw()
        kafka_broker.revive()
        assert await once_back(reader.upstream_frontier) == end
        assert await once_back(lambda: read(reader, NOTHING_READ, end)) == [1, 2]
        place.append(0, "3")
        after = await once_back(reader.upstream_frontier)
        assert await once_back(lambda: read(reader, end, after)) == [3]
        assert place.committed(0) == [2]

    run(place, body)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("sasl", ["plain", "scram-sha-256"])
def test_a_guarded_cluster_wants_a_password_and_a_certificate_that_is_trusted(
    make: Callable[..., Place], sasl: str
) -> None:
    """Damage: a password is sent in the clear; or a wrong one looks like a broker that is away."""
    place = make(partitions=1)
    place.append(0, "1")
    right = {
        "servers": place.server.guarded,
        "tls": "true",
        "tls_ca": place.server.certificate.read_text(),
        "sasl": sasl,
        "user": USER,
        "password": PASSWORD,
    }

    async def body() -> None:
        assert len(await fetched(place.broker(**right), {0: Span(0, 1)})) == 1
        found = await place.broker(**right).look()
        assert found is not None
        assert found.partitions == {0: Ends(0, 1)}
        await place.broker(**right).commit({0: 1})
        with pytest.raises(Unavailable, match="uthentication") as refused:
            await place.broker(**{**right, "password": "a wrong one"}).look()
        assert "a wrong one" not in str(refused.value)
        with pytest.raises(Unavailable, match="certificate"):
            await place.broker(**{name: text for name, text in right.items() if name != "tls_ca"}).look()

    run(place, body)
