"""A table of the publication as a collection: which of its columns are declared, and what its changes say of its rows.

Two ways, decided when the source first sees the table and noted (`ledger.TableNote`):

- *Taken back*: with REPLICA IDENTITY FULL upstream says each row as it was, so a change is −old and +new.  A table
  without a key is read like this too: while it has no identity, upstream itself refuses to update or delete its rows.
- *Keyed*: with a primary key, or REPLICA IDENTITY USING INDEX, upstream says the key as it was.  A value that an update
  left as it was (TOAST) is not sent; the record says so, and what is held has it.

What cannot be told so that the collection would stay right *stops* the table (`Stops`): a truncation, a column that is
gone or changed its type, an identity that says too little, another table under its name.

A column is found by its name, or by its name without case if only one is called so.  Columns that are not declared
are left out, whether they were there at first or were added later; that a row had a value in one is noted (`added`).
A column that was declared later is NULL in changes from before it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias, cast

from strandline.algebra.schema import Schema
from strandline.errors import SourceError
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW
from strandline.sources.reader import Keyed, Records, TakenBack
from strandline.sources.readers.postgres.ledger import UNSEEN, ColumnNote, TableNote
from strandline.sources.readers.postgres.options import table_name
from strandline.sources.readers.postgres.pgoutput import (
    KEPT,
    Delete,
    Identity,
    Insert,
    Relation,
    Tuple,
    Update,
    Value,
)
from strandline.sources.readers.postgres.server import UpstreamColumn, UpstreamTable
from strandline.sources.readers.postgres.slot import dotted, shaped, unlike

Texts: TypeAlias = tuple[bytes | None, ...]
"""The values of the declared columns, in their order, as texts."""
MOVED_AND_KEPT: Final = (
    "its key changed, and upstream did not send a large value that stayed as it was: "
    "set REPLICA IDENTITY FULL upstream, and update the row"
)
CAME_AND_KEPT: Final = (
    "the publication's row filter lets the row in from now on, and upstream did not send a large value that stayed as "
    "it was: set REPLICA IDENTITY FULL upstream, and update the row"
)
_KEY_KEPT: Final = "upstream did not send its key, a large value: set REPLICA IDENTITY FULL upstream"
_ALIKE: Final = frozenset({25, 1043})
"""Types (text, varchar; by OID) whose values stay what they are if the column gets another of them.

