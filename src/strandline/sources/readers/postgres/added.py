"""Columns that upstream has and a table here lacks: which can be added, when nothing of them is lost, and what is said.

Rows from before a column are NULL in it here.  With a key each change of a row says all of it, so a column can be added
at any time; if upstream has values in rows that were read without them, these rows lack them until a change says them.

Without a key upstream says a row that goes as it was, with all its columns, and it must equal the row that came.  So a
column can be added as long as it is *blank*: of all rows that were read none has a value in it upstream.  It is not
blank if it was there at the snapshot, if it came with a default (no change says so, the catalog does), if the rows were
rewritten at the look that saw it first, or once a change with a value in it was read without it.

A change says columns by their names alone.  If another column may have had the name of a new one since the last look,
by a column that was dropped or renamed meanwhile, the new one is *in doubt*: it is not blank, and can be added, with a
key, once all these changes were read without it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from msgspec import structs

from strandline.algebra.schema import Column, Schema, ddl_of
from strandline.errors import SourceError
from strandline.problem import Problem, Stopped
from strandline.sources.kinds import ANEW
from strandline.sources.readers.new_columns import Gained, new_columns
from strandline.sources.readers.postgres import row_values
from strandline.sources.readers.postgres.ledger import UNSEEN, Ledger, OtherNote, TableNote
from strandline.sources.readers.postgres.server import Server, UpstreamTable
from strandline.sources.readers.postgres.slot import rewritten, shaped
from strandline.sources.readers.postgres.tables import TABLE_LEFT, Reading, column_note, declared_columns

_UNTOLD: Final = 1 << 62
"""A position that nothing reaches: where the log was is not told."""
COLUMN_DOUBTED: Final = Problem(
    "postgres-column-doubted",
    "table {table!r} cannot get the column {columns}: another column was dropped or renamed upstream, so changes may "
    "have its values under this name",
    Stopped.TABLE,
    (ANEW,),
)
COLUMN_LATE: Final = Problem(
    "postgres-column-late",
    "table {table!r} cannot get the column {columns} any longer: it has no key, and rows were read without the values "
    "that they may have in it upstream",
    Stopped.TABLE,
    (ANEW,),
)
COLUMN_UNREAD: Final = Problem(
    "postgres-column-unread",
    "table {table!r} has the column {columns} upstream, and cannot get it here, because it has no key and rows may "
    "have values in it already",
    Stopped.NOTHING,
    (ANEW,),
)
COLUMN_NULL: Final = Problem(
    "postgres-column-null",
    "table {table!r}: rows from before the column {columns} was read have NULL in it, whatever upstream has, until a "
    "change says its value; a large value that stays as it was, PostgreSQL does not send",
    Stopped.NOTHING,
    (ANEW,),
)


class Lacked:
    """The columns that the tables of one source lack, as last seen; those ``evolving`` get all that upstream has."""

    def __init__(self, server: Server, ledger: Ledger, evolving: frozenset[str], gained: Gained) -> None:
        self._server = server
        self._ledger = ledger
        self._evolving = evolving
        self._gained = gained
        self._found: dict[str, tuple[tuple[OtherNote, ...], tuple[Column, ...]]] = {}
        self._told: dict[str, tuple[str, ...]] = {}

    @property
    def notices(self) -> tuple[str, ...]:
        """What is to be said of all tables, as of their last reads."""
        return tuple(notice for told in self._told.values() for notice in told)

    def refuse(self, reading: Reading, upstream: UpstreamTable) -> None:
        """Raise `ColumnsAdded` if a table evolves, of which nothing is read yet, and upstream has more columns."""
        if reading.reference in self._evolving:
            self._gained(reading.reference, _lacked(reading.schema, upstream))

    async def settle(self, reading: Reading, start: int, upper: int) -> None:
        """Note which columns the changes from ``start`` to ``upper`` have, before any of their rows is durable.

        Raises `ColumnsAdded`: the table gets columns that it lacks, and was not read beyond them.
        """
        table, taken = reading.reference, reading.reference in self._evolving
        passed = {name for name, commit in reading.passed.items() if commit < upper}
        note = settled(self._ledger.tables[table], start)
        note = seen(note, {name: commit for name, commit in reading.seen.items() if commit < upper})
        if not passed <= {other.name for other in note.others or ()}:
            note = passed_over(note, passed)
        lacked = await self._columns(reading, note)
        note = doubted(note, lacked, {names: commit for names, commit in reading.beside.items() if commit >= start})
        await self._ledger.write(note)
        self._gained(table, addable(note, lacked, taken=taken))
        note = passed_over(note, passed)
        await self._ledger.write(note)
        told = self._gained(table, addable(note, lacked, taken=taken))
        self._told[table] = (*filter(None, [told]), *notices(note, lacked, taken=taken, item=reading.item))

    async def _columns(self, reading: Reading, note: TableNote) -> tuple[Column, ...]:
        """Return the columns that upstream has now, besides the table's, asking it only if they may be others."""
        if not note.others:
            return ()
        known, columns = self._found.get(reading.reference, ((), ()))
        if known != note.others:
            there = await self._server.tables([reading.table])
            named = [each for each in there if (each.schema, each.name) == reading.table]
            columns = tuple(column for each in named for column in _lacked(reading.schema, each))
            self._found[reading.reference] = note.others, columns
        return columns


def _lacked(schema: Schema, upstream: UpstreamTable) -> tuple[Column, ...]:
    return new_columns(schema, [(column.name, row_values.spark_type(column.type_name)) for column in upstream.columns])


