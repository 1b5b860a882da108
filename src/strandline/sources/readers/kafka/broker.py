"""A Kafka cluster as the reader asks it, and the durable beginnings of its topic.

`Broker` returns where a topic's partitions begin and end, returns messages by range, and commits offsets.  An
implementation makes its blocking calls off its caller's loop, in a `Lane`, and gives up after a bounded time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from strandline.connections.kafka import ANSWER_SECONDS_MAX
from strandline.errors import CorruptionError, Unavailable
from strandline.frontier import Frontier
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch


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


T = TypeVar("T")

CALL_SECONDS_MAX: Final = 2 * ANSWER_SECONDS_MAX
"""After so long its caller waits for a call no longer: some of the clients' limits are those of each of their tries."""


class Lane:
    """The blocking calls of one client: one at a time, each for a bounded time."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._running: asyncio.Future[Any] | None = None

    async def run(self, call: Callable[[], T], seconds: float = CALL_SECONDS_MAX) -> T:
        """Run ``call`` in a thread.

        Raises `Unavailable` if it takes longer than ``seconds``, or an earlier one has not ended.
        """
        if self._running is not None and not self._running.done():
            raise Unavailable(f"{self._name} has not answered an earlier call yet")
        running = asyncio.get_running_loop().run_in_executor(None, call)
        self._running = running
        running.add_done_callback(_seen)
        try:
            return await asyncio.wait_for(asyncio.shield(running), seconds)
        except TimeoutError:
            if running.done():
                raise
            raise Unavailable(f"{self._name} has not answered for {seconds:g} s") from None


def _seen(running: asyncio.Future[Any]) -> None:
    """Take note of the outcome of a call for which its caller waits no longer."""
    if not running.cancelled():
        running.exception()


class _Topic(msgspec.Struct, frozen=True, array_like=True, tag="topic"):
    id: str


class _Partition(msgspec.Struct, frozen=True, array_like=True, tag="partition"):
    number: int
    begins: int


_Entry: TypeAlias = _Topic | _Partition
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(_Entry)


class Beginnings:
    """What is written down of one source's topic, as last seen.  Opened by `open`.

    ``topic``: the topic's id; empty until it is first seen.

    It says which topic a source reads, and at which offset each of its partitions begins.  A topic has a name, and an
    id of its own for ever: a topic that is dropped and created again is another topic, whose offsets mean other
    messages.  Retention removes the oldest messages of a partition; a source begins with the messages that were there
    when it first saw the topic.  Both are written down before anything is bound, so that every incarnation reads the
    same messages.  A partition that is added later begins at 0, because none of its messages can have been missed.

    In the record shard the n-th entry has the time n, as in a sequence of files: two instances that see a new partition
    at once cannot both write it down.
    """

    def __init__(self, shard: RecordShard, epoch: int) -> None:
        self._shard = shard
        self._epoch = epoch
        self._known = 0
        self._offsets: dict[int, int] = {}
        self.topic = ""

    @classmethod
    async def open(cls, shard: RecordShard, epoch: int) -> Beginnings:
        """Return what is kept in ``shard`` (opened under ``epoch``)."""
        opened = cls(shard, epoch)
        await opened.refresh()
        return opened

    @property
    def shard(self) -> str:
        """The shard's id: the source's own, as no other one's."""
        return self._shard.shard

    def __contains__(self, partition: int) -> bool:
        return partition in self._offsets

    def __getitem__(self, partition: int) -> int:
        return self._offsets.get(partition, 0)

    async def refresh(self) -> None:
        """Fetch what others wrote down; what is known here is not read again."""
        await self._shard.refresh()
        if self._shard.upper.at == self._known:
            return
        records = await self._shard.contents(lower=Frontier(self._known))
        if [record.time for record in records] != list(range(self._known, self._known + len(records))):
            raise CorruptionError(f"the beginnings of a topic in shard {self.shard!r} are not numbered without gaps")
        self._learn(self._known, [_decoder.decode(record.data) for record in records])

    async def register(self, topic: str, begins: Mapping[int, int]) -> None:
        """Write down a topic, if none is, and where partitions begin that are not known yet, durably.

        What another instance wrote down meanwhile stays.  Raises:
            FencedError: a newer epoch has taken over.
            Indeterminate: some may be written; `refresh` and look.
        """
        while new := self._unknown(topic, begins):
            first = self._known
            records = [Record(_encoder.encode(entry), first + i, 1) for i, entry in enumerate(new)]
            match await self._shard.append(records, Frontier(first), Frontier(first + len(new))):
                case Appended():
                    self._learn(first, new)
                case UpperMismatch():
                    await self.refresh()
                case Fenced() as outcome:
                    raise fenced(self.shard, outcome, self._epoch)

    def _unknown(self, topic: str, begins: Mapping[int, int]) -> list[_Entry]:
        named: list[_Entry] = [] if self.topic else [_Topic(topic)]
        return named + [_Partition(p, at) for p, at in sorted(begins.items()) if p not in self._offsets]

    def _learn(self, first: int, entries: list[_Entry]) -> None:
        """Take note of entries, numbered from ``first`` on, but for those that another coroutine noted meanwhile."""
        for entry in entries[self._known - first :]:
            match entry:
                case _Topic(id):
                    self.topic = id
                case _Partition(number, begins):
                    self._offsets[number] = begins
            self._known += 1
