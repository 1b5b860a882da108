"""What a PostgreSQL source must know of its upstream after a restart: its own notes, in its record shard.

That a slot was made, and on which server: a slot that is missing then was dropped, and what it kept is gone.  How each
table was when its snapshot was taken: by which columns its records are keyed, and of which types the columns are.  And
how the publication has had it since.
A later note of the same thing replaces an earlier one.  A note's number is its time, so of two instances that write at
once one is second, and reads what the first wrote.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import msgspec

from strandline.frontier import Frontier, as_time
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import fenced
from strandline.persist.shard.state import Appended, Fenced, UpperMismatch


class SlotNote(msgspec.Struct, frozen=True, tag="slot"):
    """The slot ``name`` is ours, on the cluster ``system``, in ``database``; ``made``: it was there."""

    name: str
    system: str
    database: str
    made: bool


class ColumnNote(msgspec.Struct, frozen=True, array_like=True):
    """A column as it was: its name upstream, its type's OID, modifier and name.

    ``number``, ``version``: as last seen (`server.Shape`); 0: not noted.
    ``delimiter``: what stands between the elements of an array; a type keeps it for life.
    ``since``: the commit from which on rows have it; 0: all have it; `UNSEEN`: it was added here later, and no change
    has it yet.  ``lacking``: upstream has values in it in rows that are here without them, until changes say them.
    """

    name: str
    type_oid: int
    modifier: int
    type_name: str
    number: int = 0
    version: int = 0
    delimiter: str = ","
    since: int = 0
    lacking: bool = False


class OtherNote(msgspec.Struct, frozen=True, array_like=True):
    """A column upstream that the table here lacks: its name, its number and its version as last seen (`server.Shape`).

    ``late``: it came after the snapshot.  ``blank``: in no row that was read upstream has a value in it.
    ``version`` is 0 once it is gone.  ``doubt``: changes before this position may say another column by its name; 0:
    none does.
    """

    name: str
    number: int
    version: int
    late: bool
    blank: bool
    doubt: int = 0


class TableNote(msgspec.Struct, frozen=True, tag="table"):
    """A table as it was.

    ``declared``: the columns here, as DDL; empty: nothing is known of the table (`not_noted`).
    ``key``: the declared columns by which its records are keyed; None: upstream sends rows as they were.  ``columns``:
    those that are declared, in the order of the declaration.  ``oid``: its number upstream; None: it was not noted.
    ``entries``: how the publication has had it since the snapshot (`server.Published`); empty: it was not noted.
    ``file``: where its rows are kept, as last seen (`server.Shape`); 0: it was not noted.
    ``parts``: its partitions, likewise; empty: it had none, or they were not noted.
    ``others``: the columns that are not declared, also those that went meanwhile; None: they were not noted.
    ``highest``: how many columns it has had upstream, as last seen (`server.Shape`); 0: it was not noted.
    ``left``: why changes since the snapshot may be missing, so that the table is read no further; empty: none are.
    """

    table: str
    key: tuple[str, ...] | None
    columns: tuple[ColumnNote, ...]
    declared: str
    oid: int | None = None
    entries: tuple[str, ...] = ()
    left: str = ""
    file: int = 0
    parts: tuple[int, ...] = ()
    others: tuple[OtherNote, ...] | None = None
    highest: int = 0


class LeftNote(msgspec.Struct, frozen=True, tag="left"):
    """How the note of a table that left is written: a version that would read the table on cannot read this."""

    note: TableNote


def not_noted(table: str) -> TableNote:
    """Return the note that nothing is known of ``table``: it was dropped here, or upstream never had it as declared."""
    return TableNote(table, None, (), "")


UNSEEN: Final = -1
Note: TypeAlias = SlotNote | TableNote
_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(SlotNote | TableNote | LeftNote)


class Ledger:
    """The notes of one source, as last seen, and the way to write one.  Opened by `open`."""

    def __init__(self, shard: RecordShard, epoch: int) -> None:
        self._shard = shard
        self._epoch = epoch
        self._known = 0
        self.slot: SlotNote | None = None
        self.tables: dict[str, TableNote] = {}

    @classmethod
    async def open(cls, shard: RecordShard, epoch: int) -> Ledger:
        """Return the ledger kept in ``shard`` (opened under ``epoch``)."""
        opened = cls(shard, epoch)
        await opened.refresh()
        return opened

    async def refresh(self) -> None:
        """Read what others wrote."""
        upper = as_time(await self._shard.refresh())
        if upper > self._known:
            for record in await self._shard.contents(lower=Frontier(self._known)):
                self._take(_decoder.decode(record.data))
            self._known = upper

    def of(self, table: str, declared: str) -> TableNote:
        """Return what is known of ``table`` with the columns ``declared``; if nothing is, the note that says so.

        If columns were added here since, the note lacks them.
        """
        note = self.tables.get(table)
        known = note is not None and note.declared and f"{declared}, ".startswith(f"{note.declared}, ")
        return note if note is not None and known else not_noted(table)

    async def write(self, note: Note) -> None:
        """Write a note, durably, unless it is what is known.

        Raises:
            FencedError: a newer epoch has taken over.
            Indeterminate: it may be written; writing it again is harmless.
        """
        while not self._holds(note):
            at = self._known
            written = LeftNote(note) if isinstance(note, TableNote) and note.left else note
            match await self._shard.append([Record(_encoder.encode(written), at, 1)], Frontier(at), Frontier(at + 1)):
                case Appended():
                    self._take(note)
                    self._known = at + 1
                case UpperMismatch():
                    await self.refresh()
                case Fenced() as outcome:
                    raise fenced(self._shard.shard, outcome, self._epoch)

    def _holds(self, note: Note) -> bool:
        return note == (self.slot if isinstance(note, SlotNote) else self.tables.get(note.table))

    def _take(self, note: Note | LeftNote) -> None:
        match note:
            case LeftNote(left):
                self._take(left)
            case SlotNote():
                self.slot = note
            case TableNote():
                self.tables[note.table] = note