def addable(note: TableNote, lacked: Sequence[Column], *, taken: bool) -> list[Column]:
    """Return those of the columns ``lacked`` that the table can get.

    ``taken``: it gets all that upstream has; else none of those is meant that it lacked from the first.
    """
    others = [other for other in note.others or () if other.late or taken]
    names = {
        other.name for other in others if other.version and not other.doubt and (other.blank or note.key is not None)
    }
    return [column for column in lacked if column.name in names]


def passed_over(note: TableNote, names: Collection[str]) -> TableNote:
    """Return the note after changes were read without columns in which they have values.

    A name that upstream does not know any longer was perhaps that of any blank column: then none is blank.
    """
    if not names:
        return note
    unknown = not {*names} <= {other.name for other in note.others or ()}
    others = (
        structs.replace(other, blank=other.blank and not unknown and other.name not in names)
        for other in note.others or ()
    )
    return structs.replace(note, others=(*others,))


def doubted(note: TableNote, lacked: Sequence[Column], beside: Mapping[frozenset[str], int]) -> TableNote:
    """Return the note after changes had these columns ``beside`` each other, by their last commit.

    Columns come in the order of their numbers.  So a change that has one, and not one that came before it, is from
    before a renaming, and which of them it has is not known.
    """
    names = {column.name for column in lacked}
    late = [other for other in note.others or () if other.late and other.version and other.name in names]
    doubt = 0
    for there, commit in beside.items():
        missing = [other.number for other in late if other.name not in there]
        if any(other.name in there and other.number > min(missing, default=other.number) for other in late):
            doubt = max(doubt, commit + 1)
    if not doubt:
        return note
    others = (
        structs.replace(other, blank=False, doubt=max(other.doubt, doubt)) if other in late else other
        for other in note.others or ()
    )
    return structs.replace(note, others=(*others,))


def settled(note: TableNote, start: int) -> TableNote:
    """Return the note of a table that is read from ``start`` on: changes from before it leave no column in doubt."""
    others = note.others and tuple(
        structs.replace(other, doubt=other.doubt if other.doubt > start else 0) for other in note.others
    )
    return structs.replace(note, others=others)


def seen(note: TableNote, since: Mapping[str, int]) -> TableNote:
    """Return the note after columns were seen for the first time, in the changes of these commits."""
    columns = (
        structs.replace(column, since=since[column.name]) if column.since == UNSEEN and column.name in since else column
        for column in note.columns
    )
    return structs.replace(note, columns=(*columns,))


def noted_wider(note: TableNote, schema: Schema, upstream: UpstreamTable, item: str) -> TableNote:
    """Return the note of a table to which columns were added here since it was noted.

    ``item``: what the table is called here.  Raises `SourceError`: upstream lacks one, or rows that are here could not
    go any longer.
    """
    found = declared_columns(note.table, schema.names[len(note.columns) :], upstream)
    if why := note.left or rewritten(note, upstream.published.shape):
        raise SourceError(TABLE_LEFT.said(table=note.table, why=why, item=item))
    note = shaped(note, upstream.published.shape, _UNTOLD)
    wanted = {column.name for column in found.values()}
    if doubtful := [other.name for other in note.others or () if other.doubt and other.name in wanted]:
        raise SourceError(COLUMN_DOUBTED.said(table=note.table, columns=", ".join(doubtful), item=item))
    blank = {other.name for other in note.others or () if other.blank}
    full = [name for name, column in found.items() if column.name not in blank]
    if full and note.key is None:
        raise SourceError(COLUMN_LATE.said(table=note.table, columns=", ".join(full), item=item))
    late = [structs.replace(column_note(column), since=UNSEEN, lacking=name in full) for name, column in found.items()]
    names = {column.name for column in late}
    others = tuple(other for other in note.others or () if other.name not in names)
    wider = structs.replace(note, columns=(*note.columns, *late), declared=schema.ddl, others=others)
    return shaped(wider, upstream.published.shape, _UNTOLD)


def unlooked(note: TableNote, schema: Schema, upstream: UpstreamTable) -> list[str]:
    """Return the columns that came since the last look and are not in ``schema``, if one that is came then too.

    Any of them may have had another's name since, which the changes say that the next look comes with.
    """
    known = {column.number for column in note.columns} | {other.number for other in note.others or ()}
    came = [c.name for c in upstream.columns if upstream.published.shape.columns[c.name][0] not in known]
    wanted = {column.name for column in declared_columns(note.table, schema.names, upstream).values()}
    return [name for name in came if name not in wanted] if note.others is not None and wanted & {*came} else []


def notices(note: TableNote, lacked: Sequence[Column], *, taken: bool, item: str) -> list[str]:
    """Return what is to be said of a table besides the columns that it can get; ``lacked``: all that it lacks.

    ``item``: what the table is called here.
    """
    late = {
        other.name
        for other in note.others or ()
        if (other.late or taken) and not (other.doubt and note.key is not None)
    }
    can = addable(note, lacked, taken=taken)
    said: list[str] = [
        COLUMN_UNREAD.said(table=note.table, columns=ddl_of([column]), item=item)
        for column in lacked
        if column.name in late and column not in can
    ]
    lacking = [column.name for column in note.columns if column.lacking]
    if lacking:
        said.append(COLUMN_NULL.said(table=note.table, columns=", ".join(lacking), item=item))
    return said
