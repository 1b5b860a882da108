"""Topics of a real broker, made and filled: for tests and for benchmarks.

A broker that was just made, or a topic, is not known everywhere at once, so each call waits until it can be used.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaException, Message, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec  # type: ignore[attr-defined]

ANSWER_SECONDS_MAX: Final = 180


class Silent:
    """A logger that says nothing: tests kill brokers, and clients complain of it on standard error."""

    def log(self, *_: Any) -> None:
        """Say nothing."""


SILENT: Final = Silent()


def admin(servers: str) -> AdminClient:
    """Return a client that makes and drops topics."""
    settings: dict[str, Any] = {"bootstrap.servers": servers, "logger": SILENT}
    return AdminClient(settings)


def producer(servers: str, **settings: Any) -> Producer:
    """Return a producer; ``settings`` are librdkafka's, with ``_`` for the dots."""
    given = {name.replace("_", "."): value for name, value in settings.items()}
    return Producer({"bootstrap.servers": servers, "linger.ms": 5, "logger": SILENT, **given})


def make(client: AdminClient, topic: str, partitions: int, config: Mapping[str, str]) -> None:
    """Make a topic."""
    done(client.create_topics([NewTopic(topic, partitions, 1, config=dict(config))]))
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while not _is_ready(client, topic, partitions):
        assert time.monotonic() < deadline, f"topic {topic!r} cannot be used"


def grow(client: AdminClient, topic: str, partitions: int) -> None:
    """Give a topic more partitions."""
    done(client.create_partitions([NewPartitions(topic, partitions)]))
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while not _is_ready(client, topic, partitions):
        assert time.monotonic() < deadline, f"topic {topic!r} does not grow"


def _is_ready(client: AdminClient, topic: str, partitions: int) -> bool:
    try:
        return len(ends(client, topic)) == partitions
    except KafkaException:
        return False


def drop(client: AdminClient, topic: str) -> None:
    """Delete a topic and wait until it is gone."""
    done(client.delete_topics([topic]))
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while topic in client.list_topics(timeout=5).topics:
        assert time.monotonic() < deadline


def ends(client: AdminClient, topic: str) -> dict[int, int]:
    """Return where each partition of a topic ends."""
    described = client.describe_topics(TopicCollection([topic]))[topic].result(ANSWER_SECONDS_MAX)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, each.id): latest for each in described.partitions}
    return {at.partition: end.result(ANSWER_SECONDS_MAX).offset for at, end in client.list_offsets(asked).items()}


def produce(
    to: Producer, topic: str, values: Iterable[bytes | str | None], partitions: Sequence[int], **others: Any
) -> None:
    """Append messages to the partitions in turn, durably.  ``others``: of ``Producer.produce``."""
    failures = list[str]()

    def delivered(error: Any, _: Message) -> None:
        if error is not None:
            failures.append(str(error))

    for count, value in enumerate(values):
        partition = partitions[count % len(partitions)]
        while True:
            try:
                to.produce(topic, value, partition=partition, on_delivery=delivered, **others)
                break
            except BufferError:
                to.poll(0.05)
        to.poll(0)
    assert to.flush(ANSWER_SECONDS_MAX) == 0
    assert not failures, failures[0]


def done(futures: Mapping[Any, Any]) -> None:
    """Wait until everything that was asked for is done."""
    for future in futures.values():
        future.result(ANSWER_SECONDS_MAX)
