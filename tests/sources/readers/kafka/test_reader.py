"""The Kafka reader reads a topic's offsets, each once, and stops where the topic is not what was announced."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa
import pytest

from strandline.algebra.messages import PARTITIONS_MAX
from strandline.errors import FencedError, SourceError, Unavailable
from strandline.frontier import Frontier, Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Rows
from strandline.sources.ingest import Ingestion
from strandline.sources.reader import Keyed, Plain
from strandline.sources.readers.kafka import reader as reader_module
from strandline.sources.readers.kafka.broker import Beginnings, Span, Topic
from strandline.sources.readers.kafka.kind import KIND
from strandline.sources.readers.kafka.options import KafkaOptions
from strandline.sources.readers.kafka.reader import KafkaReader
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.contracts.reader_contract import SharedReaderContract
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.upstreams.memory_broker import MemoryBroker, MemoryTopic
from strandline.testing.upstreams.number_messages import SCHEMA, NumberDecoder

NOW_MS = 1_700_000_000_000


class Place:
    """A topic in memory, a location, and readers of them."""

    table = ""

    def __init__(self, decoder: NumberDecoder | None = None, **options: str) -> None:
        self.topic = MemoryTopic()
        self.topic.produce(0)
        self.topic.produce(1)
        self.blob, self.clock = MemoryBlob(), HandClock(NOW_MS)
        self.engine = ListEngine(self.blob)
        self.decoder = decoder or NumberDecoder()
        given = {"servers": "k:9092", "topic": "t", "format": "text", **options}
        self.options = understood("source 's'", KafkaOptions, given)
        self.brokers: list[MemoryBroker] = []
        self._client = PersistClient(self.clock, CountingIds(), self.blob, MemoryConsensus(), self.engine)
        self._numbers = count()

    async def reader(self, epoch: int = 1) -> KafkaReader:
        """Open a reader as a fresh process would."""
        beginnings = await Beginnings.open(await self._client.records("s-progress", epoch), epoch)
        self.brokers.append(MemoryBroker(self.topic))
        return KafkaReader(
            self.clock,
            self.brokers[-1],
            beginnings,
            None,
            self.engine,
            self.decoder,
            SCHEMA,
            self.options,
            self.options.decoding,
            name="s",
        )

    async def produce(self, *, undecodable: bool = False) -> None:
        """Append numbers to both partitions, with gaps between them."""
        for partition in (0, 1):
            self.topic.produce(partition, *(str(next(self._numbers)).encode() for _ in range(3)))
            self.topic.skip(partition)
        if undecodable:
            self.topic.produce(1, b"no number")

    async def break_promise(self) -> None:
        """Delete what was announced."""
        self.topic.forget(0, self.topic.logs[0].stable)


class TestKafkaReader(SharedReaderContract):
    """The contract."""

    @pytest.fixture
    def place(self) -> Place:
        """An empty topic."""
        return Place()


class TestKafkaReaderByPortions(SharedReaderContract):
    """The contract, where no message is kept in memory."""

    @pytest.fixture
    def place(self, monkeypatch: pytest.MonkeyPatch) -> Place:
        """An empty topic."""
        monkeypatch.setattr(reader_module, "HELD_BYTES_MAX", 0)
        return Place()


def values(rows: Any) -> list[tuple[int, str, int]]:
    """Return numbers with partition and offset, in order."""
    return sorted((row["n"], row["part"], row["at"]) for row in listed(rows).rows)


async def read(reader: KafkaReader, *slices: Slice) -> list[tuple[int, str, int]]:
    """Read slices."""
    return values(await reader.read(slices, table="", locate=False))


def test_offsets_without_messages_are_covered_too() -> None:
    """Damage: a source of a compacted topic, or of one with transactions, never gets to the end."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b"1", b"2", b"3")
        place.topic.compact(0, 1)
        place.topic.skip(0, 2)
        reader = await place.reader()
        assert (end := await reader.upstream_frontier()) == Offsets({"0": 5})
        assert await read(reader, Slice(7, NOTHING_READ, end)) == [(1, "0", 0), (3, "0", 2)]
        assert await read(reader, Slice(7, Offsets({"0": 3}), end)) == []

    asyncio.run(body())


