"""What the pages of Kafka, Redis and webhooks show works as it stands, with a real server under each."""

from __future__ import annotations

import asyncio
import re
from contextlib import closing
from pathlib import Path

import pyarrow as pa
import pytest
from tests.materialize.drivers.kafka.topics_under_test import Topics
from tests.materialize.drivers.webhook.receiving import receiving

from kafka_server import PASSWORD, KafkaServer
from redis_server import PASSWORD as REDIS_PASSWORD
from redis_server import RedisServer
from strandline.algebra.schema import Column, Schema
from strandline.controller.language import statements
from strandline.controller.location import on_error
from strandline.frontier import Frontier
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.materialize.runtime import Task
from strandline.store.memory import MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.feed import ListFeed
from strandline.wiring import registry

pytestmark = pytest.mark.server
PAGES = Path(__file__).resolve().parents[3] / "docs" / "endpoints"


def run(page: str, *changed: tuple[str, str]) -> None:
    """Run the first example of a page, with other addresses: a row comes, changes, and one goes."""
    found = re.search(r"```sql\n(.*?);\n```", (PAGES / page).read_text(), re.DOTALL)
    assert found is not None
    text = found[1]
    for old, new in changed:
        assert old in text
        text = text.replace(old, new)
    made = statements.parse(text)
    assert isinstance(made, statements.CreateMaterialization)
    (bound,) = made.bindings
    (key,) = bound.key
    schema = Schema((Column(key, "bigint"), Column("name", "string")))
    how = on_error.common_to_all(made.name, made.options, on_error.MaterializationOptions)
    own = on_error.others(made.name, made.options, on_error.MaterializationOptions)
    binding = Binding(bound.collection, bound.table, (key,), schema, delta=how.delta)
    feed = ListFeed(bound.collection, schema, {key: pa.int64(), "name": pa.string()})
    clock = HandClock()

    async def body() -> None:
        log = RecoveryLog(clock, CountingIds("x"), MemoryConsensus(), "log/x", 1)
        spec = MaterializationSpec(made.name, (binding,))
        task = Task(spec, registry.driver(clock, made.endpoint, own), log, [feed])
        feed.write(1, ({key: 1, "name": "Ada"}, 1), ({key: 2, "name": "Bob"}, 1))
        feed.seal(Frontier(2))
        assert await task.advance()
        feed.write(2, ({key: 1, "name": "Ada"}, -1), ({key: 1, "name": "Ada L."}, 1), ({key: 2, "name": "Bob"}, -1))
        feed.seal(Frontier(3))
        assert await task.advance()
        await task.close()

    asyncio.run(body())


def test_the_example_of_kafka(kafka_broker: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the first thing that a user of Kafka copies is refused, or pushes something else."""
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    topics = Topics(kafka_broker, "strandline-checkpoints")
    guarded = f"{kafka_broker.guarded}', tls_ca 'file:{kafka_broker.certificate}"
    run("kafka.md", ("kafka-1:9092,kafka-2:9092", guarded), ("user 'strandline'", "user 'reader'"))
    pushed = [(record.key, record.value) for record in topics.pushed("customers")]
    topics.drop()
    assert pushed[2:] == [
        ({"customer": 1}, {"customer": 1, "name": "Ada L."}),
        ({"customer": 2}, None),
    ]
    assert len(pushed) == 4


def test_the_example_of_redis(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the first thing that a user of Redis copies is refused, or keeps something else."""
    monkeypatch.setenv("REDIS_PASSWORD", REDIS_PASSWORD)
    redis_server.revive()
    run("redis.md", ("redis:6379'", f"{redis_server.place}', database '498'"))
    with closing(redis_server.client(498)) as client:
        assert list(client.scan_iter("customer:*")) == [b"customer:1"]
        assert client.hgetall("customer:1") == {b"id": b"1", b"name": b"Ada L."}


def test_the_example_of_a_webhook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the first thing that a user of webhooks copies is refused, or sends something else."""
    monkeypatch.setenv("HOOK_TOKEN", "t0ken")
    monkeypatch.setenv("HOOK_SECRET", "a secret")
    with receiving() as receiver:
        run("webhook.md", ("https://example.org/hooks/alerts", receiver.url))
        first, second = receiver.taken
        assert [len(each.said["changes"]) for each in (first, second)] == [2, 2]
        assert second.said["changes"][1] == {"key": {"id": 2}, "value": None}
        assert second.headers["Authorization"] == "Bearer t0ken"
        assert second.headers["webhook-signature"].startswith("v1,")
