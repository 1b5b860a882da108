"""What the Kafka reader asks of a cluster: where a topic's partitions begin and end, messages by range, and a commit.

An implementation keeps what blocks off its caller's loop, and gives up after a bounded time.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Message(NamedTuple):
    """One message as it is in the log.  ``timestamp_ms``: None where the log has none."""

    partition: int
    offset: int
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def size(self) -> int:
        """How many bytes of a producer's it has.

        >>> Message(0, 7, None, b"key", None, (("a", b"1"), ("b", None))).size
        6
        """
        named = sum(len(name) + len(data or b"") for name, data in self.headers)
        return len(self.key or b"") + len(self.value or b"") + named


class Ends(NamedTuple):
    """The first offset that a partition still has, and its last stable one: messages before it are committed."""

    low: int
    stable: int


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as it is now.  ``id``: its own for ever, so that one made anew under the same name is another."""

    id: str
    partitions: Mapping[int, Ends]


class Span(NamedTuple):
    """Offsets with ``lower <= offset < upper``."""

    lower: int
    upper: int


class OutOfRange(Exception):
    """The log does not have what was asked for: it ends before, or it begins after."""


class Broker(Protocol):
    """One topic of one cluster.  Any call raises `Unavailable` if the cluster does not answer or does not allow it."""

    async def look(self) -> Topic | None:
        """Return the topic as it is now; None: there is none."""
        ...

    def fetch(self, spans: Mapping[int, Span]) -> AsyncGenerator[Sequence[Message], None]:
        """Yield the messages of these spans, by partition in order; of aborted transactions none.

        They come some at a time, as few as have some megabytes; one that is larger comes all the same.
        Offsets may have no message: a compacted topic has gaps, and transactions leave marks.

        Raises `OutOfRange` if a span is not wholly there.  One call at a time.
        """
        ...

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """Set the consumer group's offsets."""
        ...

    async def close(self) -> None:
        """Close all connections.  May be called twice."""
        ...
