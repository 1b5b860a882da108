"""What the Kafka client takes over from librdkafka at once, over a consumer in memory."""

from __future__ import annotations

import asyncio
from typing import Any

import confluent_kafka as kafka
import pytest

from strandline.options import understood
from strandline.sources.readers.kafka.broker import Message, Span
from strandline.sources.readers.kafka.client import FETCH_BYTES, FETCH_MESSAGES, FETCH_STEP, KafkaBroker
from strandline.sources.readers.kafka.options import KafkaOptions

OPTIONS = understood("source 's'", KafkaOptions, {"servers": "k:9092", "topic": "t", "format": "text"})


class Polled:
    """A message as librdkafka gives it."""

    def __init__(self, offset: int, size: int) -> None:
        self._offset, self._size = offset, size

    def error(self) -> None:
        """It is none."""

    def partition(self) -> int:
        """Return the only one."""
        return 0

    def offset(self) -> int:
        """Return where it stands."""
        return self._offset

    def timestamp(self) -> tuple[int, int]:
        """Return when it was made."""
        return kafka.TIMESTAMP_CREATE_TIME, 1

    def key(self) -> None:
        """It has none."""

    def value(self) -> bytes:
        """Return its bytes, which are made now."""
        return bytes(self._size)

    def headers(self) -> None:
        """It has none."""


class Consumer:
    """A consumer whose queue holds messages of these sizes."""

    def __init__(self, sizes: list[int]) -> None:
        self._queue = [Polled(offset, size) for offset, size in enumerate(sizes)]

    def assign(self, _: Any) -> None:
        """Begin."""

    def unassign(self) -> None:
        """End."""

    def incremental_unassign(self, _: Any) -> None:
        """End, of one partition."""

    def poll(self, _: float) -> Polled | None:
        """Return the first message."""
        return self._queue.pop(0) if self._queue else None

    def consume(self, most: int, _: float) -> list[Polled]:
        """Return as many as are there, and were asked for."""
        taken, self._queue = self._queue[:most], self._queue[most:]
        return taken


async def fetched(sizes: list[int], end: int) -> list[list[Message]]:
    """Return what a fetch gives at once, each time."""
    broker = KafkaBroker(OPTIONS, "g")
    broker._fetcher = Consumer(sizes)
    return [list(some) async for some in broker.fetch({0: Span(0, end)})]


@pytest.mark.parametrize("size", [0, 10, 100_000, FETCH_BYTES + 1])
def test_what_is_taken_over_at_once_is_bounded_by_bytes_too(size: int) -> None:
    """Damage: 2 000 messages of a megabyte are taken over at once; or one is left out, or a large one never comes."""
    count = 10 if size > FETCH_BYTES else 500 if size > 1_000 else 5_000
    found = asyncio.run(fetched([size] * (count + 20), count))
    assert [message.offset for some in found for message in some] == [*range(count)]
    assert all(len(some) < FETCH_MESSAGES + FETCH_STEP for some in found)
    assert all(sum(message.size for message in some) < FETCH_BYTES + FETCH_STEP * max(size, 1) for some in found)
