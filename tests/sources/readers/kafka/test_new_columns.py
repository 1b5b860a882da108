"""Fields that messages get: a source that takes them reads none of their values as if it was not there."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

import registry_server
from registry_server import RegistryServer
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.frontier import Offsets
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.reader import ColumnsAdded, Surroundings
from strandline.sources.readers.kafka import reader as reader_module
from strandline.sources.readers.kafka.broker import Beginnings
from strandline.sources.readers.kafka.options import KafkaOptions
from strandline.sources.readers.kafka.reader import KafkaReader
from strandline.sources.readers.kafka.registry import Registry
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.lists.list_messages import ListMessages
from strandline.testing.upstreams.memory_broker import MemoryBroker, MemoryTopic
from strandline.testing.upstreams.number_messages import NumberDecoder

ID = Schema((Column("id", "bigint"),))
KEYED = {"key": "id", "key_format": "text", "envelope": "upsert"}


class Place:
    """A topic, and the one source of it whose schema is ``schema``."""

    def __init__(self, decoder: Any = None, **options: str) -> None:
        self.topic, self.schema = MemoryTopic(), ID
        self.topic.produce(0)
        given = {"servers": "k:9092", "topic": "t", **options}
        self.options = understood("source 's'", KafkaOptions, given)
        self.engine, self.decoder = ListEngine(MemoryBlob()), decoder or ListMessages()
        self._client = PersistClient(HandClock(), CountingIds(), MemoryBlob(), MemoryConsensus())

    async def reader(self, *, evolving: bool) -> KafkaReader:
        """Open the source as a fresh process would."""
        beginnings = await Beginnings.open(await self._client.records("s-progress", 1), 1)
        registry = None if self.options.registry_url is None else Registry(self.options)
        around = Surroundings(
            HandClock(), {"": self.schema}, self.engine, None, self.decoder, 1, None,
            frozenset({""} if evolving else {}), {"": "ALTER SOURCE `s`"},
        )  # fmt: skip
        return KafkaReader(
            around.clock, MemoryBroker(self.topic), beginnings, registry, self.engine, self.decoder, self.schema,
            self.options, self.options.decoding, evolving=evolving, gained=around.gained,name="s")  # fmt: skip

    async def rows(self, lower: Offsets = NOTHING_READ) -> list[dict[str, Any]]:
        """Read what there is, as the core does: take the columns that are new, and read the same slice again."""
        for _ in count():
            reader = await self.reader(evolving=True)
            try:
                whole = Slice(7, lower, await reader.upstream_frontier())
                rows = listed(await reader.read([whole], table="", locate=True)).rows
            except ColumnsAdded as added:
                self.schema = Schema((*self.schema, *(added.columns if added.table == "" else ())))
            else:
                return [{n: row[n] for n in row if n not in {TIME, DIFF} and row[n] is not None} for row in rows]
        raise AssertionError


@pytest.fixture(params=[16 << 20, 0], ids=["held", "by portions"])
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many bytes of messages are kept in memory."""
    monkeypatch.setattr(reader_module, "HELD_BYTES_MAX", request.param)


@pytest.mark.usefixtures("held")
def test_each_field_of_json_becomes_a_column_before_a_value_of_it_is_read() -> None:
    """Damage: the first values of a new field are lost, those of the messages that were read before it was noticed."""

    async def body() -> None:
        place = Place()
        said = [{"id": n} for n in range(40)]
        said[3] |= {"late": 1.5}
        said[6] |= {"late": 2, "day": "2026-01-02"}
        place.topic.produce(0, *(json.dumps(each).encode() for each in said))
        said[6] |= {"day": dt.date(2026, 1, 2)}
        assert await place.rows() == said
        assert place.schema == Schema((*ID, Column("late", "double"), Column("day", "date")))

    asyncio.run(body())


