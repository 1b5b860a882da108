"""The remap collection: a source's bindings, durable before any data of their times.

One record shard per source.  At the time of a binding, each partition that it moves has its old record withdrawn and
its new one inserted, so the collection's contents at ``t`` are the offsets in force at ``t``, one record a partition.

Promise: any number of instances may mint; each time is bound once, and an instance that comes second reads the binding
instead of inventing one.  So all instances of a source give every message the same time.

Source: design page "sources" (the remap collection; two commits only).  Law R1 is asserted whenever newer bindings
are adopted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from strandline.errors import CorruptionError
from strandline.frontier.gauge import Offsets
from strandline.persist.records import Record, RecordShard
from strandline.persist.state import Appended, Fenced, ShardState, UpperMismatch
from strandline.persist.write import fenced
from strandline.sources.invariants import only_grows
from strandline.sources.reclock import Binding, Remap

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(tuple[str, int])


class RemapShard:
    """The bindings of one source, as last seen, and the way to add one.  Opened by `open`."""

    def __init__(self, shard: RecordShard, epoch: int) -> None:
        self._shard = shard
        self._epoch = epoch
        self._remap = Remap()

    @classmethod
    async def open(cls, shard: RecordShard, epoch: int) -> RemapShard:
        """Return the remap kept in ``shard`` (opened under ``epoch``), with the newest bindings."""
        opened = cls(shard, epoch)
        await opened.refresh()
        return opened

    @property
    def shard(self) -> str:
        """The shard's id."""
        return self._shard.shard

    @property
    def remap(self) -> Remap:
        """The bindings, as last seen."""
        return self._remap

    async def refresh(self) -> Remap:
        """Fetch the bindings that others added; return all."""
        await self._shard.refresh()
        return await self._adopt(self._shard.state)

    async def mint(self, time: int, offsets: Offsets) -> Remap:
        """Make sure that ``time`` is bound, durably: to ``offsets``, or to whatever another instance bound it to first.

        A binding covers what earlier ones cover, so offsets that are stale bind nothing new, and no binding goes back.

        Raises:
            FencedError: a newer epoch has taken over.
            Indeterminate: it may be bound; `refresh` and look.
        """
        while self._remap.upper.beyond(time):
            before, after = self._remap, self._remap.mint(time, offsets)
            match await self._shard.append(list(_difference(before, after, time)), before.upper, after.upper):
                case Appended():
                    self._remap = after
                case UpperMismatch():
                    await self.refresh()
                case Fenced() as outcome:
                    raise fenced(self.shard, outcome, self._epoch)
        return self._remap

    async def _adopt(self, state: ShardState) -> Remap:
        if state.upper != self._remap.upper or state.since != self._remap.since:
            records = await self._shard.contents(state)
            adopted = Remap(tuple(_bindings(self.shard, records)), state.upper, state.since)
            assert only_grows(self._remap, adopted), f"law R1: {self._remap} -> {adopted}"
            self._remap = adopted
        return self._remap


def _difference(before: Remap, after: Remap, time: int) -> Iterator[Record]:
    old, new = set(before.frontier.entries), set(after.frontier.entries)
    for diff, entries in ((-1, old - new), (1, new - old)):
        for entry in sorted(entries):
            yield Record(_encoder.encode(entry), time, diff)


def _bindings(shard: str, records: Iterable[Record]) -> Iterator[Binding]:
    """Add up the records (in order of time) to what is bound at each of their times."""
    counts: dict[tuple[str, int], int] = {}
    for time, updates in groupby(records, key=lambda record: record.time):
        for record in updates:
            entry = _decoder.decode(record.data)
            counts[entry] = counts.get(entry, 0) + record.diff
        there = {entry: count for entry, count in counts.items() if count}
        counts = there
        if any(count != 1 for count in there.values()) or len({partition for partition, _ in there}) != len(there):
            raise CorruptionError(f"remap shard {shard!r}: at time {time} it holds {there}, not one offset a partition")
        yield Binding(time, Offsets(list(there)))