@pytest.mark.parametrize("at_ms", [1_700_000_000_000_000_000, 1_700_000_000_000_000, -62_135_596_800_001])
def test_a_timestamp_that_no_column_holds_stops_no_source(at_ms: int) -> None:
    """Damage: one message of a producer that counts micro- or nanoseconds stops its source, or all reads of it."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b"1", at_ms=at_ms)
        place.topic.produce(0, b"2", at_ms=-1000)
        reader = await place.reader()
        whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
        assert await read(reader, whole) == [(1, "0", 0), (2, "0", 1)]
        (raw,) = place.decoder.raw
        assert raw["timestamp"].cast("int64").to_pylist() == [None, -1_000_000]

    asyncio.run(body())


def test_a_partition_that_comes_later_is_read_from_its_first_message() -> None:
    """Damage: what was written to it before the first probe that saw it is lost."""

    async def body() -> None:
        place = Place(start="latest")
        place.topic.produce(0, b"1")
        reader = await place.reader()
        before = await reader.upstream_frontier()
        place.topic.produce(7, b"2")
        after = await reader.upstream_frontier()
        assert await read(reader, Slice(7, before, after)) == [(2, "7", 0)]

    asyncio.run(body())


@pytest.mark.parametrize(("start", "found"), [("earliest", [2, 3, 4]), ("latest", [4])])
def test_a_partition_begins_where_it_was_first_seen(start: str, found: list[int]) -> None:
    """Damage: a topic whose first messages have expired cannot be read; or a restart reads from elsewhere."""

    async def body() -> None:
        place = Place(start=start)
        place.topic.produce(0, b"1", b"2", b"3")
        place.topic.forget(0, 1)
        reader = await place.reader()
        await reader.upstream_frontier()
        place.topic.produce(0, b"4")
        for each in (reader, await place.reader()):
            whole = Slice(7, NOTHING_READ, await each.upstream_frontier())
            assert [n for n, _, _ in await read(each, whole)] == found

    asyncio.run(body())


def test_a_topic_made_anew_stops_the_source() -> None:
    """Damage: offsets of one topic are taken for those of another, and its first messages are never read."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b"1")
        reader = await place.reader()
        whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
        place.topic.make_anew()
        place.topic.produce(0, b"2", b"3")
        for each in (reader, await place.reader()):
            with pytest.raises(SourceError, match="id topic-1, and this one, made later, has topic-1'"):
                await each.upstream_frontier()
            with pytest.raises(SourceError, match="not the one that was read so far"):
                await each.read([whole], table="", locate=False)
        place.topic.id = None
        with pytest.raises(SourceError, match="topic 't' does not exist at k:9092"):
            await reader.upstream_frontier()

    asyncio.run(body())


