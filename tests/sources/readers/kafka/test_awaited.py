"""A schema that is not in the registry yet is waited for, and garbage does not stop a source."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import registry_server
from registry_server import RegistryServer
from strandline.errors import Unavailable
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.reader import MessageDecoder
from strandline.sources.readers.kafka.awaited import WAIT_MS, WAITS_MS_MAX, AwaitedSchemas
from strandline.sources.readers.kafka.beginnings import Beginnings
from strandline.sources.readers.kafka.options import KafkaOptions
from strandline.sources.readers.kafka.reader import KafkaReader
from strandline.sources.readers.kafka.registry import Registry
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.upstreams.memory_broker import MemoryBroker, MemoryTopic
from strandline.testing.upstreams.number_messages import SCHEMA, NumberDecoder


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A registry that knows nothing yet."""
    with registry_server.running() as running:
        yield running


@pytest.fixture
def clock() -> HandClock:
    """A clock that stands."""
    return HandClock(1_000_000)


async def reader_of(
    registry: RegistryServer, clock: HandClock, topic: MemoryTopic, decoder: MessageDecoder
) -> KafkaReader:
    """Return a reader of a topic whose values are framed Avro."""
    given = {"servers": "k:9092", "topic": "t", "format": "avro", "registry_url": registry.url}
    options = understood("source 's'", KafkaOptions, given)
    client = PersistClient(clock, CountingIds(), MemoryBlob(), MemoryConsensus())
    beginnings = await Beginnings.open(await client.records("s-progress", 1), 1)
    return KafkaReader(
        clock, MemoryBroker(topic), beginnings, Registry(options), decoder, SCHEMA, options, options.decoding
    )


def framed(number: int) -> bytes:
    """Return a message that names a schema."""
    return bytes([0]) + number.to_bytes(4) + b"x"


def test_a_schema_that_comes_within_a_minute_makes_no_error(registry: RegistryServer, clock: HandClock) -> None:
    """Damage: a producer is quicker than the registry's replica, and its first messages are errors for ever."""

    async def body() -> None:
        topic, decoder = MemoryTopic(), NumberDecoder()
        topic.produce(0, framed(1), framed(2))
        reader = await reader_of(registry, clock, topic, decoder)
        whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
        for _ in range(3):
            with pytest.raises(Unavailable, match="does not have the schema 1, the schema 2 yet"):
                await reader.read([whole], table="", locate=False)
            clock.now += WAIT_MS // 3 - 1
        registry.schemas[1] = '"string"'
        with pytest.raises(Unavailable, match="does not have the schema 2 yet"):
            await reader.read([whole], table="", locate=False)
        clock.now += 10
        for locate in (False, True):
            await reader.read([whole], table="", locate=locate)
            assert decoder.formats[-1].schemas == {1: '"string"'}

    asyncio.run(body())


def test_ids_that_are_garbage_do_not_stop_a_source_for_ever(clock: HandClock) -> None:
    """Damage: one program that writes bytes of another kind into a topic makes its source stand still."""
    awaited = AwaitedSchemas(clock)
    for number in range(WAITS_MS_MAX // 20_000):
        with pytest.raises(Unavailable):
            awaited.refuse(range(number + 1))
        clock.now += 20_000
    awaited.refuse(range(20))
    awaited.refuse(range(20))  # where errors are, a second read says
    with pytest.raises(Unavailable, match="the schema 20 yet"):
        awaited.refuse(range(21))


def test_a_clock_that_is_set_back_makes_no_wait_longer(clock: HandClock) -> None:
    """Damage: a source waits for a wrong id until the clock is where it was."""
    awaited = AwaitedSchemas(clock)
    with pytest.raises(Unavailable):
        awaited.refuse([1])
    clock.now -= 500_000
    with pytest.raises(Unavailable):
        awaited.refuse([1])
    clock.now += WAIT_MS
    awaited.refuse([1])
