"""The Delta reader: what a table holds when the source begins, then what each version changes.

Offset n means: versions before n.  The first slice is the table as it was at its newest version; any later one is what
the versions in it change: their files of changes where the table has a change data feed, else the rows of the files
that they add, and of those that they remove.  Files that change no data (OPTIMIZE) are not looked at.  So the
collection is at every time what the table was at some version.

Rows go through deltalake and Arrow, in bounded memory, since Delta has no jar for this Spark.  Large files whose
columns lie in them as they are declared are read by the data plane itself, as Parquet.

What stops the source, each with a `SourceError`: a version or a file that is no longer there (log retention, VACUUM);
another table in its place (its id is noted when the source begins); a version that drops a declared column, gives it a
type that the declared one does not hold, or needs what `table.FEATURES` does not name.  The versions before that are
read.  Columns that upstream gets are added here, or left out; those that come here later: `sources/readers/tabular.py`.

Source: the Delta transaction log protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import msgspec
import pyarrow as pa
from deltalake import Schema as DeltaSchema

from strandline.algebra.schema import Schema
from strandline.errors import SourceError, reason
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.records import RecordShard
from strandline.plane import Staging
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW, REDEFINED
from strandline.sources.reader import FileDecoder, Records, TakenBack
from strandline.sources.readers.delta.log import (
    COMES,
    GOES,
    VECTORS,
    Commit,
    DataFile,
    Effect,
    Mask,
    Masks,
    Metadata,
    TableProtocol,
    effects,
)
from strandline.sources.readers.delta.table import (
    Columns,
    Snapshot,
    Stamp,
    StoredTable,
    columns_of,
    physical_names,
    refusal,
)
from strandline.sources.readers.recorded import amended, note
from strandline.sources.readers.tabular import Lacking, Noted, StoredFile, TableRows, declarable
from strandline.sources.reclock import NOTHING_READ, Slice

PARTITION: Final = ""
"""All of a table is one partition: its versions are its order."""
ANOTHER: Final = Problem(
    "delta-table-made-anew",
    "{table} is another table: its id was {known} and is {id}; it was dropped and created again",
    Stopped.SOURCE,
    (ANEW,),
)
BACK: Final = Problem(
    "delta-table-went-back",
    "{table} went back: version {read} was read, and its newest one is {newest}",
    Stopped.SOURCE,
    (Way("bring the table to where it was"), ANEW),
)
CHANGED: Final = Problem(
    "delta-columns-changed", "{table} cannot be read at version {version}: {why}", Stopped.SOURCE, REDEFINED
)


class Known(msgspec.Struct, frozen=True):
    """Which table the source reads, and which columns of it."""

    id: str
    columns: Noted = msgspec.field(default_factory=Noted)


class DeltaReader:
    """Reads one table.  See `SourceReader`."""

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
        self._known = Known("")
        self._durable = NOTHING_READ
        self._next = 0  # the version that is not announced yet; 0: none was asked for
        self._stamp: Stamp | None = None  # of the last one that is
        self._metadata: Metadata | None = None  # as of it
        self._since = 0  # the version that it is from, or a later one
        self._refused: SourceError | None = None  # why the next version cannot be read

    def records(self, table: str) -> Records:
        """Versions take rows back."""
        return TakenBack()

    async def snapshot(self, table: str) -> Offsets | None:
        """The newest version: what it held can be asked for again until upstream forgets it."""
        return await self.upstream_frontier()

    async def upstream_frontier(self) -> Offsets:
        """Return which versions there are, up to one that cannot be read."""
        await self._assure()
        await asyncio.to_thread(self._follow)
        if self._refused is not None and self._next <= self._durable[PARTITION]:
            raise self._refused
        return Offsets({PARTITION: self._next})

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return the snapshot, or what versions changed, of each slice."""
        await self._assure()
        if slices and (last := slices[-1].upper[PARTITION] - 1) >= (first := slices[0].lower[PARTITION]):
            await self._settle(first, last)
        files = await asyncio.to_thread(lambda: [file for each in slices for file in self._files(each)])
        return await self._rows.read(files, slices[-1].upper if slices else NOTHING_READ, locate=locate)

    async def commit(self, resume: Offsets) -> None:
        """Remember what is durable: its rows are not held any longer.  Delta itself decides what it forgets."""
        self._durable = self._durable.join(resume)
        self._rows.release(resume)

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """Whether the files that were last read are small."""
        return self._rows.small

    def notices(self) -> tuple[str, ...]:
        """Say which version cannot be read, before the source stands still at it."""
        return *(() if self._refused is None else (reason(self._refused),)), *self._lacking.notices

    async def close(self) -> None:
        """Forget the rows that were read."""
        self._rows.close()

    # --- the log -----------------------------------------------------------------------------------------------------
    async def _assure(self) -> None:
        """Make sure that the table is the one that the source began with, as far as it is announced."""
        if self._next and await asyncio.to_thread(self._table.stamp, self._next - 1) == self._stamp is not None:
            return
        newest = await asyncio.to_thread(self._table.newest)
        begun = Noted.begun(self._schema, physical_names(newest.metadata))
        known = await note(self._shard, self._epoch, Known(newest.metadata.id, begun))
        if known.columns.first is None:
            known = await amended(self._shard, self._epoch, Known(known.id, begun))
        self._known = known
        if known.id != newest.metadata.id:
            about = {"table": self._table.name, "known": known.id, "id": newest.metadata.id}
            raise SourceError(ANOTHER.said(**about, item=self._table.item))
        if newest.version + 1 < max(self._next, self._durable[PARTITION]):
            read = max(self._next, self._durable[PARTITION]) - 1
            about = {"table": self._table.name, "item": self._table.item}
            raise SourceError(BACK.said(read=read, newest=newest.version, **about))
        if not self._next:
            await asyncio.to_thread(self._begin, newest)
        else:
            self._stamp = await asyncio.to_thread(self._table.stamp, self._next - 1)

    async def _settle(self, first: int, last: int) -> None:
        """Note which columns are read from these versions on.  Raises `ColumnsAdded` if they have others to add."""
        while True:
            columns = await asyncio.to_thread(self._noted, first, last)
            if columns == self._known.columns:
                break
            self._known = await amended(self._shard, self._epoch, msgspec.structs.replace(self._known, columns=columns))
        metadata = await asyncio.to_thread(self._metadata_at, last)
        self._lacking.look(metadata.schema_string, partial(self._declarable, metadata), columns)

    def _noted(self, first: int, last: int) -> Noted:
        """Return which columns are read, once they are read from these versions on."""
        columns = self._known.columns.adopted(self._schema, first)
        if columns != self._known.columns and first:
            columns = columns.seen(physical_names(self._table.at(first - 1).metadata), first)
        for version in range(first, last + 1):
            if not columns.unseen():
                break
            metadata = self._commit(version).metadata
            columns = columns if metadata is None else columns.seen(physical_names(metadata), version)
        return columns

    def _declarable(self, metadata: Metadata) -> list[tuple[str, str | None]]:
        there = pa.schema(DeltaSchema.from_json(metadata.schema_string).to_arrow())
        return declarable(there, lambda schema: columns_of(schema, metadata))

    def _metadata_at(self, version: int) -> Metadata:
        known = self._since <= version < self._next
        return self._metadata if known and self._metadata is not None else self._table.at(version).metadata

    def _begin(self, newest: Snapshot) -> None:
        """Begin to follow the log: behind what is durable, or at the newest version."""
        behind = self._durable[PARTITION]
        if behind and behind <= newest.version and self._table.stamp(behind) is None:
            raise self._table.forgotten(behind)
        self._columns(newest.version, newest.metadata, newest.protocol)
        self._stamp = self._table.stamp(newest.version)
        self._metadata, self._since, self._next = newest.metadata, newest.version, newest.version + 1

    def _follow(self) -> None:
        """Go on to the versions that there are now, up to one that cannot be read."""
        while self._refused is None and (stamp := self._table.stamp(self._next)) is not None:
            commit = self._commit(self._next)
            try:
                self._check(commit)
            except SourceError as error:
                self._refused = error
                return
            if commit.metadata is not None:
                self._metadata, self._since = commit.metadata, commit.version
            self._stamp, self._next = stamp, self._next + 1

    def _check(self, commit: Commit) -> None:
        """Raise `SourceError` if a version makes of the table what this reader cannot read."""
        if commit.metadata is not None and self._metadata is not None and commit.metadata.id != self._metadata.id:
            about = {"table": self._table.name, "known": self._metadata.id, "id": commit.metadata.id}
            raise SourceError(ANOTHER.said(**about, item=self._table.item))
        if commit.metadata is not None or commit.protocol is not None:
            self._columns(commit.version, commit.metadata or self._metadata, commit.protocol)

    def _columns(self, version: int, metadata: Metadata | None, protocol: TableProtocol | None) -> Columns:
        assert metadata is not None, "a table has metadata from its first version on"
        why = refusal(protocol) if protocol is not None else ""
        try:
            if not why:
                return columns_of(self._schema, metadata, self._known.columns.absent(self._schema, version))
        except ValueError as error:
            why = str(error)
        about = {"table": self._table.name, "why": why, "item": self._table.item}
        raise SourceError(CHANGED.said(version=version, **about))

    def _commit(self, version: int) -> Commit:
        commit = self._table.commit(version)
        if commit is None:
            raise self._table.forgotten(version)
        return commit

    # --- the files of a slice ----------------------------------------------------------------------------------------
    def _files(self, each: Slice) -> Iterator[StoredFile]:
        first, last = each.lower[PARTITION], each.upper[PARTITION] - 1
        if first > last:
            return
        if first:
            yield from self._corrected(first, each.time)
            yield from self._changed(first, last, each.time)
            return
        found = self._table.at(last)
        columns = self._columns(last, found.metadata, found.protocol)
        for file, keep in self._held(found):
            yield self._stored(Effect(last, 1, file), columns, each.time, keep=keep)

    def _held(self, found: Snapshot) -> Iterator[tuple[DataFile, Mask | None]]:
        """Yield the files of a snapshot, and which of their rows count."""
        masks = self._table.masks(found.version) if VECTORS in (found.protocol.reader_features or ()) else {}
        for file in found.files:
            yield file, masks.get(file.path)

    def _corrected(self, first: int, time: int) -> Iterator[StoredFile]:
        """Yield the rows before version ``first`` without the columns that are read from it on, and with them."""
        names = self._known.columns.corrected(first)
        if not names:
            return
        found = self._table.at(first - 1)
        columns = self._columns(first - 1, found.metadata, found.protocol)
        for file, keep in self._held(found) if names & columns.physical.keys() else ():
            for diff, those in ((-1, columns.without(names)), (1, columns)):
                yield self._stored(Effect(first - 1, diff, file), those, time, keep=keep)

    def _changed(self, first: int, last: int, time: int) -> Iterator[StoredFile]:
        """Yield what the versions from ``first`` to ``last`` change in all."""
        commits = [self._commit(version) for version in range(first, last + 1)]
        metadata = self._metadata_at(last)
        for commit in commits:
            if commit.metadata is not None or commit.protocol is not None:
                self._columns(commit.version, commit.metadata or metadata, commit.protocol)
        columns = self._columns(last, metadata, None)
        masks = Masks(self._table)
        for effect, keep in masks.resolved(effects(commits)):
            partitioned = bool(metadata.partition_columns) and effect.file.partition is None
            yield self._stored(self._table.completed(effect) if partitioned else effect, columns, time, keep=keep)

    def _stored(self, effect: Effect, columns: Columns, time: int, *, keep: Mask | None) -> StoredFile:
        file, of = effect.file, (COMES if effect.diff > 0 else GOES) if effect.changes else frozenset[str]()
        plain = columns.whole and not (of or keep is not None or columns.mapped or file.partition)
        return StoredFile(
            time,
            effect.diff,
            file.path,
            file.size or 0,
            lambda: self._table.tables(file, columns, effect.version, keep=keep, changes=of),
            self._table.local_path(file) if plain else None,
        )
