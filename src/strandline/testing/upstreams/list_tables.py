"""An upstream of several tables in memory that keeps no past: partitions of transactions, snapshots, real retention.

What a table held at some offsets can be asked for only of a snapshot that was taken just then; a snapshot ends with its
reader.  What was committed is gone.  A partition is one of several logs, each in an order of its own; a transaction
stands at one offset of one of them.  How often each was read is counted (``delivered``).

Rows are ``key``, ``value``.  With `TakenBack` records a change inserts a row or withdraws it as it was; with `Keyed`
ones it says what its key has from then on (value None: no row), and each key keeps to one partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from strandline.algebra.messages import GONE, ORDER
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.sources.reader import Keyed, Records, TakenBack
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.testing.lists.list_engine import Listed

SCHEMA: Final = Schema((Column("key", "bigint"), Column("value", "bigint")))
Row: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a row of ``table``; see the module."""

    table: str
    key: int
    value: int | None
    diff: int = 1


Transaction: TypeAlias = tuple[Change, ...]
Place: TypeAlias = tuple[str, str, int]
"""A table, a partition and an offset."""


@dataclass
class Tables:
    """The upstream, which survives every crash of a reader.

    ``announced``: how far a probe sees each partition; what lies beyond is there and not announced yet.
    ``forgotten``: what was committed, or was before the log.  ``connection``: snapshots of older ones are lost.
    """

    keyed: bool = False
    partitions: dict[str, list[Transaction]] = field(default_factory=dict)
    announced: Offsets = NOTHING_READ
    forgotten: Offsets = NOTHING_READ
    down: bool = False
    connection: int = 0
    delivered: Counter[Place] = field(default_factory=Counter)

    def produce(self, partition: str, *changes: Change, announce: bool = True) -> None:
        """Append a transaction."""
        self.partitions.setdefault(partition, []).append(changes)
        if announce:
            self.announce(partition)

    def begin_log(self) -> None:
        """Keep nothing of what is there but the rows that it comes to: the log begins here."""
        self.forgotten = self.end()

    def announce(self, partition: str) -> None:
        """Let probes see all of a partition."""
        self.announced = self.announced.join(Offsets({partition: len(self.partitions[partition])}))

    def end(self) -> Offsets:
        """Return the offsets after all that is there."""
        return Offsets({partition: len(log) for partition, log in self.partitions.items()})

    def held(self, table: str, offsets: Offsets) -> Counter[Row]:
        """Return the rows of ``table`` at ``offsets``: what no reader could ask for later."""
        rows: Counter[Row] = Counter()
        newest: dict[int, int | None] = {}
        for _, _, change in self.between(table, NOTHING_READ, offsets):
            if self.keyed:
                newest[change.key] = change.value
            else:
                assert change.value is not None, "a row that is taken back is given as it was"
                rows[change.key, change.value] += change.diff
        rows.update((key, value) for key, value in newest.items() if value is not None)
        return Counter({row: count for row, count in rows.items() if count})

    def between(self, table: str, lower: Offsets, upper: Offsets) -> Iterator[tuple[str, int, Change]]:
        """Yield the changes of ``table`` from ``lower`` on and before ``upper``, with partition and offset."""
        for partition, end in upper.entries:
            for offset in range(lower[partition], end):
                for change in self.partitions[partition][offset]:
                    if change.table == table:
                        yield partition, offset, change


class TablesReader:
    """A `SourceReader` of `Tables`."""

    def __init__(self, upstream: Tables) -> None:
        self.upstream = upstream
        self._connection = upstream.connection
        self._snapshots: dict[str, tuple[Offsets, Counter[Row]]] = {}

    @property
    def bounded(self) -> bool:
        """Return that upstream deletes transactions as soon as it may."""
        return True

    def records(self, table: str) -> Records:
        """See `SourceReader.records`."""
        return Keyed(("key",)) if self.upstream.keyed else TakenBack()

    async def snapshot(self, table: str) -> Offsets | None:
        """See `SourceReader.snapshot`: it stands at what is there, announced or not."""
        self._connect()
        if table not in self._snapshots:
            now = self.upstream.end()
            self._snapshots[table] = now, self.upstream.held(table, now)
        return self._snapshots[table][0]

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        self._connect()
        return self.upstream.announced

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""
        found: list[dict[str, Any]] = []
        try:
            self._connect()
            for each in slices:
                self._read(each, table, found)
        except (SourceError, Unavailable):
            self._snapshots.pop(table, None)
            raise
        return Rows(Listed((*SCHEMA.names, TIME, DIFF, *((ORDER, GONE) if self.upstream.keyed else ())), tuple(found)))

    def _read(self, each: Slice, table: str, found: list[dict[str, Any]]) -> None:
        lower = each.lower
        if lower == NOTHING_READ and each.upper != NOTHING_READ:
            lower = self._begin(table, each, found)
        for partition, end in each.upper.entries:
            self._refuse_missing(partition, lower[partition], end)
        self._deliver(table, lower, each.upper)
        for _, offset, change in self.upstream.between(table, lower, each.upper):
            found.append(self._record(change, offset + 1, each.time))

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""
        self._connect()
        self.upstream.forgotten = self.upstream.forgotten.join(resume)

    async def close(self) -> None:
        """See `SourceReader.close`: its snapshots are lost."""
        self._snapshots.clear()

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return True

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()

    def _connect(self) -> None:
        if self.upstream.down:
            raise Unavailable("the upstream does not answer")
        if self._connection != self.upstream.connection:
            self._connection = self.upstream.connection
            self._snapshots.clear()

    def _begin(self, table: str, whole: Slice, found: list[dict[str, Any]]) -> Offsets:
        """Add the rows of the snapshot to what is ``found``; return where it stands."""
        if table not in self._snapshots:
            if self.upstream.forgotten != NOTHING_READ:
                raise Unavailable(f"the snapshot of {table!r} was lost")
            return NOTHING_READ  # the log holds all that ever was
        at, rows = self._snapshots[table]
        if not at <= whole.upper:
            raise SourceError(f"the snapshot of {table!r} stands at {at.entries}, beyond {whole.upper.entries}")
        for (key, value), count in rows.items():
            found += [self._record(Change(table, key, value), 0, whole.time)] * count
        self._deliver(table, NOTHING_READ, at)
        return at

    def _deliver(self, table: str, lower: Offsets, upper: Offsets) -> None:
        places = {(table, partition, offset) for partition, offset, _ in self.upstream.between(table, lower, upper)}
        self.upstream.delivered.update(places)

    def _refuse_missing(self, partition: str, start: int, end: int) -> None:
        there = len(self.upstream.partitions.get(partition, ()))
        if start < min(end, self.upstream.forgotten[partition]):
            raise SourceError(f"transaction {start} of partition {partition!r} is forgotten upstream")
        if there < end:
            raise SourceError(f"transaction {there} of partition {partition!r} is not there")

    def _record(self, change: Change, order: int, time: int) -> dict[str, Any]:
        row = {"key": change.key, "value": change.value, TIME: time, DIFF: change.diff}
        return row | {ORDER: order, GONE: change.value is None} if self.upstream.keyed else row
