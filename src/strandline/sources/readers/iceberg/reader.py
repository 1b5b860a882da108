"""The Iceberg reader: what a table holds when the source begins, then what each further snapshot changes.

An offset is a sequence number: it covers the snapshots of the branch up to that number.  The first slice is the newest
snapshot; any later one is what the snapshots in it change.  A snapshot without delete files says in its own manifests
which data files come and go; their rows come and go.  Where there are delete files (position deletes, deletion
vectors), what the snapshot before it held and what it holds are compared, file by file.  Snapshots that only rearrange
files (operation ``replace``) are not looked at.  So the collection is at every time what the branch was at some
snapshot.

A branch that is set back to an older snapshot stops the source until there is a newer one, which is then compared with
what was read.

Rows go through pyiceberg and Arrow, one data file after the other, since Iceberg has no jar for this Spark.  Large
files whose columns lie in them as they are declared are read by the data plane itself, as Parquet.

What stops the source, each with a `SourceError`: a snapshot that is expired before it was read, or a file that is gone;
another table in its place; a declared column that is dropped, even if one of its name is added again, or has a type
that the declared one does not hold; equality deletes, and whatever else pyiceberg does not read.  Table and columns are
noted by their ids when the source begins, so a column that is renamed is still read.  Columns that upstream gets are
added here, or left out; those that come here later: `sources/readers/tabular.py`.

Source: the Iceberg table specification.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
from pyiceberg.table.snapshots import Snapshot

from strandline.algebra.schema import Schema
from strandline.errors import SourceError
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.records import RecordShard
from strandline.plane import Staging
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW
from strandline.sources.reader import ColumnsAdded, FileDecoder, Records, TakenBack
from strandline.sources.readers.iceberg.table import Columns, Portion, StoredTable
from strandline.sources.readers.recorded import amended, note, noted
from strandline.sources.readers.tabular import Lacking, Noted, StoredFile, TableRows, declarable
from strandline.sources.reclock import NOTHING_READ, Slice

PARTITION: Final = ""
"""A branch is one partition: its snapshots are its order."""
BACK: Final = Problem(
    "iceberg-table-went-back",
    "{table} went back: its snapshot {read} was read, and its newest one is {newest}",
    Stopped.SOURCE,
    (Way("commit to the table: the source goes on with a newer snapshot"),),
)
ANOTHER: Final = Problem(
    "iceberg-table-made-anew",
    "{table} is another table: its id was {known} and is {id}; it was dropped and created again",
    Stopped.SOURCE,
    (ANEW,),
)
EXPIRED: Final = Problem(
    "iceberg-snapshot-expired",
    "{table}: the snapshot with sequence number {number} is expired, and what came after it was not read; there are "
    "{there}; let snapshots expire later",
    Stopped.SOURCE,
    (ANEW,),
)


class Seen(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot as it was first seen: its number, the id of its parent, and that of the schema it was written with."""

    number: int
    parent: int | None
    schema: int | None


class Known(msgspec.Struct, frozen=True):
    """Which table the source reads, and which of its columns.

    ``seen``: the snapshots, by id, that a reader had seen when it could not go on without columns: they may be expired
    once there is a reader that has these.
    """

    id: str
    columns: dict[str, int]
    read: Noted = msgspec.field(default_factory=Noted)
    seen: dict[int, Seen] = {}


