"""The PostgreSQL reader: one publication through one logical slot, and the first contents of each of its tables.

Offset ``n`` covers the transactions whose commit record begins before position ``n`` of the log, so a transaction is
never torn.  The frontier is how far the log is durable; on an idle table it moves with everything else that the server
does, and so does the slot.  While there is more than a tick should take, the frontier is the end of the last
transaction taken.

*The slot* is made when the source is first asked, by a look at upstream that also notes what a restart must know.  It
is read by peeking, so a range can be read again until `commit` lets the server forget it.  A peek starts where the last
one ended, not at the slot: a table that stopped holds the slot, and changes that the other tables have read since are
not read again.  After a crash of the server the slot may have stepped back, which changes nothing.  A slot that is
missing, invalidated, or has moved beyond what must be read is a `SourceError`: its changes are lost, and nothing is
passed over silently.

*A table* begins with a snapshot whose position is exact by the log.  The slot exists before the snapshot is opened, and
no transaction from its position on is forgotten until the table's first step is durable: so between the snapshot and
the changes there is neither a gap nor an overlap.  Tables that ask at the same time share one snapshot.

*A column* that upstream gets shows in the catalog by the look that follows the peek of its first change.  So the read
of these changes adds the column, or first notes that it passes over it (`added`).
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from msgspec import structs

from strandline.algebra.schema import TIME
from strandline.errors import SourceError, Unavailable
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.plane import Aside, Staging
from strandline.sources.kinds import SnapshotProgress
from strandline.sources.reader import Keyed, Records
from strandline.sources.readers.postgres import slot
from strandline.sources.readers.postgres.added import Lacked, noted_wider, settled
from strandline.sources.readers.postgres.ledger import Ledger, SlotNote, TableNote
from strandline.sources.readers.postgres.log import Log
from strandline.sources.readers.postgres.options import table_name
from strandline.sources.readers.postgres.pgoutput import lsn_text
from strandline.sources.readers.postgres.row_values import LSN, copied
from strandline.sources.readers.postgres.server import Name, Server, SlotStanding, Snapshot, Standing, UpstreamTable
from strandline.sources.readers.postgres.tables import TABLE_LEFT, Reading, noted
from strandline.sources.reclock import NOTHING_READ, Slice


class Watch:
    """The looks of one source at its server."""

    def __init__(self, server: Server, ledger: Ledger, slot_name: str, publication: str, item: str) -> None:
        """``item``: the source's name, for what messages advise."""
        self.item = item
        self._server = server
        self._ledger = ledger
        self._slot = slot_name
        self._publication = publication

    async def look(self, tables: Collection[str], read: int) -> tuple[Standing, SlotStanding]:
        """Return how upstream and the slot stand.

        Raises `SourceError`: nothing can be read as they stand, or the server lost log before ``read``.  What is wrong
        with one of the ``tables`` alone is noted in the ledger.
        """
        names = [*map(table_name, tables)]
        standing = await self._server.standing(names)
        if self._ledger.slot is None or not self._ledger.slot.made:
            await self._ledger.refresh()  # after the server was asked: a slot of ours that it has is noted by now
        slot.check(standing, names, self._ledger.slot, self._slot, self._publication, self.item)
        slot.check_log(standing, read, self.item)
        if self._ledger.slot is None or not self._ledger.slot.made:
            standing = await self._made(standing, names)
        assert standing.slot is not None
        for note in [self._ledger.tables.get(table) for table in tables]:
            if note is not None and note.declared:
                await self._ledger.write(slot.followed(note, standing, self._publication))
        return standing, standing.slot

    async def _made(self, standing: Standing, tables: Collection[Name]) -> Standing:
        """Make the slot, and note it before and after: one that is there and was not noted is another's."""
        note = SlotNote(self._slot, standing.system, standing.database, made=False)
        await self._ledger.write(note)
        if standing.slot is None or not standing.slot.whole:
            await self._server.create_slot()
            standing = await self._server.standing(tables)
            slot.check(standing, [], note, self._slot, self._publication, self.item)
        if standing.slot is None:
            raise Unavailable(f"replication slot {self._slot!r} was made and is gone; it is made again")
        if not standing.slot.whole:
            raise Unavailable(
                f"replication slot {self._slot!r} is being made by another session, perhaps of a process that ended: "
                "that waits for transactions that run there"
            )
        await self._ledger.write(structs.replace(note, made=True))
        return standing