def test_a_field_without_a_value_is_no_column_yet_and_one_that_none_could_be_is_none() -> None:
    """Damage: a column gets a type before a value of it was seen; or a message with a hostile name stops the source."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b'{"id": 1, "later": null, "ID": 2, "__time": 3, "": 4}', b"no json", b"[1]")
        await place.rows()
        assert place.schema == ID
        place.topic.produce(0, b'{"id": 2, "later": 5}')
        assert (await place.rows(Offsets({"0": 3})))[-1] == {"id": 2, "later": 5}
        assert place.schema.names == ("id", "later")

    asyncio.run(body())


def test_a_row_with_a_key_has_the_fields_of_its_value_and_of_a_change_those_it_has_after_it() -> None:
    """Damage: a new field of an upsert or a change of Debezium is not found, or the change's own fields are columns."""

    async def body() -> None:
        upsert = Place(**KEYED)
        upsert.topic.produce(0, b'{"v": "a"}', b'{"v": "b", "w": true}', key=b"1")
        upsert.topic.produce(0, None, key=b"2")
        assert [row.get("w") for row in await upsert.rows()] == [None, True, None]
        assert upsert.schema.names == ("id", "v", "w")
        debezium = Place(key="id", envelope="debezium")
        after = {"id": 1, "v": "a", "big": "__debezium_unavailable_value"}
        change = {"op": "c", "before": None, "after": after, "ts": 1}
        debezium.topic.produce(0, json.dumps({"payload": change, "schema": {}}).encode(), None)
        (row,) = await debezium.rows()
        assert (row["id"], row["v"], debezium.schema.names) == (1, "a", ("id", "v"))

    asyncio.run(body())


def test_without_the_option_a_field_of_the_last_messages_is_said_and_left_out() -> None:
    """Damage: an operator does not learn that messages say more than the source reads."""

    async def body() -> None:
        place = Place()
        place.topic.produce(0, b'{"id": 1, "v": 1}')
        reader = await place.reader(evolving=False)
        whole = Slice(7, NOTHING_READ, await reader.upstream_frontier())
        (row,) = listed(await reader.read([whole], table="", locate=True)).rows
        assert "v" not in row
        (notice,) = reader.notices()
        assert "`v` bigint" in notice
        assert "ALTER SOURCE `s` ADD COLUMN" in notice

    asyncio.run(body())


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A registry that knows nothing yet."""
    with registry_server.running() as running:
        yield running


def record(*fields: tuple[str, Any], name: str = "r") -> dict[str, Any]:
    """A record's schema."""
    return {"type": "record", "name": name, "fields": [{"name": own, "type": kind} for own, kind in fields]}


def test_columns_of_avro_are_those_of_the_schemas_that_values_name(registry: RegistryServer) -> None:
    """Damage: a field of a schema that no value has is a column, or those of keys; or one that a value has is lost."""

    async def body() -> None:
        place = Place(NumberDecoder(), format="avro", registry_url=registry.url, key_format="avro", include_key="k")
        place.schema = Schema((*ID, Column("k", "string")))
        fields = [("id", "long")], [("id", "long"), ("v", ["null", "int"])], [("of_key", "int")], [("of_none", "int")]
        ids = [registry.register("t-value", json.dumps(record(*each))) for each in fields]
        one, two, key, _ = (bytes([0]) + number.to_bytes(4) for number in ids)
        place.topic.produce(0, one, two, key=key)
        await place.rows()
        assert place.schema == Schema((*ID, Column("k", "string"), Column("v", "int")))
        reader = await place.reader(evolving=False)
        await reader.read([Slice(7, NOTHING_READ, await reader.upstream_frontier())], table="", locate=True)
        assert reader.notices() == ()

    asyncio.run(body())


def test_columns_of_one_schema_of_avro_are_there_at_once() -> None:
    """Damage: the schema of a source's values, given as an option, has columns that the source never gets."""

    async def body() -> None:
        row = record(("id", "long"), ("v", "string"), name="row")
        change = record(("op", "string"), ("before", ["null", row]), ("after", ["null", "row"]))
        for text, more in ((row, {}), (change, {"key": "id", "envelope": "debezium"})):
            place = Place(NumberDecoder(), format="avro", avro_schema=json.dumps(text), **more)
            await place.rows()
            assert place.schema == Schema((*ID, Column("v", "string")))

    asyncio.run(body())


def test_before_spark_reads_a_range_each_of_its_values_is_looked_at() -> None:
    """Damage: of a step that Spark's connector reads, the values of a new field are lost."""

    async def body() -> None:
        place = Place(NumberDecoder(connector=True), small_messages_max="1")
        place.topic.produce(0, *(b'{"id": 1}' for _ in range(30)), b'{"id": 1, "v": [1.5]}')
        await place.rows()
        assert place.schema == Schema((*ID, Column("v", "array<double>")))
        assert len(place.decoder.topics) == 1

    asyncio.run(body())


def test_a_planted_look_at_some_messages_alone_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the tests above would let a reader pass that looks at the newest messages, as a notice does."""
    monkeypatch.setattr(
        reader_module.JsonFields, "see", lambda self, values, see=reader_module.JsonFields.see: see(self, values[-1:])
    )
    with pytest.raises(AssertionError):
        test_each_field_of_json_becomes_a_column_before_a_value_of_it_is_read()