That their values were computed anew meanwhile, the catalog shows (`rewrites`).
"""
_NUMERIC: Final = 1700

TABLE_LEFT: Final = Problem(
    "postgres-table-left",
    "table {table!r} can be read no further: {why}",
    Stopped.TABLE,
    (ANEW,),
)
TABLE_STOPPED: Final = Problem(
    "postgres-table-stopped",
    "table {table!r} cannot be read beyond {at}: {why}",
    Stopped.TABLE,
    (ANEW,),
)
PARTS_UNLIKE: Final = Problem(
    "postgres-partition-unlike",
    "table {table!r} cannot be read: {why}",
    Stopped.TABLE,
    (Way("once its partition has the replica identity of the table, the next tick reads it"),),
)
KEY_LACKING: Final = Problem(
    "postgres-key-undeclared",
    "table {table!r} is kept by its key, of which {lacking} is not declared",
    Stopped.TABLE,
    (
        Way("drop the table here, and create it with that column"),
        Way("run upstream", "ALTER TABLE {upstream} REPLICA IDENTITY FULL", foreign=True),
    ),
)
COLUMN_LACKING: Final = Problem(
    "postgres-column-absent",
    "table {table!r} has no column {missing} in the publication; it has {there}",
    Stopped.TABLE,
    (Way("drop the table here, and create it with these"), Way("add the column there, or to the publication")),
)


class Change(NamedTuple):
    """What a message says of one row.

    ``diff``: 1, or −1 for a row as it was.  ``gone``: of a key that has no row from here on.  ``kept``: the positions
    of columns that stay as they were.  ``reason``: why the row cannot be told, else empty.
    """

    texts: Texts
    diff: int = 1
    gone: bool = False
    kept: tuple[int, ...] = ()
    reason: str = ""


class Stops(Exception):
    """The table cannot be read beyond this change; the text says why."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the declared columns stand in a relation's rows, and how far a row as it was is known.

    A position is None while a column is not there yet.  ``spare``: where columns stand that are blank as far as is
    noted, with their names.  ``names``: of all columns that are there.
    """

    positions: tuple[int | None, ...]
    full: bool
    spare: tuple[tuple[int, str], ...] = ()
    names: frozenset[str] = frozenset()

    def texts(self, row: Tuple) -> tuple[Value, ...]:
        """Return the declared columns of a row."""
        return tuple([None if at is None else row[at] for at in self.positions])


def noted(reference: str, schema: Schema, upstream: UpstreamTable) -> TableNote:
    """Return how a table is read whose columns are declared as ``schema``.

    Raises `SourceError`: a declared column is not there, or the key is not declared.
    """
    columns = declared_columns(reference, schema.names, upstream)
    if upstream.published.unlike:
        raise SourceError(PARTS_UNLIKE.said(table=reference, why=unlike(upstream.published.unlike)))
    key = None
    if upstream.identity in {Identity.DEFAULT, Identity.INDEX} and any(column.key for column in upstream.columns):
        declared = {column.name: name for name, column in columns.items()}
        lacking = [column.name for column in upstream.columns if column.key and column.name not in declared]
        if lacking:
            named = {"table": reference, "upstream": dotted(table_name(reference))}
            raise SourceError(KEY_LACKING.said(lacking=", ".join(lacking), **named))
        key = tuple(declared[column.name] for column in upstream.columns if column.key)
    notes = tuple(map(column_note, columns.values()))
    note = TableNote(reference, key, notes, schema.ddl, upstream.oid, (*sorted(upstream.published.entries),))
    return shaped(note, upstream.published.shape, 0)


def column_note(column: UpstreamColumn) -> ColumnNote:
    """Return how a column is read, of which all rows have what upstream has."""
    return ColumnNote(column.name, column.type_oid, column.modifier, column.type_name, delimiter=column.delimiter)


def declared_columns(reference: str, names: Sequence[str], upstream: UpstreamTable) -> dict[str, UpstreamColumn]:
    """Return the columns that have these names here, by them.  Raises `SourceError`: one is not there."""
    found = {name: _named(name, upstream.columns) for name in names}
    missing = [name for name, column in found.items() if column is None]
    if missing:
        there = ", ".join(column.name for column in upstream.columns)
        raise SourceError(COLUMN_LACKING.said(table=reference, missing=", ".join(missing), there=there))
    return {name: column for name, column in found.items() if column is not None}


def _named(name: str, columns: Sequence[UpstreamColumn]) -> UpstreamColumn | None:
    exact = [column for column in columns if column.name == name]
    alike = [column for column in columns if column.name.lower() == name.lower()]
    return exact[0] if exact else alike[0] if len(alike) == 1 else None


class Reading:
    """How the changes of one table are read."""

    def __init__(self, reference: str, schema: Schema, note: TableNote, item: str) -> None:
        """``item``: what the table is called here, for what messages advise."""
        self.item = item
        self.reference = reference
        self.schema = schema
        self.note = note
        names = list(schema.names)
        self.key = None if note.key is None else tuple(names.index(name) for name in note.key)
        self.seen: dict[str, int] = {}
        """In which commit a change first had a column that was declared later."""
        self.passed: dict[str, int] = {}
        """In which commit a row first had a value in a column that is not declared and was blank."""
        self.beside: dict[frozenset[str], int] = {}
        """With which columns changes came, some of which are not declared and were blank; and their last commit."""

    @property
    def noted(self) -> bool:
        """Whether upstream had the table as it is declared; until then none of its changes is read."""
        return self.note.declared == self.schema.ddl

    @property
    def table(self) -> tuple[str, str]:
        """Its schema and its name upstream."""
        return table_name(self.reference)

    @property
    def records(self) -> Records:
        """What its records are."""
        return TakenBack() if self.note.key is None else Keyed(self.note.key)

    def layout(self, relation: Relation, commit: int) -> Layout:
        """Return where the declared columns stand, in the changes of a commit.

        Raises `Stops`: the table is no longer what it was.
        """
        if self.note.oid not in {None, relation.oid}:
            raise Stops("another table has its name upstream now")
        if (relation.schema, relation.name) != self.table:
            raise Stops(f"it was renamed to {relation.schema}.{relation.name} upstream; first rename it back")
        positions = list[int | None]()
        at = {column.name: n for n, column in enumerate(relation.columns)}
        others = {other.name: other.blank for other in self.note.others or ()}
        declared = {column.name for column in self.note.columns}
        strange = not at.keys() <= declared | others.keys()  # one of these may be a column that was renamed
        for was in self.note.columns:
            if was.name not in at and (was.lacking or not strange) and self._is_to_come(was, commit):
                positions.append(None)
                continue
            if was.name not in at:
                raise Stops(
                    f"column {was.name!r} is gone upstream; first add it there, or create the table here without it"
                )
            now = relation.columns[at[was.name]]
            if not _reads_alike(was, now.type_oid, now.modifier):
                raise Stops(
                    f"column {was.name!r} was of type {was.type_name} and no longer is, and its rows may have "
                    "changed with it"
                )
            if was.since == UNSEEN:
                self._refuse_other(was, at)
                self.seen[was.name] = min(commit, self.seen.get(was.name, commit))
            positions.append(at[was.name])
        full = relation.identity is Identity.FULL
        if self.key is not None and not full:
            own = {n for n, column in enumerate(relation.columns) if column.key}
            if own != {positions[n] for n in self.key}:
                raise Stops(
                    f"its replica identity was the key {', '.join(self.note.key or ())} and is another now; first set "
                    "that key again, or REPLICA IDENTITY FULL"
                )
        spare = [(n, name) for name, n in at.items() if name not in declared and others.get(name, True)]
        return Layout(tuple(positions), full, tuple(spare), frozenset(at))

    def _is_to_come(self, column: ColumnNote, commit: int) -> bool:
        """Return whether a column that the changes of a commit lack was declared later, and came later."""
        first = self.seen.get(column.name) if column.since == UNSEEN else column.since
        return column.since != 0 and (first is None or commit <= first)

    def _refuse_other(self, column: ColumnNote, there: Collection[str]) -> None:
        """Raise `Stops` if a column that is seen first has the name of one that was declared later, and is another."""
        for earlier in self.note.columns:
            if earlier.since and 0 < earlier.number < column.number and earlier.name not in there:
                raise Stops(
                    f"column {column.name!r} is another one in this change than upstream has now, because column "
                    f"{earlier.name!r}, which came before it, is not there: one of them was renamed"
                )

    def passes(self, message: Insert | Update | Delete, layout: Layout, commit: int) -> None:
        """Take note of values that are not read, in columns that were blank."""
        self.beside[layout.names] = commit
        rows = [message.new] if isinstance(message, Insert | Update) else []
        rows += [message.old] if isinstance(message, Update | Delete) and message.old is not None else []
        for n, name in layout.spare:
            if any(row[n] is not None for row in rows):
                self.passed[name] = min(commit, self.passed.get(name, commit))

    def changes(self, message: Insert | Update | Delete, layout: Layout) -> tuple[Change, ...]:
        """Return what a message says.  Raises `Stops`: it says too little of the row as it was."""
        match message:
            case Insert(_, new) if self.key is None:
                return (Change(_plain(layout.texts(new))),)
            case Insert(_, new):
                return (_come(layout.texts(new)),)
            case Delete(_, old, key):
                if self.key is not None:
                    return (self._gone(layout.texts(old)),)
                return (Change(_plain(layout.texts(self._whole(old, key=key))), -1),)
            case Update(_, old, key, new) if self.key is None:
                before = layout.texts(self._whole(old, key=key))
                after = _filled(layout.texts(new), before)
                return Change(_plain(before), -1), Change(_plain(after))
            case Update(_, old, key, new):
                return self._moved(None if old is None else layout.texts(old), layout.texts(new), key=key)

    def _whole(self, old: Tuple | None, *, key: bool) -> Tuple:
        if old is None or key:
            raise Stops(
                "a row was updated or deleted, and upstream does not say what it was: its replica identity is no "
                "longer FULL; first set it"
            )
        return old

    def _moved(self, old: tuple[Value, ...] | None, new: tuple[Value, ...], *, key: bool) -> tuple[Change, ...]:
        assert self.key is not None
        if old is not None:
            new = _filled(new, old) if not key else _filled(new, old, only=self.key)
        if any(new[n] is KEPT for n in self.key):
            return (Change(_without_kept(new), reason=_KEY_KEPT),)
        kept = tuple(n for n, text in enumerate(new) if text is KEPT)
        if old is None or all(old[n] == new[n] for n in self.key):
            return (Change(_without_kept(new), kept=kept),)
        return self._gone(old), Change(_without_kept(new), reason=MOVED_AND_KEPT if kept else "")

    def _gone(self, old: tuple[Value, ...]) -> Change:
        assert self.key is not None
        return Change(tuple(_text(old[n]) if n in self.key else None for n in range(len(old))), gone=True)


def _reads_alike(was: ColumnNote, type_oid: int, modifier: int) -> bool:
    """Return whether a column's values are what they were, in the same text form, though its type may be another."""
    if was.type_oid != type_oid:
        return {was.type_oid, type_oid} <= _ALIKE
    if was.type_oid != _NUMERIC or was.modifier == modifier:
        return True
    return modifier < 0 or (was.modifier >= 0 and _scale(modifier) >= _scale(was.modifier))


def _scale(modifier: int) -> int:
    """Return how many digits a numeric's modifier allows after the point."""
    return (modifier - 4) & 0x7FF


def _filled(new: tuple[Value, ...], old: tuple[Value, ...], only: Sequence[int] | None = None) -> tuple[Value, ...]:
    return tuple(old[n] if text is KEPT and (only is None or n in only) else text for n, text in enumerate(new))


def _text(value: Value) -> bytes | None:
    return None if value is KEPT else value


def _without_kept(values: tuple[Value, ...]) -> Texts:
    return tuple(map(_text, values))


def _come(values: tuple[Value, ...]) -> Change:
    return Change(_without_kept(values), reason=CAME_AND_KEPT if KEPT in values else "")


def _plain(values: tuple[Value, ...]) -> Texts:
    if KEPT in values:
        raise Stops("upstream left out a large value of a row as a whole")
    return cast("Texts", values)
