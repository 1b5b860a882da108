"""The remap collection: a source's bindings, durable before any data of their times; and the laws of a source.

One record shard per source.  At the time of a binding, each partition that it moves has its old record withdrawn and
its new one inserted, so the collection's contents at ``t`` are the offsets in force at ``t``, one record per partition.

Once the data of a message are durable, no code needs the message's time.  So the remap is compacted to one step below
the data's upper (`compact`): in memory at once, in the shard as its since follows.  So the size of the remap, and the
cost of a mint or a refresh, depend on what is not durable yet, however old the source is.

Promise: any number of instances may mint; each time is bound once, and an instance that comes second reads the binding
instead of inventing one.  So all instances of a source give every message the same time.

R2 (reclocking is `spec.target`) and R3 (each message has at most one time) hold by construction of `Remap` and are
tested against the spec.  A run asserts R1 whenever newer bindings are adopted, and R4 before each commit upstream.  R4
is written without `Remap.resume`, which it checks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

import msgspec

from strandline.errors import CorruptionError
from strandline.frontier import Frontier, Offsets, as_time
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, ShardState, UpperMismatch
from strandline.sources.reclock import NOTHING_READ, Binding, Remap


def only_grows(before: Remap, after: Remap) -> bool:
    """R1: the remap is monotone: upper and since never go back, and at a time that was known it says what it said."""
    known = {b.time for b in (*before.bindings, *after.bindings) if after.since <= Frontier(b.time) < before.upper}
    return (
        before.upper <= after.upper
        and before.since <= after.since
        and all(before.offsets_at(time) == after.offsets_at(time) for time in known)
    )


def forgets_only_durable(resume: Offsets, remap: Remap, durable: Frontier) -> bool:
    """R4: all that upstream may forget happened before ``durable``, the meet of the source's uppers."""
    times = [remap.time_of(partition, offset - 1) for partition, offset in resume.entries]
    return all(time is not None and not durable.beyond(time) for time in times)


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
        """Fetch the bindings that others added; return all that are kept."""
        await self._shard.refresh()
        return await self._adopt(self._shard.state)

    def refuse_fenced(self) -> None:
        """Raise `FencedError` if a newer epoch had been admitted when the remap was last refreshed."""
        self._shard.refuse_fenced()

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
                    self._learn(after)
                case UpperMismatch():
                    await self.refresh()
                case Fenced() as outcome:
                    raise fenced(self.shard, outcome, self._epoch)
        return self._remap

    def compact(self, durable: Frontier) -> None:
        """Forget the times of durable messages: of all that happened before ``durable``, the data's upper.

        One step below it stays distinguishable, which is what a restart resumes from.
        """
        if durable.at:
            self._remap = self._remap.compact(Frontier(min(durable.at, as_time(self._remap.upper)) - 1))

    def _learn(self, remap: Remap) -> None:
        """Take note of bindings, unless another coroutine has found newer ones meanwhile."""
        if self._remap.upper < remap.upper:
            self._remap = remap

    async def _adopt(self, state: ShardState) -> Remap:
        """Take note of what ``state`` holds beyond what is known here: what is known is not read again."""
        known = self._remap
        if state.upper != known.upper:
            if state.since < known.upper:
                records = await self._shard.contents(state, lower=known.upper)
                adopted = known.extended(tuple(_bindings(self.shard, records, known.frontier)), state.upper)
            else:
                records = await self._shard.contents(state)
                adopted = Remap(_bindings(self.shard, records, NOTHING_READ), state.upper).compact(state.since)
                assert only_grows(known, adopted), f"law R1: {known} -> {adopted}"
            self._learn(adopted)
        if self._remap.since < state.since < self._remap.upper:
            self._remap = self._remap.compact(state.since)
        return self._remap


def _difference(before: Remap, after: Remap, time: int) -> Iterator[Record]:
    old, new = set(before.frontier.entries), set(after.frontier.entries)
    for diff, entries in ((-1, old - new), (1, new - old)):
        for entry in sorted(entries):
            yield Record(_encoder.encode(entry), time, diff)


def _bindings(shard: str, records: Iterable[Record], before: Offsets) -> Iterator[Binding]:
    """Add up the records (in order of time) to what is bound at each of their times; ``before`` is what was before."""
    counts: dict[tuple[str, int], int] = dict.fromkeys(before.entries, 1)
    for time, updates in groupby(records, key=lambda record: record.time):
        for record in updates:
            entry = _decoder.decode(record.data)
            counts[entry] = counts.get(entry, 0) + record.diff
        there = {entry: count for entry, count in counts.items() if count}
        counts = there
        if any(count != 1 for count in there.values()) or len({partition for partition, _ in there}) != len(there):
            raise CorruptionError(f"remap shard {shard!r}: at time {time} it holds {there}, not one offset a partition")
        yield Binding(time, Offsets(list(there)))
