"""A schema that is not in the registry yet is waited for, and garbage does not stop a source."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

import registry_server
from registry_server import RegistryServer
from strandline.errors import Unavailable
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.reader import MessageDecoder
from strandline.sources.readers.kafka import reader as reader_module
from strandline.sources.readers.kafka import registry as registry_module
from strandline.sources.readers.kafka.broker import Beginnings
from strandline.sources.readers.kafka.options import KafkaOptions
from strandline.sources.readers.kafka.reader import KEPT_MS, WAIT_MS, WAITS_MS_MAX, AwaitedSchemas, KafkaReader
from strandline.sources.readers.kafka.registry import Registry
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.clock import SystemClock
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine
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
    registry: RegistryServer, clock: HandClock, topic: MemoryTopic, decoder: MessageDecoder, **others: str
) -> KafkaReader:
    """Return a reader of a topic whose values are framed Avro."""
    given = {"servers": "k:9092", "topic": "t", "format": "avro", "registry_url": registry.url, **others}
    options = understood("source 's'", KafkaOptions, given)
    client = PersistClient(clock, CountingIds(), MemoryBlob(), MemoryConsensus())
    beginnings = await Beginnings.open(await client.records("s-progress", 1), 1)
    return KafkaReader(
        clock,
        MemoryBroker(topic),
        beginnings,
        Registry(options),
        ListEngine(MemoryBlob()),
        decoder,
        SCHEMA,
        options,
        options.decoding,
        name="s",
    )


async def probed(reader: KafkaReader) -> None:
    """Probe upstream once it has answered what it was asked before."""
    while True:
        try:
            await reader.upstream_frontier()
        except Unavailable:
            await SystemClock().sleep(0.01)
        else:
            return


def framed(number: int) -> bytes:
    """Return a message that names a schema."""
    return bytes([0]) + number.to_bytes(4) + b"x"


def test_a_registry_that_does_not_answer_is_asked_by_the_probe_and_once_at_a_time(
    registry: RegistryServer, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a registry hangs, and each tick of everything lasts as long as the reader's patience with it."""
    monkeypatch.setattr(reader_module, "REGISTRY_SECONDS_MAX", 0.05)
    monkeypatch.setattr(registry_module, "ANSWER_SECONDS_MAX", 3600)  # a read that waited so long would hang here

    async def body() -> None:
        topic, decoder = MemoryTopic(), NumberDecoder()
        reader = await reader_of(registry, clock, topic, decoder)
        topic.produce(0, framed(registry.register("t-value", '"string"')))
        whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
        registry.answers.clear()
        for _ in range(3):
            with pytest.raises(Unavailable, match="the schema registry at"):
                await reader.read([whole], table="", locate=False)
        while not registry.asked:
            await SystemClock().sleep(0.01)
        assert len(registry.asked) == 1, "what it has not answered yet is not asked again"
        registry.answers.set()
        await probed(reader)
        asked = len(registry.asked)
        await reader.read([whole], table="", locate=False)
        assert decoder.formats[-1].schemas == {1: '"string"'}
        assert len(registry.asked) == asked, "what the probe was told serves the read"

    asyncio.run(body())


def test_the_probe_of_a_source_says_that_its_registry_does_not_answer(
    registry: RegistryServer, clock: HandClock
) -> None:
    """Damage: the source goes on to read, and waits for the registry in each tick."""

    async def body() -> None:
        topic = MemoryTopic()
        reader = await reader_of(registry, clock, topic, NumberDecoder())
        topic.produce(0, framed(registry.register("t-value", '"string"')))
        whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
        registry.broken = 500
        with pytest.raises(Unavailable, match="out of order"):
            await reader.read([whole], table="", locate=False)
        with pytest.raises(Unavailable, match="out of order"):
            await reader.upstream_frontier()
        registry.broken = None
        assert await reader.upstream_frontier() == whole.upper

    asyncio.run(body())


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


