"""A topic in memory, for readers in a simulation and in tests.

Offsets may have gaps, as in a compacted topic or after a transaction; messages may be deleted from the front; the topic
may be made anew, and the broker may be away.

See `strandline.sources.readers.kafka.broker`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from strandline.errors import Unavailable
from strandline.sources.readers.kafka.broker import Ends, Message, OutOfRange, Span, Topic

BATCH: Final = 2
"""How many offsets a reader is given at once: few, so that what it reads comes in several."""


@dataclass
class MemoryLog:
    """One partition: its messages by offset, the first offset that is there, and the last stable one."""

    messages: dict[int, Message] = field(default_factory=dict)
    low: int = 0
    stable: int = 0


@dataclass
class MemoryTopic:
    """The topic, which survives every crash of a reader.

    ``id`` None: there is no such topic.  ``committed``: the consumer group's offsets, and how often each was set.
    """

    logs: dict[int, MemoryLog] = field(default_factory=dict)
    id: str | None = "topic-1"
    away: bool = False
    committed: dict[int, int] = field(default_factory=dict)
    commits: list[dict[int, int]] = field(default_factory=list)

    def produce(
        self, partition: int, *values: bytes | None, key: bytes | None = None, at_ms: int | None = 1_700_000_000_000
    ) -> None:
        """Append messages."""
        log = self.logs.setdefault(partition, MemoryLog())
        for value in values:
            log.messages[log.stable] = Message(partition, log.stable, at_ms, key, value)
            log.stable += 1

    def skip(self, partition: int, offsets: int = 1) -> None:
        """Append offsets that hold no message, as the marks of transactions do."""
        self.logs.setdefault(partition, MemoryLog()).stable += offsets

    def compact(self, partition: int, *offsets: int) -> None:
        """Remove messages; their offsets stay."""
        for offset in offsets:
            del self.logs[partition].messages[offset]

    def forget(self, partition: int, before: int) -> None:
        """Delete what is before an offset, as retention does."""
        log = self.logs[partition]
        log.low = max(log.low, before)
        log.messages = {offset: message for offset, message in log.messages.items() if offset >= log.low}

    def lose(self, partition: int, end: int) -> None:
        """Lose what is from an offset on, as a cluster whose new leader had fallen behind."""
        log = self.logs[partition]
        log.stable = end
        log.messages = {offset: message for offset, message in log.messages.items() if offset < end}

    def make_anew(self) -> None:
        """Drop the topic and make another one of its name."""
        self.logs, self.id = {p: MemoryLog() for p in self.logs}, f"{self.id}'"


class MemoryBroker:
    """A `Broker` of a `MemoryTopic`.  ``fetched`` are the spans that were asked for, in that order."""

    def __init__(self, topic: MemoryTopic) -> None:
        self.topic = topic
        self.fetched: list[dict[int, Span]] = []

    async def look(self) -> Topic | None:
        """See `Broker.look`."""
        self._reach()
        if self.topic.id is None:
            return None
        return Topic(self.topic.id, {p: Ends(log.low, log.stable) for p, log in self.topic.logs.items()})

    async def fetch(self, spans: Mapping[int, Span]) -> AsyncGenerator[Sequence[Message], None]:
        """See `Broker.fetch`: one partition after the other."""
        self.fetched.append(dict(spans))
        for partition, span in spans.items():
            self._reach()
            log = self.topic.logs.get(partition, MemoryLog())
            if not (log.low <= span.lower and span.upper <= log.stable):
                raise OutOfRange(f"partition {partition} has [{log.low}, {log.stable})")
            for begin in range(*span, BATCH):
                offsets = range(begin, min(begin + BATCH, span.upper))
                yield [log.messages[offset] for offset in offsets if offset in log.messages]

    async def commit(self, offsets: Mapping[int, int]) -> None:
        """See `Broker.commit`."""
        self._reach()
        self.topic.committed |= offsets
        self.topic.commits.append(dict(offsets))

    async def close(self) -> None:
        """Nothing is open between calls."""

    def _reach(self) -> None:
        if self.topic.away:
            raise Unavailable("Kafka in memory does not answer")
