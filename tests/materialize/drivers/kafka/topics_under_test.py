"""A Kafka cluster for the contract of pushes: what a consumer that reads only what is committed gets."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]

from kafka_server import KafkaServer
from strandline.materialize.drivers.kafka.client import Progress, Record
from strandline.materialize.drivers.kafka.driver import KafkaDriver
from strandline.materialize.drivers.kafka.kind import KIND
from strandline.materialize.drivers.kafka.options import KafkaEndpoint
from strandline.materialize.protocol.task import NOTHING, Checkpoint
from strandline.testing.contracts.drivers.push_contract import Pushed
from strandline.testing.topics import SILENT

MARKED_LOOKS_MAX = 20
"""How often is looked for the end of transactions: brokers answer a commit first, and mark it in its topics then."""


class Topics:
    """A cluster, seen through topics that were not there before; each has one partition, so it has one order."""

    exactly_once = True
    stride = 3

    def __init__(self, server: KafkaServer, checkpoints: str = "checkpoints", **options: Any) -> None:
        self.server = server
        self.options = KafkaEndpoint(servers=server.servers, partitions=1, checkpoints=checkpoints, **options)
        self._read: dict[str, list[Message]] = {}
        settings: dict[str, Any] = {
            "bootstrap.servers": server.servers,
            "group.id": "a consumer",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
            "logger": SILENT,
        }
        self._consumer = Consumer(settings)

    def driver(self) -> KafkaDriver:
        """Return one more driver to the cluster."""
        return KafkaDriver(self.options, KIND.spec)

    def pushed(self, resource: str) -> list[Pushed]:
        """Return the records of a topic."""
        return [_pushed(message) for message in self.messages(resource)]

    def checkpoint(self, name: str) -> Checkpoint:
        """Return the checkpoint of the whole range, or the only one."""
        records = [Record(m.offset() or 0, m.key() or b"", m.value()) for m in self.messages(self.options.checkpoints)]
        found = Progress.of(name, records).committed.values()
        assert len(found) <= 1
        return next((checkpoint for _, checkpoint in found), NOTHING)

    def messages(self, topic: str) -> list[Message]:
        """Return all committed messages of a topic; those that were read before are not read again."""
        found = self._read.setdefault(topic, [])
        if topic not in self.server.admin.list_topics(timeout=120).topics:
            return found
        start = (found[-1].offset() or 0) + 1 if found else 0
        end = self._readable(topic)
        if start < end:
            self._consumer.assign([TopicPartition(topic, 0, start)])
            while start < end:
                message = self._consumer.poll(10)
                assert message is not None, f"nothing comes of {topic!r}"
                error = message.error()
                assert error is None or error.code() == KafkaError._PARTITION_EOF, error
                if error is None:
                    found.append(message)
                start = (message.offset() or 0) + (error is None)
            self._consumer.unassign()
        return found

    def ended(self, topic: str) -> bool:
        """Return whether no transaction is open in a topic."""
        committed, all_ = (self._end(topic, level) for level in IsolationLevel)
        return committed == all_

    def _readable(self, topic: str) -> int:
        """Return where what is committed ends; some transactions stay open, because their producers crashed."""
        last = -1
        for _ in range(MARKED_LOOKS_MAX):
            readable, end = (
                self._end(topic, level) for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
            )
            if readable == end:
                return end
            last = readable
            self._consumer.poll(0.02)
        return last

    def _end(self, topic: str, level: IsolationLevel) -> int:
        place = TopicPartition(topic, 0)
        latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        return int(self.server.admin.list_offsets({place: latest}, isolation_level=level)[place].result(30).offset)

    def drop(self) -> None:
        """Delete all topics, so that the next ones are empty."""
        self._consumer.close()
        for topic in self.server.admin.list_topics(timeout=120).topics:
            if not topic.startswith("__"):
                self.server.drop_topic(topic)


def _pushed(message: Message) -> Pushed:
    headers = {name: (value or b"").decode() for name, value in message.headers() or ()}
    key, value = message.key(), message.value()
    return Pushed(
        (headers["task"], int(headers["transaction"]), int(headers["ordinal"])),
        None if key is None else json.loads(key),
        None if value is None else json.loads(value),
    )