PARTITION: Final = ""
"""The log is one partition."""
SMALL_CHANGES_MAX: Final = 5_000
SMALL_BYTES_MAX: Final = 16 << 20
"""More bytes are not collected in one process, however few changes have them."""


class PostgresReader:
    """Reads one publication.  See `SourceReader`."""

    bounded = True

    def __init__(
        self,
        server: Server,
        engine: Staging,
        ledger: Ledger,
        readings: Sequence[Reading],
        *,
        slot_name: str,
        publication: str,
        step_changes: int,
        lacked: Lacked,
        name: str,
    ) -> None:
        self._server = server
        self._engine = engine
        self._ledger = ledger
        self._watch = Watch(server, ledger, slot_name, publication, name)
        self._readings = {reading.reference: reading for reading in readings}
        self._slot = slot_name
        self._publication = publication
        self._step_changes = step_changes
        self._lacked = lacked
        self._log = Log(self._noted())
        self._confirmed: int | None = None  # where the slot stands, as last seen
        self._looked = 0  # how far the log was read when upstream was looked at last
        self._reached = 0
        self._bound = 0  # what was bound, also by an earlier process
        self._snapshot: Snapshot | None = None
        self._waiting: set[str] = set()  # tables that have not taken their rows from the snapshot yet
        self._given = defaultdict[str, ExitStack](ExitStack)  # what holds the rows of the last read of each table
        self._progress: dict[str, SnapshotProgress] = {}
        self._guard = asyncio.Lock()
        self._notices: tuple[str, ...] = ()

    def records(self, table: str) -> Records:
        """Return `Keyed`, or `TakenBack` where upstream says rows as they were; a new snapshot may change it."""
        return self._readings[table].records

    async def snapshot(self, table: str) -> Offsets:
        """See `SourceReader.snapshot`."""
        async with self._guard:
            if self._snapshot is None or self._is_late(self._snapshot):
                await self._open_snapshot(table)
            assert self._snapshot is not None
            if table not in self._waiting:
                await self._describe(table, await self._in(self._snapshot, table))
                self._waiting.add(table)
            return Offsets({PARTITION: self._snapshot.position})

    def bound(self, offsets: Offsets) -> None:
        """See `TakesBounds`."""
        self._bound = max(self._bound, offsets[PARTITION])

    async def upstream_frontier(self) -> Offsets:
        """Return how far the log is durable, or how far a tick should take it."""
        async with self._guard:
            standing = await self._standing()
            await self._gather(standing.flushed, self._step_changes)
            self._reached = max(self._reached, self._log.upper, self._bound)
            return Offsets({PARTITION: self._reached})

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`.  Errors always say where they are."""
        async with self._guard:
            first = slices[0]
            begins = first.lower == NOTHING_READ
            upper = slices[-1].upper[PARTITION]
            start = self._begun(table, upper) if begins else first.lower[PARTITION]
            if not begins:
                await self._taken(table)
                await self._widen(table, start)
            reading = self._readings[table]
            if not (self._log.lower <= start and upper <= min(self._log.upper, self._looked)):
                await self._standing()
                await self._gather(upper, None)
            self._refuse_forgotten(start)
            await self._refuse_left(table, begins=begins)
            await self._lacked.settle(reading, start, upper)
            into = self._room(reading)
            if begins:
                await self._copy(reading, first.time, into)
            await asyncio.to_thread(_add, into, self._dated(table, slices, start))
            return into.rows()

    async def commit(self, resume: Offsets) -> None:
        """Let the server forget what lies before ``resume``."""
        position = resume[PARTITION]
        if not position:
            return
        async with self._guard:
            if self._confirmed is None:
                await self._standing()
            if self._confirmed is None or position <= self._confirmed:
                return
            await self._server.advance(position)
            self._confirmed = position
            self._log.forget(position)
            if self._snapshot is not None and self._snapshot.position <= position:
                await self._release()  # what it shows is durable in all tables

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        lower, upper = slices[0].lower[PARTITION], slices[-1].upper[PARTITION]
        changes, size = self._log.extent(lower, upper)
        return bool(lower) and changes <= SMALL_CHANGES_MAX and size <= SMALL_BYTES_MAX

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return *self._notices, *self._lacked.notices

    def snapshots(self) -> tuple[SnapshotProgress, ...]:
        """See `ReportsSnapshots`."""
        return tuple(self._progress.values())

    async def close(self) -> None:
        """See `SourceReader.close`."""
        self._snapshot = None
        self._waiting.clear()
        await self._server.close()
        for held in self._given.values():
            held.close()
        self._given.clear()
        self._log.close()

    # --- the slot ----------------------------------------------------------------------------------------------------
    async def _standing(self) -> Standing:
        """Ask how upstream stands; make the slot if it was never made."""
        before = self._log.upper
        standing, there = await self._watch.look(self._readings, max(self._bound, self._reached, before))
        self._looked = max(self._looked, before)
        self._confirmed = there.confirmed
        self._notices = slot.notices(standing, self._publication)
        return standing

    async def _gather(self, upto: int, changes: int | None) -> None:
        """Take the log from where it ends up to ``upto``, or about so many messages."""
        assert self._confirmed is not None
        if self._log.upper < self._confirmed or not self._log.upper:
            self._log.follow(self._noted(), self._confirmed)
        if upto <= self._log.upper:
            return
        count = await self._peek(upto, changes)
        self._log.finish(upto if changes is None or count < changes else None)
        await self._standing()  # the catalog shows by now how the publication was when these changes were made

    async def _peek(self, upto: int, changes: int | None) -> int:
        take = self._log.begin()
        try:
            return await self._server.peek(self._log.upper, upto, changes, take)
        except BaseException:
            self._log.abandon()
            raise

    def _refuse_forgotten(self, start: int) -> None:
        if self._log.lower > start:
            about = {"slot": self._slot, "now": lsn_text(self._log.lower), "start": lsn_text(start)}
            raise SourceError(slot.SLOT_MOVED.said(**about, item=self._watch.item))

    async def _refuse_left(self, table: str, *, begins: bool) -> None:
        if why := self._ledger.tables[table].left:
            if begins:  # another snapshot has what was left out
                await self._release()
                raise Unavailable(
                    f"the publication or the table was altered since the snapshot of table {table!r}: another one is "
                    "taken"
                )
            raise SourceError(TABLE_LEFT.said(table=table, why=why, item=self._readings[table].item))

    async def _widen(self, table: str, start: int) -> None:
        """Read columns that were added here since the table was noted, from ``start`` on.

        Raises `SourceError`: it cannot be.
        """
        reading = self._readings[table]
        if not reading.noted:
            there = await self._server.tables([reading.table])
            upstream = slot.table_of(there, reading.table, self._publication)
            await self._follow(
                reading,
                noted_wider(settled(self._ledger.tables[table], start), reading.schema, upstream, reading.item),
            )

    # --- snapshots ---------------------------------------------------------------------------------------------------
    def _is_late(self, snapshot: Snapshot) -> bool:
        """Whether what came after the snapshot may be forgotten upstream already."""
        return snapshot.position < max(self._confirmed or 0, self._log.lower)

    def _begun(self, table: str, upper: int) -> int:
        """Return where the snapshot is that a slice up to ``upper`` begins with."""
        snapshot = self._snapshot
        if snapshot is None or table not in self._waiting or snapshot.position > upper:  # or it is another one
            raise Unavailable(f"the snapshot of table {table!r} was lost: another one is taken")
        return snapshot.position

    async def _open_snapshot(self, table: str) -> None:
        slot.check_kinds(await self._standing(), self._publication)  # and the slot is there first
        there = await self._server.tables([self._readings[table].table])
        await self._describe(table, there)  # a snapshot costs upstream: no table in vain
        await self._release()
        self._snapshot = await self._server.snapshot()

    async def _release(self) -> None:
        """Let the snapshot go: upstream cannot clean up behind it."""
        snapshot, self._snapshot = self._snapshot, None
        self._waiting.clear()
        self._progress.clear()
        if snapshot is not None:
            await snapshot.close()

    async def _taken(self, table: str) -> None:
        """Take note that a table needs its snapshot no more."""
        self._waiting.discard(table)
        self._progress.pop(table, None)
        if not self._waiting:
            await self._release()

    def _noted(self) -> list[Reading]:
        return [reading for reading in self._readings.values() if reading.noted]

    async def _describe(self, table: str, there: Sequence[UpstreamTable]) -> None:
        """Note how a table is read, of which nothing is durable.  ``there``: it, if the publication has it."""
        reading = self._readings[table]
        upstream = slot.table_of(there, reading.table, self._publication)
        note = noted(table, reading.schema, upstream)
        self._lacked.refuse(reading, upstream)
        if note != self._ledger.tables.get(table):  # nothing of the table is durable, so it is read as it is now
            await self._follow(reading, note)

    async def _follow(self, reading: Reading, note: TableNote) -> None:
        """Read a table as ``note`` says from now on."""
        await self._ledger.write(note)
        self._readings[reading.reference] = Reading(reading.reference, reading.schema, note, reading.item)
        self._log.follow(self._noted(), self._confirmed or 0)

    async def _in(self, snapshot: Snapshot, table: str) -> Sequence[UpstreamTable]:
        try:
            return await snapshot.tables([self._readings[table].table])
        except Unavailable:
            self._snapshot = None
            raise

    async def _copy(self, reading: Reading, time: int, into: Aside) -> None:
        assert self._snapshot is not None
        snapshot = self._snapshot
        try:
            upstream = slot.table_of(await self._in(snapshot, reading.reference), reading.table, self._publication)
            await copied(snapshot, upstream, reading, time, into, self._counted(upstream, reading.reference))
        except Unavailable:
            self._snapshot = None
            raise
        except SourceError:
            await self._taken(reading.reference)
            raise

    def _counted(self, upstream: UpstreamTable, table: str) -> Callable[[int], None]:
        """Return what takes note of rows that were copied."""
        self._progress[table] = SnapshotProgress(table, 0, upstream.about)

        def seen(rows: int) -> None:
            known = self._progress.get(table)
            if known is not None:
                self._progress[table] = replace(known, rows=known.rows + rows)

        return seen

    # --- rows --------------------------------------------------------------------------------------------------------
    def _room(self, reading: Reading) -> Aside:
        """Return an empty place for the rows of a read; those of the table's last read go."""
        held = self._given[reading.reference]
        held.close()
        return held.enter_context(self._engine.arrivals(reading.schema, keyed=isinstance(reading.records, Keyed)))

    def _dated(self, table: str, slices: Sequence[Slice], start: int) -> Iterator[pa.Table]:
        """Yield the changes of a range with the time of their slice."""
        bounds = np.array([start, *(each.upper[PARTITION] for each in slices)], np.int64)
        assert all(before.upper == after.lower for before, after in pairwise(slices))
        times = np.array([each.time for each in slices], np.int64)
        for changes in self._log.changes(table, start, int(bounds[-1])):
            place = np.searchsorted(bounds, changes[LSN].to_numpy(), side="right") - 1
            yield changes.drop_columns([LSN]).append_column(TIME, pa.array(times[place], pa.int64()))


def _add(into: Aside, tables: Iterator[pa.Table]) -> None:
    for table in tables:
        into.add(table)