class IcebergReader:
    """Reads one branch of a table.  See `SourceReader`."""

    bounded = True

    def __init__(
        self,
        table: StoredTable,
        engine: Staging,
        decoder: FileDecoder,
        schema: Schema,
        shard: RecordShard,
        epoch: int,
        lacking: Lacking,
    ) -> None:
        self._table = table
        self._schema = schema
        self._shard = shard
        self._epoch = epoch
        self._rows = TableRows(engine, decoder, schema, table.name, table.item)
        self._lacking = lacking
        self._known: Known | None = None
        self._durable = 0
        self._reached = 0
        self._seen: dict[int, Seen] = {}

    def records(self, table: str) -> Records:
        """Snapshots take rows back."""
        return TakenBack()

    async def snapshot(self, table: str) -> Offsets | None:
        """The newest snapshot: it can be asked for again until upstream expires it."""
        return await self.upstream_frontier()

    async def upstream_frontier(self) -> Offsets:
        """Return the sequence number of the branch's newest snapshot."""
        await self._load()
        head = self._table.head()
        number = _number(head) if head is not None else 0
        if number < max(self._reached, self._durable):
            read = max(self._reached, self._durable)
            raise SourceError(BACK.said(table=self._table.name, read=read, newest=number))
        if self._durable and self._durable != number and not self._reached:
            self._chain(self._durable, number)
        if head is not None:
            self._reached = number
            # Expiry may forget the parents of the snapshots that are left.
            for own, each in self._table.snapshots().items():
                if _number(each) >= self._durable:
                    self._seen.setdefault(own, Seen(_number(each), each.parent_snapshot_id, each.schema_id))
        return Offsets({PARTITION: number})

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return the snapshot, or what snapshots changed, of each slice."""
        columns = await self._load()
        if slices and slices[0].lower != slices[-1].upper:
            await self._settle(columns, slices[0].lower[PARTITION])
        files = await asyncio.to_thread(lambda: [file for each in slices for file in self._files(each, columns)])
        return await self._rows.read(files, slices[-1].upper if slices else NOTHING_READ, locate=locate)

    async def commit(self, resume: Offsets) -> None:
        """Remember what is durable: its rows are not held any longer.  Iceberg itself decides what expires."""
        self._durable = max(self._durable, resume[PARTITION])
        self._seen = {own: told for own, told in self._seen.items() if told.number >= self._durable}
        self._rows.release(resume)

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """Whether the files that were last read are small."""
        return self._rows.small

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return self._lacking.notices

    async def close(self) -> None:
        """Forget the rows that were read."""
        self._rows.close()

    async def _load(self) -> Columns:
        """Ask for the newest metadata, and make sure that table and columns are those that the source began with."""
        await asyncio.to_thread(self._table.load)
        if self._known is None:
            self._known = await noted(self._shard, Known)
            self._seen = {} if self._known is None else dict(self._known.seen)
        if self._known is None:
            found = self._table.columns(self._schema)
            begun = Noted.begun(self._schema, self._table.schema.names)
            self._known = await note(self._shard, self._epoch, Known(self._table.id, dict(found.ids), begun))
        if self._known.read.first is None:
            begun = Noted.begun(self._schema, self._table.schema.names)
            begun = msgspec.structs.replace(begun, first=[*self._known.columns])
            self._known = await amended(self._shard, self._epoch, msgspec.structs.replace(self._known, read=begun))
        if self._known.id != self._table.id:
            about = {"table": self._table.name, "known": self._known.id, "id": self._table.id}
            raise SourceError(ANOTHER.said(**about, item=self._table.item))
        return self._table.columns(self._schema, self._known.columns)

    async def _settle(self, columns: Columns, lower: int) -> None:
        """Note which columns are read from a snapshot on.  Raises `ColumnsAdded` if the table has others to add."""
        assert self._known is not None, "it was noted when the table was loaded"
        while True:
            come = columns.names.keys() - self._known.columns.keys()
            read = self._known.read.adopted(self._schema, lower).seen(come, lower)
            ids = {**columns.ids, **self._known.columns}
            changed = msgspec.structs.replace(self._known, columns=ids, read=read)
            if changed == self._known:
                break
            self._known = await amended(self._shard, self._epoch, changed)
        try:
            self._lacking.look(
                self._table.version, lambda: declarable(self._table.schema, self._table.columns), self._known.read
            )
        except ColumnsAdded:
            if self._seen != self._known.seen:
                told = msgspec.structs.replace(self._known, seen=self._seen)
                self._known = await amended(self._shard, self._epoch, told)
            raise

    def _corrected(self, lower: int, columns: Columns) -> frozenset[str]:
        """Return the columns that rows which are held at ``lower`` were read without, and may have values in."""
        assert self._known is not None, "it was noted when the table was loaded"
        names = self._known.read.corrected(lower) & columns.names.keys()
        ids = {columns.ids[name] for name in names}
        written = next((each.schema for each in self._seen.values() if each.number == lower), None)
        return names if names and self._table.may_have(written, ids) else frozenset()

    def _files(self, each: Slice, columns: Columns) -> Iterator[StoredFile]:
        lower, upper = each.lower[PARTITION], each.upper[PARTITION]
        if lower == upper:
            return
        if lower:
            if names := self._corrected(lower, columns):
                before = self._table.held(self._numbered(lower))
                yield from self._stored([(-1, portion) for portion in before], columns.without(names), each.time)
                yield from self._stored([(1, portion) for portion in before], columns, each.time)
            changed = self._changed(lower, upper)
        else:
            changed = [(1, portion) for portion in self._table.held(self._numbered(upper))]
        yield from self._stored(changed, columns, each.time)

    def _stored(self, changed: Sequence[tuple[int, Portion]], columns: Columns, time: int) -> Iterator[StoredFile]:
        for diff, portion in changed:
            file = portion.task.file
            yield StoredFile(
                time,
                diff,
                file.file_path,
                file.file_size_in_bytes,
                lambda portion=portion: self._table.tables(portion, columns),  # type: ignore[misc]
                None if portion.task.delete_files or columns.lacking else self._table.local_path(file),
                columns.ids,
            )

    def _changed(self, lower: int, upper: int) -> list[tuple[int, Portion]]:
        """Return the portions that come and go from one snapshot to a later one: those that do both do neither."""
        chain = self._chain(lower, upper)
        if chain is None:
            return self._compared(self._numbered(lower), self._numbered(upper))
        there, found = self._table.snapshots(), list[tuple[int, Portion]]()
        for snapshot in chain:
            step = self._table.step(snapshot)
            if step is None:
                before = there.get(snapshot.parent_snapshot_id or 0)
                if before is None:
                    raise self._expired(lower)
                step = self._compared(before, snapshot)
            found += step
        return _net(found)

    def _compared(self, before: Snapshot, after: Snapshot) -> list[tuple[int, Portion]]:
        held = [(-1, portion) for portion in self._table.held(before)]
        return _net(held + [(1, portion) for portion in self._table.held(after)])

    def _chain(self, lower: int, upper: int) -> list[Snapshot] | None:
        """Return the snapshots after ``lower`` up to ``upper``, oldest first; None if one is no ancestor of the other.

        Raises `SourceError` if one of them is expired.
        """
        there = self._table.snapshots()
        found: list[Snapshot] = []
        at = self._numbered(upper)
        while _number(at) > lower:
            found.append(at)
            parent = self._seen[at.snapshot_id].parent if at.snapshot_id in self._seen else at.parent_snapshot_id
            if parent in self._seen and self._seen[parent].number == lower:
                return found[::-1]  # though it may be expired meanwhile: nothing of it is needed
            if parent not in there:
                break
            at = there[parent]
        if _number(at) == lower:
            return found[::-1]
        self._numbered(lower)  # the two can be compared as long as it is there
        return None

    def _numbered(self, number: int) -> Snapshot:
        for each in self._table.snapshots().values():
            if _number(each) == number:
                return each
        raise self._expired(number)

    def _expired(self, number: int) -> SourceError:
        numbers = sorted(map(_number, self._table.snapshots().values()))
        there = ", ".join(map(str, numbers)) or "none"
        return SourceError(EXPIRED.said(table=self._table.name, number=number, there=there, item=self._table.item))


def _number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _net(steps: Sequence[tuple[int, Portion]]) -> list[tuple[int, Portion]]:
    counts: dict[tuple[str, frozenset[str]], tuple[int, Portion]] = {}
    for diff, portion in steps:
        before, _ = counts.get(portion.key, (0, portion))
        counts[portion.key] = (before + diff, portion)
    return [(1 if n > 0 else -1, portion) for n, portion in counts.values() for _ in range(abs(n))]