def test_what_was_deleted_before_it_was_seen_stops_the_source() -> None:
    """Damage: retention overtakes a source that was away, and the gap is skipped silently."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b"1", b"2")
        reader = await place.reader()
        whole = await reader.upstream_frontier()
        await reader.commit(whole)
        place.topic.forget(0, 2)
        fresh = await place.reader()
        await fresh.commit(whole)
        assert await fresh.upstream_frontier() == whole
        place.topic.produce(0, b"3", b"4")
        place.topic.forget(0, 3)
        for each in (reader, fresh):
            with pytest.raises(SourceError, match=r"partition 0: messages from offset 2 on .* from 3 on only"):
                await each.upstream_frontier()

    asyncio.run(body())


def test_a_log_that_is_shorter_than_announced_stops_the_source() -> None:
    """Damage: a cluster that lost messages gives other ones under their offsets."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b"1", b"2")
        reader = await place.reader()
        whole = await reader.upstream_frontier()
        place.topic.lose(0, 1)
        with pytest.raises(SourceError, match="messages before offset 2 were there, and now it ends at 1"):
            await reader.read([Slice(7, NOTHING_READ, whole)], table="", locate=False)

    asyncio.run(body())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_log_that_lost_what_was_read_stops_the_source(restarted: bool) -> None:
    """Damage: what producers write under the lost offsets is never read, and no operator sees it."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b"0", b"1", b"2", b"3")
        reader = await place.reader()
        whole = await reader.upstream_frontier()
        await reader.commit(whole)
        place.topic.lose(0, 2)
        if restarted:
            reader = await place.reader()
            await reader.commit(whole)
        lost = r"partition 0: messages before offset 4 were there, and now it ends at 2"
        with pytest.raises(SourceError, match=lost):
            await reader.upstream_frontier()
        place.topic.produce(0, b"4", b"5", b"6")
        with pytest.raises(SourceError, match=lost):  # a loss that was seen stays one when it is filled again
            await reader.upstream_frontier()

    asyncio.run(body())


@pytest.mark.parametrize("connector", [False, True], ids=["here", "by Spark"])
def test_a_broker_that_does_not_list_a_partition_yet_is_asked_again(connector: bool) -> None:
    """Damage: one answer of a broker that lags ends a source until it is restarted."""

    async def body() -> None:
        place = Place(NumberDecoder(connector=connector), small_messages_max="0")
        place.topic.produce(0, b"0")
        place.topic.produce(1, b"1")
        reader = await place.reader()
        whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
        log = place.topic.logs.pop(1)
        with pytest.raises(Unavailable, match="does not list partition 1 yet" if connector else "partition 1"):
            await reader.read([whole], table="", locate=False)
        place.topic.logs[1] = log
        await reader.upstream_frontier()
        await reader.read([whole], table="", locate=False)

    asyncio.run(body())


@pytest.mark.parametrize("keyed", [False, True])
def test_more_partitions_than_an_order_can_tell_apart_are_refused(keyed: bool) -> None:
    """Damage: of a key's messages in two partitions the older one counts, because its order is a negative number."""

    async def body() -> None:
        place = Place(**({"envelope": "upsert", "key": "n", "key_format": "text"} if keyed else {}))
        place.topic.produce(PARTITIONS_MAX - 1, b"1")
        reader = await place.reader()
        whole = await reader.upstream_frontier()
        place.topic.produce(PARTITIONS_MAX, b"2")
        if keyed:
            with pytest.raises(SourceError, match="has a partition 32768, and a source whose rows have keys"):
                await reader.upstream_frontier()
        else:
            assert await reader.upstream_frontier() != whole

    asyncio.run(body())


def test_what_is_durable_while_the_brokers_answer_is_no_loss() -> None:
    """Damage: a source that two instances read stops, because one of them asked before the other one did."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b"0")
        reader, broker = await place.reader(), place.brokers[-1]
        look = broker.look

        async def slowly() -> Topic | None:
            found = await look()
            await reader.commit(Offsets({"0": 2}))
            return found

        broker.look = slowly  # type: ignore[method-assign]
        assert await reader.upstream_frontier() == Offsets({"0": 2})

    asyncio.run(body())


def test_a_broker_that_is_away_is_asked_again() -> None:
    """Damage: a restart of Kafka ends a source for ever."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b"1")
        reader = await place.reader()
        whole = await reader.upstream_frontier()
        place.topic.away = True
        with pytest.raises(Unavailable):
            await reader.upstream_frontier()
        with pytest.raises(Unavailable):
            await reader.read([Slice(7, NOTHING_READ, whole)], table="", locate=False)
        with pytest.raises(Unavailable):
            await reader.commit(whole)
        place.topic.away = False
        assert await reader.upstream_frontier() == whole
        await reader.commit(whole)
        assert place.topic.committed == {0: 1}

    asyncio.run(body())


def test_a_commit_names_what_moved_and_never_goes_back() -> None:
    """Damage: an idle topic costs a commit each second; or who deletes by the group's offsets loses rows."""

    async def body() -> None:
        place = Place()
        reader = await place.reader()
        await reader.commit(NOTHING_READ)
        await reader.commit(Offsets({"0": 3, "1": 1}))
        await reader.commit(Offsets({"0": 3, "1": 2}))
        await reader.commit(Offsets({"0": 2}))
        assert place.topic.commits == [{0: 3, 1: 1}, {1: 2}]

    asyncio.run(body())


