"""Messages of a topic become rows of views, by each format and envelope; by this process and by Spark's connector.

Damage, of all tests here: a view over a topic is not what its messages say.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

import registry_server
import strandline
from kafka_server import PASSWORD, USER, KafkaServer
from registry_server import RegistryServer
from strandline.client.environment import Environment
from strandline.sources.readers.kafka import reader

pytestmark = [pytest.mark.server, pytest.mark.drawn(2)]
names = count()


@pytest.fixture(params=["5000", "0"], ids=["by this process", "by Spark"])
def small_max(request: pytest.FixtureRequest, kafka_connector: Path) -> str:
    """How many messages this process fetches."""
    return str(request.param)


@pytest.fixture
def registry() -> Iterator[RegistryServer]:
    """A schema registry."""
    with registry_server.running() as running:
        yield running


class Town:
    """An environment, a broker, and sources of topics."""

    def __init__(self, env: Environment, server: KafkaServer, small_max: str) -> None:
        self.env, self.server, self.small_max = env, server, small_max

    def source(self, name: str, columns: str, *, partitions: int = 2, **options: str) -> str:
        """Make a topic and a source of it; return the topic."""
        topic = f"v-{next(names)}"
        self.server.make_topic(topic, partitions)
        given = {
            "servers": self.server.servers,
            "topic": topic,
            "small_messages_max": self.small_max,
            **options,
        }
        said = ", ".join(f"{option} '{text}'" for option, text in given.items())
        self.env.execute(f"CREATE SOURCE {name} ({columns}) USING kafka OPTIONS ({said})")
        return topic

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        """Tick, and return a query's rows, sorted."""
        self.env.tick(wait=True)
        return sorted((tuple(row) for row in self.env.query(query).collect()), key=repr)


@pytest.fixture
def town(spark: SparkSession, kafka_server: KafkaServer, small_max: str) -> Iterator[Town]:
    """An environment in memory."""
    with strandline.open("memory://", spark=spark) as env:
        yield Town(env, kafka_server, small_max)


def test_json_with_all_metadata(town: Town) -> None:
    """One column of each kind."""
    topic = town.source(
        "s",
        "a INT, b STRING, k STRING, p INT, o BIGINT, t TIMESTAMP, topic STRING, "
        "h ARRAY<STRUCT<key: STRING, value: BINARY>>",
        format="json",
        key_format="text",
        include_key="k",
        include_partition="p",
        include_offset="o",
        include_timestamp="t",
        include_headers="h",
        include_topic="topic",
    )
    town.server.produce(
        topic, ['{"a": 1, "b": "x"}'], key="k1", partition=1, headers=[("h", b"1")], timestamp=1_600_000_000_123
    )
    query = "SELECT a, b, k, p, o, unix_millis(t), h[0].key, CAST(h[0].value AS STRING), topic FROM s"
    assert town.rows(query) == [(1, "x", "k1", 1, 0, 1_600_000_000_123, "h", "1", topic)]


@pytest.mark.parametrize("sasl", ["plain", "scram-sha-256"])
def test_a_guarded_cluster(town: Town, monkeypatch: pytest.MonkeyPatch, sasl: str) -> None:
    """Both clients speak TLS, trust what is said, and log in."""
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    topic = town.source(
        "s",
        "line STRING",
        format="text",
        servers=town.server.guarded,
        tls="true",
        tls_ca=f"file:{town.server.certificate}",
        sasl=sasl,
        user=USER,
        password="env:KAFKA_PASSWORD",
    )
    town.server.produce(topic, ["a"])
    assert town.rows("SELECT * FROM s") == [("a",)]
    assert PASSWORD not in json.dumps(town.env.status(), default=str)


def test_csv_and_text(town: Town) -> None:
    """Fields by position; one column."""
    fields = town.source("c", "a INT, b STRING", format="csv", delimiter=";")
    lines = town.source("l", "line STRING", format="text")
    town.server.produce(fields, ["1;x", "2;"])
    town.server.produce(lines, ["one", "two"], partition=1)
    assert town.rows("SELECT * FROM c") == [(1, "x"), (2, None)]
    assert town.rows("SELECT * FROM l") == [("one",), ("two",)]


