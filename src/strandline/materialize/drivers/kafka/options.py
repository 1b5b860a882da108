"""The options of a Kafka endpoint, and librdkafka's settings for its clients."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from strandline.connections.kafka import ANSWER_SECONDS_MAX, KafkaConnection, Settings, for_client
from strandline.options import COUNT, DURATION_MS, TEXT, one_of, option

DELIVERY_SECONDS_MAX: Final = 30
"""A message that no broker has taken after so long fails its transaction."""
QUEUED_KB_MAX: Final = 32 * 1024
"""What the client holds of messages that no broker has taken yet; then `produce` waits."""
TRANSACTION_MS_MIN: Final = ANSWER_SECONDS_MAX * 1_000
"""librdkafka takes no shorter one than its time limit of an answer."""
assert ANSWER_SECONDS_MAX < DELIVERY_SECONDS_MAX


class Compression(Enum):
    """How batches of messages are compressed."""

    NONE = "none"
    GZIP = "gzip"
    SNAPPY = "snappy"
    LZ4 = "lz4"
    ZSTD = "zstd"


@dataclass(frozen=True, kw_only=True)
class KafkaEndpoint(KafkaConnection):
    """Which cluster, and how it is written to.

    >>> KafkaEndpoint(servers="k:9092", transaction_timeout=1)
    Traceback (most recent call last):
        ...
    ValueError: option 'transaction_timeout' must be 5s at least
    """

    compression: Compression = option(one_of(Compression), "How batches of messages are compressed.", default="none")
    partitions: int | None = option(
        COUNT,
        "How many partitions a topic gets that Strandline creates; without it, the brokers' default.",
        default=None,
    )
    replication_factor: int | None = option(
        COUNT, "How many replicas each of them gets; without it, the brokers' default.", default=None
    )
    max_request_size: int = option(COUNT, "The largest message, in bytes, as the topic allows it.", default="1000000")
    transaction_timeout: int = option(
        DURATION_MS,
        "The longest transaction; at most what the brokers allow (transaction.max.timeout.ms, 15m unless changed).",
        default="10m",
    )
    checkpoints: str = option(
        TEXT,
        "The topic with the progress of every materialization. Two installations of Strandline on one cluster need "
        "two of them.",
        default="strandline-checkpoints",
    )

    def __post_init__(self) -> None:
        """Raise `ValueError` if options do not go together."""
        KafkaConnection.__post_init__(self)
        if self.transaction_timeout < TRANSACTION_MS_MIN:
            raise ValueError("option 'transaction_timeout' must be 5s at least")
        for name in ("partitions", "replication_factor", "max_request_size"):
            if getattr(self, name) == 0:
                raise ValueError(f"option {name!r} must be 1 at least")


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaResource:
    """Where the changes of a collection go."""

    topic: str = option(TEXT, "The topic; created if it is missing.")


def for_producer(at: KafkaEndpoint, transactional_id: str) -> Settings:
    """Return librdkafka's settings for the producer of one key range of a task."""
    return {
        **for_client(at),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": str(at.transaction_timeout),
        "message.timeout.ms": str(min(DELIVERY_SECONDS_MAX * 1000, at.transaction_timeout)),
        "message.max.bytes": str(at.max_request_size),
        "queue.buffering.max.kbytes": str(QUEUED_KB_MAX),
        "queue.buffering.max.messages": "100000",
        "linger.ms": "20",
        "compression.type": at.compression.value,
        "partitioner": "murmur2_random",  # a key is where Kafka's own producers put it
    }


def for_progress(at: KafkaEndpoint) -> Settings:
    """Return librdkafka's settings for the consumer that reads the topic of checkpoints."""
    return {
        **for_client(at),
        "group.id": "strandline-endpoint",  # it joins no group and commits nothing
        "isolation.level": "read_committed",
        "enable.auto.commit": "false",
        "enable.auto.offset.store": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "earliest",
        "check.crcs": "true",
        "fetch.wait.max.ms": "20",
    }