def test_the_schemas_that_many_bytes_name_are_waited_for_together(
    registry: RegistryServer, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: each portion of a step waits for a minute of its own, and a step of garbage never ends."""
    monkeypatch.setattr(reader_module, "HELD_BYTES_MAX", 0)

    async def body() -> None:
        topic, decoder = MemoryTopic(), NumberDecoder()
        topic.produce(0, *(framed(1 + n % 4) for n in range(12)))
        registry.schemas[1] = '"string"'
        reader = await reader_of(registry, clock, topic, decoder)
        whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
        with pytest.raises(Unavailable, match="does not have the schema 2, the schema 3, the schema 4 yet"):
            await reader.read([whole], table="", locate=False)
        assert not decoder.raw, "nothing is decoded before all are known"
        clock.now += WAIT_MS
        for locate in (False, True):
            decoder.formats.clear()
            await reader.read([whole], table="", locate=locate)
            assert [form.schemas for form in decoder.formats] == [{1: '"string"'}] * 6

    asyncio.run(body())


async def missed(reader: KafkaReader, whole: Slice) -> bool:
    """Read as a step does, where a message makes an error; return whether a schema is waited for."""
    try:
        for locate in (False, True):
            await reader.read([whole], table="", locate=locate)
    except Unavailable:
        return True
    return False


@pytest.mark.parametrize("connector", [False, True], ids=["here", "by Spark"])
def test_garbage_stops_a_source_for_three_minutes_at_most(
    registry: RegistryServer, clock: HandClock, connector: bool
) -> None:
    """Damage: one program that writes bytes of another kind into a topic makes its source stand still."""

    async def body() -> None:
        topic = MemoryTopic()
        reader = await reader_of(registry, clock, topic, NumberDecoder(connector=connector), small_messages_max="0")
        begun = clock.now
        topic.produce(0, framed(1))
        while await missed(reader, Slice(7, NOTHING_READ, await reader.upstream_frontier())):
            assert clock.now - begun < WAITS_MS_MAX
            clock.now += 20_000
            topic.produce(0, framed(clock.now))
        assert clock.now - begun == WAITS_MS_MAX

    asyncio.run(body())


def test_an_id_that_no_schema_can_have_is_not_asked_for(registry: RegistryServer, clock: HandClock) -> None:
    """Damage: Confluent's registry has no answer for such an id but that there is no such page, at each tick anew."""

    async def body() -> None:
        topic, decoder = MemoryTopic(), NumberDecoder()
        topic.produce(0, framed(1 << 31), framed((1 << 32) - 1))
        reader = await reader_of(registry, clock, topic, decoder)
        assert not await missed(reader, Slice(7, NOTHING_READ, await reader.upstream_frontier()))
        assert not registry.asked

    asyncio.run(body())


def test_what_comes_behind_messages_that_got_through_is_waited_for_anew(clock: HandClock) -> None:
    """Damage: a schema is not waited for, because others were, of messages that are durable already."""
    awaited = AwaitedSchemas(clock)
    for at in range(2):
        for number in range(WAITS_MS_MAX // 20_000):
            with pytest.raises(Unavailable):
                awaited.refuse([100 * at + number], Offsets({"0": at}))
            clock.now += 20_000


def test_a_source_that_did_not_ask_did_not_wait(clock: HandClock) -> None:
    """Damage: brokers that were away count as a wait for a schema that is missed once they are back."""
    awaited = AwaitedSchemas(clock)
    with pytest.raises(Unavailable):
        awaited.refuse([1], NOTHING_READ)
    clock.now += 10 * WAIT_MS
    with pytest.raises(Unavailable, match="the schema 2 yet"):
        awaited.refuse([2], NOTHING_READ)


def test_an_id_that_was_wrong_long_ago_is_waited_for_again(clock: HandClock) -> None:
    """Damage: garbage that looked like an id makes errors of the messages of the schema that gets it later."""
    awaited = AwaitedSchemas(clock)
    with pytest.raises(Unavailable):
        awaited.refuse([1], NOTHING_READ)
    for _ in range(KEPT_MS // WAIT_MS):
        clock.now += WAIT_MS
        awaited.refuse([1], NOTHING_READ)
    clock.now += KEPT_MS
    with pytest.raises(Unavailable, match="the schema 1 yet"):
        awaited.refuse([1], NOTHING_READ)


def test_ids_that_are_garbage_do_not_stop_a_source_for_ever(clock: HandClock) -> None:
    """Damage: one program that writes bytes of another kind into a topic makes its source stand still."""
    awaited = AwaitedSchemas(clock)
    for number in range(WAITS_MS_MAX // 20_000):
        with pytest.raises(Unavailable):
            awaited.refuse(range(number + 1), NOTHING_READ)
        clock.now += 20_000
    awaited.refuse(range(20), NOTHING_READ)
    awaited.refuse(range(20), NOTHING_READ)  # where errors are, a second read says
    with pytest.raises(Unavailable, match="the schema 20 yet"):
        awaited.refuse(range(21), NOTHING_READ)


def test_a_clock_that_is_set_back_makes_no_wait_longer(clock: HandClock) -> None:
    """Damage: a source waits for a wrong id until the clock is where it was."""
    awaited = AwaitedSchemas(clock)
    with pytest.raises(Unavailable):
        awaited.refuse([1], NOTHING_READ)
    clock.now -= 500_000
    with pytest.raises(Unavailable):
        awaited.refuse([1], NOTHING_READ)
    clock.now += WAIT_MS
    awaited.refuse([1], NOTHING_READ)
