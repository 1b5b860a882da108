"""The part of upstream's log that was read last: its transactions, decoded, by table, in bounded memory.

A peek begins where the log ends, and one serves all tables.  What it brings is decoded once, and kept until it is
durable in all tables and upstream may forget it.
Beyond `HELD_BYTES_MAX` it lies in files of this machine, also a transaction that has not ended yet: it is taken whole,
however large it is, and no more of it is in memory than of many small ones.

A transaction is known by where its commit record begins.  The log holds those with ``lower <= commit < upper``.
"""

from __future__ import annotations

import tempfile
import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from strandline.errors import SourceError, Unavailable
from strandline.sources.readers.postgres.pgoutput import (
    Begin,
    Commit,
    DamagedMessage,
    Delete,
    Insert,
    Relation,
    Truncate,
    Update,
    lsn_text,
    parse,
)
from strandline.sources.readers.postgres.row_values import LSN, table_of
from strandline.sources.readers.postgres.server import Take
from strandline.sources.readers.postgres.tables import TABLE_STOPPED, Change, Layout, Reading, Stops

HELD_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bytes of decoded changes that are kept in memory."""
CHUNK_ROWS: Final = 10_000
CHUNK_BYTES: Final = 4 * 1024 * 1024
"""So many bytes of messages, of all tables, are decoded and not a chunk yet; so a chunk has about as many at most."""
TRUNCATED: Final = (
    "all its rows were removed by TRUNCATE, which does not say which they were (a publication WITH (publish = 'insert, "
    "update, delete') does not send TRUNCATE)"
)


@dataclass(slots=True)
class _Chunk:
    """Some changes of a table, of transactions that commit at ``first`` to ``last``; in memory or in a file."""

    first: int
    last: int
    rows: int
    bytes: int
    held: pa.Table | Path

    def table(self) -> pa.Table:
        if isinstance(self.held, pa.Table):
            return self.held
        with pa.memory_map(str(self.held)) as source, pa.ipc.open_file(source) as reader:
            return reader.read_all()


def _within(chunks: Sequence[_Chunk], lower: int, upper: int) -> Iterator[_Chunk]:
    """Yield the chunks that may have a change of a range; none of those before it is looked at."""
    start = bisect_left(chunks, lower, key=lambda chunk: chunk.last)
    return takewhile(lambda chunk: chunk.first < upper, islice(chunks, start, None))


class _Pending:
    """Changes of a table that are not a chunk yet."""

    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.lsns: list[int] = []
        self.orders: list[int] = []
        self.bytes = 0


class Log:
    """The transactions from `lower` on and before `upper`.

    Takes messages in one thread at a time, between `begin` and `finish` or `abandon`.  The thread of a peek that was
    cancelled goes on for a while: what it gives then is refused, and so is what comes after a later `begin`.
    """

    def __init__(self, readings: Sequence[Reading], held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._guard = threading.RLock()
        self._generation = 0
        self._readings: Mapping[tuple[str, str], Reading] = {}
        self._numbers: Mapping[int, Reading] = {}
        self._held_bytes_max = held_bytes_max
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._files = 0
        self.follow(readings, 0)

    def follow(self, readings: Sequence[Reading], position: int) -> None:
        """Hold nothing, from ``position`` on; read tables as ``readings`` say."""
        with self._guard:
            self._readings = {reading.table: reading for reading in readings}
            self._numbers = {reading.note.oid: reading for reading in readings if reading.note.oid is not None}
            self.lower = self.upper = position
            self._chunks: dict[str, list[_Chunk]] = {reading.reference: [] for reading in readings}
            self._stops: dict[str, list[tuple[int, str]]] = {reading.reference: [] for reading in readings}
            self._bytes = 0
            self._order = 0
            self.begin()

    # --- taking messages ---------------------------------------------------------------------------------------------
    def begin(self) -> Take:
        """Begin to take the messages of a peek; return what takes them, until the next peek begins or this one ends.

        It raises `DamagedMessage`, or `Unavailable`: the peek was given up.
        """
        with self._guard:
            self._generation += 1
            self._pending: dict[str, _Pending] = {reference: _Pending() for reference in self._chunks}
            self._pending_bytes = 0
            self._marks = {
                reference: (len(chunks), len(self._stops[reference])) for reference, chunks in self._chunks.items()
            }
            self._layouts: dict[int, tuple[Reading, Layout | str]] = {}
            self._commit: int | None = None
            self._ends = self.upper
            return partial(self._take, self._generation)

    def _take(self, generation: int, messages: Sequence[bytes]) -> None:
        with self._guard:
            if generation != self._generation:
                raise Unavailable("the peek was given up, and its changes are not needed")
            self._add(messages)

    def _add(self, messages: Sequence[bytes]) -> None:
        for data in messages:
            match parse(data):
                case Begin(commit_lsn):
                    if commit_lsn < self.upper:
                        raise DamagedMessage(f"the transaction of {lsn_text(commit_lsn)} came again")
                    self._commit = commit_lsn
                case Commit(commit_lsn, end_lsn):
                    if commit_lsn != self._commit:
                        raise DamagedMessage(f"the commit {lsn_text(commit_lsn)} is not that of its transaction")
                    self._ends = max(self._ends, end_lsn)
                    self._commit = None
                case Relation() as relation:
                    self._described(relation)
                case Insert() | Update() | Delete() as message:
                    self._changed(message, len(data))
                case Truncate(oids):
                    for oid in oids:
                        if (known := self._layouts.get(oid)) is not None:
                            self._stop(known[0], TRUNCATED)

    def finish(self, upto: int | None) -> None:
        """All transactions before ``upto`` were taken; None: those that were taken are all up to the last of them.

        Raises `Unavailable`: they cannot be put aside, and are forgotten.
        """
        with self._guard:
            try:
                self._cut_all()
            except BaseException:
                self.abandon()
                raise
            self.upper = max(self.upper, self._ends if upto is None else upto)
            self.begin()

    def abandon(self) -> None:
        """Forget what came since `begin`: it was not all."""
        with self._guard:
            for reference, (chunks, stops) in self._marks.items():
                for chunk in self._chunks[reference][chunks:]:
                    self._forget(chunk)
                del self._chunks[reference][chunks:], self._stops[reference][stops:]
            self.begin()

    def _described(self, relation: Relation) -> None:
        reading = self._readings.get((relation.schema, relation.name), self._numbers.get(relation.oid))
        if reading is None:
            self._layouts.pop(relation.oid, None)
            return
        try:
            assert self._commit is not None
            self._layouts[relation.oid] = reading, reading.layout(relation, self._commit)
        except Stops as why:
            self._layouts[relation.oid] = reading, str(why)

    def _changed(self, message: Insert | Update | Delete, size: int) -> None:
        known = self._layouts.get(message.oid)
        if known is None:
            return
        assert self._commit is not None
        reading, layout = known
        if isinstance(layout, str):
            self._stop(reading, layout)
            return
        try:
            changes = reading.changes(message, layout)
        except Stops as why:
            self._stop(reading, str(why))
            return
        if layout.spare:
            reading.passes(message, layout, self._commit)
        pending = self._pending[reading.reference]
        for change in changes:
            self._order += 1
            pending.changes.append(change)
            pending.lsns.append(self._commit)
            pending.orders.append(self._order)
        pending.bytes += size
        self._pending_bytes += size
        if self._pending_bytes >= CHUNK_BYTES:
            self._cut_all()
        elif len(pending.changes) >= CHUNK_ROWS:
            self._cut(reading)

    def _stop(self, reading: Reading, why: str) -> None:
        assert self._commit is not None
        stops = self._stops[reading.reference]
        about = {"table": reading.reference, "at": lsn_text(self._commit), "item": reading.item}
        said = TABLE_STOPPED.said(why=why, **about)
        if not stops or stops[-1] != (self._commit, said):
            stops.append((self._commit, said))

    def _cut_all(self) -> None:
        for reading in self._readings.values():
            self._cut(reading)

    def _cut(self, reading: Reading) -> None:
        """Make what is pending a chunk."""
        pending = self._pending[reading.reference]
        if not pending.changes:
            return
        table = table_of(reading, pending.changes, pending.lsns, pending.orders)
        self._pending[reading.reference] = _Pending()
        self._pending_bytes -= pending.bytes
        chunk = _Chunk(pending.lsns[0], pending.lsns[-1], table.num_rows, table.nbytes, table)
        self._chunks[reading.reference].append(chunk)
        self._bytes += chunk.bytes
        if self._bytes > self._held_bytes_max:
            self._spill()

    def _spill(self) -> None:
        """Move every chunk that is in memory into a file."""
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="strandline-log-")
        for chunks in self._chunks.values():
            for chunk in chunks:
                if isinstance(chunk.held, pa.Table):
                    self._files += 1
                    path = Path(self._directory.name) / f"{self._files}.arrow"
                    try:
                        with pa.ipc.new_file(str(path), chunk.held.schema) as writer:
                            writer.write_table(chunk.held)
                    except OSError as error:
                        raise Unavailable(f"changes cannot be put aside in {tempfile.gettempdir()}: {error}") from error
                    chunk.held = path
        self._bytes = 0

    # --- giving and forgetting ---------------------------------------------------------------------------------------
    def changes(self, reference: str, lower: int, upper: int) -> Iterator[pa.Table]:
        """Yield the changes of a table that were committed from ``lower`` on and before ``upper``, in their order.

        Raises `SourceError`: one of them stops the table.
        """
        assert self.lower <= lower
        assert upper <= self.upper
        for at, said in self._stops[reference]:
            if lower <= at < upper:
                raise SourceError(said)
        for chunk in _within(self._chunks[reference], lower, upper):
            table = chunk.table()
            if chunk.first < lower or chunk.last >= upper:
                at = table[LSN]
                table = table.filter(pc.and_(pc.greater_equal(at, lower), pc.less(at, upper)))
            yield table

    def extent(self, lower: int, upper: int) -> tuple[int, int]:
        """Return about how many changes there are in a range, of all tables, and about how many bytes they have."""
        within = [chunk for chunks in self._chunks.values() for chunk in _within(chunks, lower, upper)]
        return sum(chunk.rows for chunk in within), sum(chunk.bytes for chunk in within)

    def forget(self, position: int) -> None:
        """Forget what lies before ``position``."""
        for reference, chunks in self._chunks.items():
            gone = [chunk for chunk in chunks if chunk.last < position]
            for chunk in gone:
                self._forget(chunk)
            del chunks[: len(gone)]
            self._stops[reference] = [stop for stop in self._stops[reference] if stop[0] >= position]
        self.lower = max(self.lower, min(position, self.upper))

    def _forget(self, chunk: _Chunk) -> None:
        if isinstance(chunk.held, Path):
            chunk.held.unlink(missing_ok=True)
        else:
            self._bytes -= chunk.bytes

    def close(self) -> None:
        """Forget everything; the files go."""
        self.follow(list(self._readings.values()), self.upper)
        if self._directory is not None:
            self._directory.cleanup()
            self._directory = None