def test_many_messages_are_left_to_spark_if_it_can_read_them() -> None:
    """Damage: a long topic goes through this process; or credentials are printed with a plan."""

    async def body() -> None:
        decoder = NumberDecoder(connector=True)
        place = Place(decoder, small_messages_max="3")
        place.topic.produce(0, b"0", b"1", b"2")
        place.topic.forget(0, 1)
        place.topic.produce(1, b"3", b"4")
        reader = await place.reader()
        end = await reader.upstream_frontier()
        middle = Offsets({"0": 2, "1": 1})
        await reader.read([Slice(7, NOTHING_READ, middle), Slice(9, middle, end)], table="", locate=False)
        (topic,) = decoder.topics
        assert [(r.time, r.partition, r.lower, r.upper) for r in topic.ranges] == [
            (7, "0", 1, 2), (7, "1", 0, 1), (9, "0", 2, 3), (9, "1", 1, 2),
        ]  # fmt: skip
        assert topic.options["kafka.isolation.level"] == "read_committed"
        assert not place.brokers[0].fetched
        assert await read(reader, Slice(9, middle, end)) == [(2, "0", 2), (4, "1", 1)]
        assert place.brokers[0].fetched == [{0: Span(2, 3), 1: Span(1, 2)}]
        place.topic.forget(0, 2)
        with pytest.raises(SourceError, match="messages from offset 1 on"):
            await reader.read([Slice(7, NOTHING_READ, end)], table="", locate=False)

    asyncio.run(body())


@pytest.mark.parametrize("anew", [True, False], ids=["made anew", "forgotten"])
def test_a_topic_that_is_made_anew_while_spark_reads_it_gives_no_row(anew: bool) -> None:
    """Damage: messages of a topic's successor get the offsets of the one before; or what was read is refused."""

    async def body() -> None:
        decoder = NumberDecoder(connector=True)
        place = Place(decoder, small_messages_max="1")
        place.topic.produce(0, b"0", b"1", b"2")
        reader = await place.reader()
        writer = await place._client.writer("data", 1, schema=SCHEMA.ddl)
        remap = await RemapShard.open(await place._client.records("remap", 1), 1)
        ingestion = await Ingestion.open(
            place.clock, place.engine, reader, remap, [OutputShard("", SCHEMA, writer)], name="s"
        )
        await ingestion.tick(7)
        stage = place.engine.stage

        async def meanwhile(*given: Any) -> Any:
            staged = await stage(*given)
            if anew:
                place.topic.make_anew()
                place.topic.produce(0, b"7", b"8", b"9")
            else:
                place.topic.forget(0, 2)
            return staged

        place.engine.stage = meanwhile  # type: ignore[method-assign]
        await ingestion.catch_up()
        assert ("is not the one that was read so far" in ingestion.status.stalled) == anew
        assert (writer.state.upper, len(decoder.topics)) == (Frontier(0 if anew else 8), 1)

    asyncio.run(body())


class Weighing(NumberDecoder):
    """A decoder that weighs what this process holds of Arrow when it is asked to decode, and keeps nothing of it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = pa.total_allocated_bytes()
        self.most = 0

    async def messages(self, raw: pa.Table, *given: Any, **more: Any) -> Rows:
        """See `MessageDecoder.messages`."""
        self.most = max(self.most, pa.total_allocated_bytes() - self.begun)
        rows = await super().messages(raw, *given, **more)
        self.raw.clear()
        return rows


def test_few_messages_of_many_bytes_are_not_held_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: 5 000 messages of a megabyte are in memory at once, because they are few; or a large one never comes."""
    monkeypatch.setattr(reader_module, "HELD_BYTES_MAX", 50_000)

    async def body() -> None:
        decoder = Weighing()
        place = Place(decoder)
        place.topic.produce(0, *(str(n).rjust(200_000 if n == 33 else 10_000).encode() for n in range(60)))
        place.topic.skip(0)
        place.topic.produce(1, b"no number".rjust(10_000))
        reader = await place.reader()
        end = await reader.upstream_frontier()
        middle = Offsets({"0": 20})
        slices = (Slice(7, NOTHING_READ, middle), Slice(9, middle, end))
        for locate in (False, True):
            rows = listed(await reader.read(slices, table="", locate=locate)).rows
            good = sorted((row["at"], row["n"], row["__time"]) for row in rows if row["__error"] is None)
            assert good == [(n, n, 7 if n < 20 else 9) for n in range(60)]
            assert [row["__time"] for row in rows if row["__error"] is not None] == [9]
        assert not reader.likely_small(slices), "they are not collected either"
        assert "62 messages in one step" in reader.notices()[0]
        assert decoder.most <= 50_000 + 250_000, "what is kept, and what comes with the message that is larger"
        place.topic.produce(0, b"61")
        after = Slice(11, end, await reader.upstream_frontier())
        assert await read(reader, after) == [(61, "0", 61)]
        assert reader.likely_small([after])

    asyncio.run(body())


