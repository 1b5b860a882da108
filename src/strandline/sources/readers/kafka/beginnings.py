"""The durable beginnings of a topic: which topic a source reads, and at which offset each of its partitions begins.

A topic has a name, and an id of its own for ever: one that is dropped and made anew is another topic, whose offsets
mean other messages.  Retention removes the oldest messages of a partition; a source begins with what was there when it
first saw the topic.  Both are written down before anything is bound, so that every incarnation reads the same
messages.  A partition that comes later begins at 0, because nothing of it can have been missed.

In the record shard the n-th thing written down has the time n, as in a sequence of files: two instances that see a new
partition at once cannot both write it down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from strandline.errors import CorruptionError
from strandline.frontier.antichain import Frontier
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch


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