def test_avro_by_the_schemas_of_a_registry(
    town: Town, registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A schema that changes while messages come, and a message whose schema the registry does not know."""
    topic = town.source("s", "a BIGINT, b STRING", partitions=1, format="avro", registry_url=registry.url)
    first = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    second = {**first, "fields": [*first["fields"], {"name": "b", "type": ["null", "string"], "default": None}]}
    one, two = (registry.register(f"{topic}-value", json.dumps(schema)) for schema in (first, second))
    elsewhere = registry.register("another", json.dumps({**second, "doc": "by another subject"}))
    town.server.produce(
        topic,
        [framed(one, first, {"a": 1}), framed(two, second, {"a": 2, "b": "x"}), framed(elsewhere, second, {"a": 3})],
    )
    assert town.rows("SELECT * FROM s") == [(1, None), (2, "x"), (3, None)]
    town.server.produce(topic, [framed(77, first, {"a": 4})])
    town.env.tick(wait=True)
    assert "does not have the schema 77 yet" in town.env.status()["problems"]["s"]
    assert town.rows("SELECT * FROM s_errors") == []
    monkeypatch.setattr(reader, "WAIT_MS", 0)
    town.env.tick(wait=True)
    (error,) = town.rows("SELECT * FROM s_errors")
    assert "77" in str(error)
    assert f"{topic}[0]@3" in str(error)


def framed(number: int, schema: Any, record: Any) -> bytes:
    """Return a record as Confluent's serialiser writes it."""
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return b"\0" + number.to_bytes(4) + out.getvalue()


def test_upsert(town: Town) -> None:
    """The newest message of a key counts; one without a value takes the row away."""
    topic = town.source("s", "id BIGINT, v STRING", format="json", key_format="text", key="id", envelope="upsert")
    town.env.execute("CREATE MATERIALIZED VIEW n AS SELECT v, count(*) AS n FROM s GROUP BY v")
    put: Callable[..., None] = lambda key, value: town.server.produce(  # noqa: E731 - three words, six times
        topic, [None if value is None else json.dumps({"v": value})], key=str(key), partition=key % 2
    )
    put(1, "a"), put(2, "b"), put(1, "c"), put(3, "c")
    assert town.rows("SELECT * FROM s") == [(1, "c"), (2, "b"), (3, "c")]
    put(1, None), put(2, "c"), put(4, None)
    assert town.rows("SELECT * FROM n") == [("c", 2)]
    assert town.env.verify("n").ok
    town.server.produce(topic, ["no json"], key="3", partition=1)
    town.server.produce(topic, ['{"v": "x"}'], partition=1)
    town.env.tick(wait=True)
    assert len(town.rows("SELECT * FROM s_errors")) == 2
    put(3, "d")
    (left,) = town.rows("SELECT * FROM s_errors")
    assert f"{topic}[1]" in str(left)


def test_debezium(town: Town) -> None:
    """Insertions, updates and deletions, and the tombstone behind one."""
    topic = town.source("s", "id BIGINT, v STRING", partitions=1, format="json", key="id", envelope="debezium")

    def change(op: str, before: Any, after: Any) -> str:
        return json.dumps({"op": op, "before": before, "after": after, "ts_ms": 1, "source": {}})

    town.server.produce(topic, [change("r", None, {"id": 1, "v": "a"}), change("c", None, {"id": 2, "v": "b"})])
    assert town.rows("SELECT * FROM s") == [(1, "a"), (2, "b")]
    town.server.produce(topic, [change("u", {"id": 1, "v": "a"}, {"id": 1, "v": "z"})])
    town.server.produce(topic, [change("d", {"id": 2, "v": "b"}, None), None])
    assert town.rows("SELECT * FROM s") == [(1, "z")]


def test_a_field_that_messages_get_becomes_a_column(town: Town) -> None:
    """Its first values are there, those from before are NULL, and a row that has it goes by its key."""
    topic = town.source(
        "s",
        "id BIGINT, v STRING",
        partitions=1,
        format="json",
        key_format="text",
        key="id",
        envelope="upsert",
        evolve="add",
    )
    town.env.execute("CREATE MATERIALIZED VIEW n AS SELECT v, count(*) AS n FROM s GROUP BY v")
    town.server.produce(topic, ['{"v": "a"}'], key="1")
    assert town.rows("SELECT * FROM s") == [(1, "a")]
    town.server.produce(topic, ['{"v": "a", "w": [1.5]}'], key="2")
    town.server.produce(topic, ['{"v": "b"}'], key="3")
    assert town.rows("SELECT id, v, w[0] FROM s") == [(1, "a", None), (2, "a", 1.5), (3, "b", None)]
    town.server.produce(topic, [None], key="2")
    assert town.rows("SELECT id, v, w[0] FROM s") == [(1, "a", None), (3, "b", None)]
    assert town.rows("SELECT * FROM n") == [("a", 1), ("b", 1)]
    assert town.env.verify("n").ok


def test_a_field_that_an_avro_schema_gets_becomes_a_column(town: Town, registry: RegistryServer) -> None:
    """By the schema that a message names, not by those that the subject has besides."""
    topic = town.source("s", "a BIGINT", partitions=1, format="avro", registry_url=registry.url, evolve="add")
    first = {"type": "record", "name": "r", "fields": [{"name": "a", "type": "long"}]}
    second = {**first, "fields": [*first["fields"], {"name": "b", "type": ["null", "string"], "default": None}]}
    one, two = (registry.register(f"{topic}-value", json.dumps(schema)) for schema in (first, second))
    town.server.produce(topic, [framed(one, first, {"a": 1}), framed(two, second, {"a": 2, "b": "x"})])
    assert town.rows("SELECT a, b FROM s") == [(1, None), (2, "x")]


def test_bad_messages_are_errors_with_their_places_and_the_others_go_on(town: Town) -> None:
    """Nothing is dropped silently."""
    topic = town.source("s", "a INT", partitions=1, format="json")
    town.server.produce(topic, ['{"a": 1}', '{"a": "x"}', "no json", b"\xff\xfe", '{"a": 2}'])
    town.env.tick(wait=True)
    errors = town.rows("SELECT * FROM s_errors")
    assert len(errors) == 3
    for offset in (1, 2, 3):
        assert any(f"{topic}[0]@{offset}" in str(error) for error in errors)