def test_few_messages_of_many_bytes_are_left_to_spark_if_it_can_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: they go through this process and its temporary files, which other machines do not see."""
    monkeypatch.setattr(reader_module, "HELD_BYTES_MAX", 50_000)

    async def body() -> None:
        decoder = NumberDecoder(connector=True)
        place = Place(decoder)
        place.topic.produce(0, *(str(n).rjust(10_000).encode() for n in range(60)))
        reader = await place.reader()
        whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
        await reader.read([whole], table="", locate=False)
        (topic,) = decoder.topics
        assert (topic.messages, decoder.raw) == (60, [])
        assert not reader.likely_small([whole])
        place.topic.make_anew()
        with pytest.raises(SourceError, match="is not the one that was read"):
            await reader.confirm()  # Spark reads it later

    asyncio.run(body())


def test_the_reader_reports_that_sparks_connector_is_missed() -> None:
    """Damage: a long topic takes the memory of a process, and its operator does not know that it need not."""

    async def body() -> None:
        place = Place(small_messages_max="2")
        place.topic.produce(0, b"1", b"2")
        reader = await place.reader()
        first = await reader.upstream_frontier()
        await read(reader, Slice(7, NOTHING_READ, first))
        assert reader.notices() == ()
        place.topic.produce(0, b"3", b"4", b"5")
        await read(reader, Slice(9, first, await reader.upstream_frontier()))
        (notice,) = reader.notices()
        assert "3 messages in one step" in notice
        assert "kafka_jars" in notice

    asyncio.run(body())


@pytest.mark.parametrize("envelope", ["upsert", "none"])
def test_the_reader_reports_that_a_key_may_be_in_two_partitions(envelope: str) -> None:
    """Damage: an operator adds partitions to a topic of keys, and learns from wrong rows what that means."""

    async def body() -> None:
        keyed = {"envelope": "upsert", "key": "n", "key_format": "text"} if envelope == "upsert" else {}
        place = Place(**keyed, format="json")
        reader = await place.reader()
        place.topic.produce(0, b"1")
        await reader.upstream_frontier()
        assert reader.notices() == ()
        place.topic.produce(2, b"2")
        await reader.upstream_frontier()
        wanted = ["topic 't' has got partitions since the source began: 2"] if envelope == "upsert" else []
        assert [notice[: len(wanted[0])] for notice in reader.notices()] == wanted

    asyncio.run(body())


def test_two_instances_agree_on_where_a_topic_begins() -> None:
    """Damage: one of them reads what the other has skipped."""

    async def body() -> None:
        place = Place(start="latest")
        place.topic.produce(0, b"1")
        first, second = await place.reader(), await place.reader()
        await first.upstream_frontier()
        place.topic.produce(0, b"2")
        end = await second.upstream_frontier()
        assert [n for n, _, _ in await read(second, Slice(7, NOTHING_READ, end))] == [2]

    asyncio.run(body())


def test_a_fenced_reader_writes_nothing_down() -> None:
    """Damage: a process that was replaced goes on to say where partitions begin."""

    async def body() -> None:
        place = Place()
        old = await place.reader(1)
        new = await place.reader(2)
        place.topic.produce(0, b"1")
        with pytest.raises(FencedError):
            await old.upstream_frontier()
        await new.upstream_frontier()

    asyncio.run(body())


def test_records_are_what_the_envelope_says() -> None:
    """Damage: a deletion in the topic becomes an error, or an insertion."""
    upsert = {"envelope": "upsert", "key": "id, part", "key_format": "json", "format": "json"}
    assert asyncio.run(Place().reader()).records("") == Plain()
    assert asyncio.run(Place(**upsert).reader()).records("") == Keyed(("id", "part"))


def test_a_definition_that_makes_no_rows_is_refused() -> None:
    """Damage: a source is defined, and each message of it is an error."""
    given = understood("source 's'", KafkaOptions, {"servers": "k:9092", "topic": "t", "format": "text"})
    with pytest.raises(Exception, match="a value is one column"):
        KIND.check(given, SCHEMA)
    KIND.check(replace(given, include_partition="part", include_offset="at", format=type(given.format).JSON), SCHEMA)
