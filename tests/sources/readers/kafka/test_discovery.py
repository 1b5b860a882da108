"""What there is to read in a cluster is found out without changing it."""

from __future__ import annotations

import asyncio
import json

import pytest

import registry_server
from kafka_server import KafkaServer
from strandline.errors import SourceError, Unavailable
from strandline.options import understood
from strandline.sources.readers.kafka.kind import Looked, find


def looked(**texts: str) -> Looked:
    """Return the options that texts say."""
    return understood("discover kafka", Looked, texts)


@pytest.mark.server
def test_topics_are_found_with_their_columns(kafka_server: KafkaServer) -> None:
    """Damage: a user writes fifty columns by hand; or finds out after the fact what a topic holds."""
    kafka_server.make_topic("found-json", 2)
    kafka_server.produce("found-json", ['{"id": 1, "name": "a"}', '{"id": 2, "name": null}'], partition=1)
    for name, value in (("found-text", b"a line"), ("found-bytes", b"\xff"), ("found-avro", b"\0\0\0\0\1x")):
        kafka_server.make_topic(name)
        kafka_server.produce(name, [value])
    kafka_server.make_topic("found-empty")
    schema = {"type": "record", "name": "r", "fields": [{"name": "n", "type": ["null", "long"]}]}
    with registry_server.running() as registry:
        registry.register("found-avro-value", json.dumps(schema))
        topics = asyncio.run(find(looked(servers=kafka_server.servers, registry_url=registry.url)))
    found = {each.name: (each.columns.ddl, each.options["format"]) for each in topics}
    assert {name: said for name, said in found.items() if name.startswith("found-")} == {
        "found-json": ("`id` bigint, `name` string", "json"),
        "found-text": ("`value` string", "text"),
        "found-bytes": ("`value` binary", "bytes"),
        "found-avro": ("`n` bigint", "avro"),
        "found-empty": ("`value` string", "text"),
    }
    assert not any(name.startswith("__") for name in found)
    (one,) = asyncio.run(find(looked(servers=kafka_server.servers, topic="found-json")))
    assert (one.options["topic"], one.note) == ("found-json", "2 partitions, about 2 messages")
    with pytest.raises(SourceError, match="topic 'found-none' does not exist"):
        asyncio.run(find(looked(servers=kafka_server.servers, topic="found-none")))


def test_a_cluster_that_does_not_answer_is_named() -> None:
    """Damage: a wrong address looks like a cluster without topics."""
    with pytest.raises(Unavailable, match=r"Kafka at 127.0.0.1:9 does not answer"):
        asyncio.run(find(looked(servers="127.0.0.1:9")))
