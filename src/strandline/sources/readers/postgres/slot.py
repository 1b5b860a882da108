"""Faults of a server, a publication, a slot, or a table's columns, and what the operator can do about each.

Each fault is definite: it stays until the operator acts.

Some statements upstream change or delete rows without sending a change; the catalog shows them.  A change names its
columns by name and type alone, so a column that takes the name of another, or gets other values under the same type,
reads as before.  The rows that are not changed afterwards would stay wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from strandline.errors import SourceError
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW
from strandline.sources.readers.postgres.ledger import OtherNote, SlotNote, TableNote
from strandline.sources.readers.postgres.options import table_name
from strandline.sources.readers.postgres.pgoutput import lsn_text
from strandline.sources.readers.postgres.server import Shape, Standing, UpstreamTable


def rewritten(note: TableNote, shape: Shape) -> str:
    """Return why rows may have gone, or have other values in a declared column, without a change; empty: none has."""
    if not shape.parts.issuperset(note.parts):
        return "a partition was detached or dropped, and no change says which rows went with it"
    for column in note.columns:
        number, version = shape.columns.get(column.name, (0, 0))
        if not (column.number and number):
            continue  # it was not noted; or it is gone, which the next change says
        if number != column.number:
            return (
                f"column {column.name!r} was dropped or renamed, and another column has its name upstream now, and no "
                "change says what the other rows have in it"
            )
        if note.file and shape.file != note.file and version != column.version:
            return (
                f"column {column.name!r} was altered and the rows were rewritten (ALTER COLUMN … TYPE, for example), "
                "and no change says what they have now"
            )
    return ""


def unlike(part: str) -> str:
    """Return what to do about a partition whose replica identity is another than that of its table (`Published`)."""
    return (
        f"its partition {part} has another replica identity than the table, so changes may not say which row they are "
        f"about; first run ALTER TABLE {part} REPLICA IDENTITY … upstream, FULL or with the same columns as the table's"
    )


def shaped(note: TableNote, shape: Shape, flushed: int) -> TableNote:
    """Return the note of a table with its shape as it is.  While a column is gone, it stays as it was noted.

    ``flushed``: no change from before the look lies at or behind this position.
    """
    if any(column.name not in shape.columns for column in note.columns):
        return note
    columns = []
    for column in note.columns:
        number, version = shape.columns[column.name]
        columns.append(structs.replace(column, number=number, version=version))
    parts, others = (*sorted(shape.parts),), _others(note, shape, flushed)
    return structs.replace(
        note, columns=(*columns,), file=shape.file, parts=parts, others=others, highest=shape.highest
    )


def _others(note: TableNote, shape: Shape, flushed: int) -> tuple[OtherNote, ...]:
    """Return the columns that are not declared.  One that comes is blank unless a statement may have filled it.

    One that was there before the first note of others has values, as far as is known.  One that comes is in doubt if
    another column had its name since the last look: one that was noted, or one that came and went in between.  Numbers
    are given in turn, so one that nothing has now was such a column's.
    """
    there = {number for number, _ in shape.columns.values()}
    found = {
        other.number: other if other.number in there else structs.replace(other, version=0, blank=False)
        for other in note.others or ()
    }
    came = sum(number > note.highest for number in there)
    went = note.highest != 0 and shape.highest - note.highest != came
    named = {other.name for other in note.others or () if other.version}
    moved = note.file not in {0, shape.file}
    declared = {column.name for column in note.columns}
    for name, (number, version) in shape.columns.items():
        if name not in declared:
            late = note.others is not None
            doubt = flushed if late and (went or name in named) else 0
            blank = late and not doubt and name not in shape.filled
            before = found.get(number) or OtherNote(name, number, 0, late, blank, doubt)
            filled = moved and version != before.version  # by the statement that added it, or by one that altered it
            found[number] = structs.replace(before, name=name, version=version, blank=before.blank and not filled)
    return tuple(found[number] for number in sorted(found))


PLUGIN: Final = "pgoutput"
_NEEDED: Final = frozenset({"insert", "update", "delete"})
WAL_LEVEL: Final = Problem(
    "postgres-wal-level",
    "the server has wal_level = {level}; it has to be started anew after a change",
    Stopped.SOURCE,
    (Way("change it there", "ALTER SYSTEM SET wal_level = 'logical'", foreign=True),),
)
OTHER_DATABASE: Final = Problem(
    "postgres-another-database",
    "another database answers: the source was made on {known!r} of cluster {cluster}, and this is {database!r} of "
    "{system}",
    Stopped.SOURCE,
    (Way("correct its connection"), ANEW),
)
NO_PUBLICATION: Final = Problem(
    "postgres-publication-absent",
    "database {database!r} has no publication {publication!r}",
    Stopped.SOURCE,
    (Way("create it there", "CREATE PUBLICATION {quoted} FOR TABLE {tables}", foreign=True),),
)
PUBLICATION_DROPPED: Final = Problem(
    "postgres-publication-dropped",
    "publication {publication!r} of database {database!r} was dropped: changes since then are not sent; create it "
    "there first",
    Stopped.SOURCE,
    (ANEW,),
)
SERVER_BACK: Final = Problem(
    "postgres-server-went-back",
    "the server went back to {flushed}, and the source has read up to {known}: it lost log that was read, because a "
    "standby that was behind took over, or it was restored, and what it writes there now is not what was read",
    Stopped.SOURCE,
    (ANEW,),
)
KINDS: Final = Problem(
    "postgres-publication-leaves-out",
    "the publication leaves out changes: {why}",
    Stopped.TABLE,
    (
        Way(
            "change that there",
            "ALTER PUBLICATION {quoted} SET (publish = 'insert, update, delete, truncate')",
            foreign=True,
        ),
    ),
)
SLOT_DROPPED: Final = Problem(
    "postgres-slot-dropped",
    "replication slot {slot!r} was dropped: the changes that it kept are gone",
    Stopped.SOURCE,
    (ANEW,),
)
SLOT_TAKEN: Final = Problem(
    "postgres-slot-taken",
    "replication slot {slot!r} is there already, and is not this source's",
    Stopped.SOURCE,
    (
        Way("drop it there, if nothing needs it", "SELECT pg_drop_replication_slot('{slot}')", foreign=True),
        Way("drop the source, and create it with another name for its slot"),
    ),
)
SLOT_OTHER: Final = Problem(
    "postgres-slot-unlike",
    "replication slot {slot!r} is not one for {plugin} in database {database!r}",
    Stopped.SOURCE,
    (Way("drop the source, and create it with another name for its slot"),),
)
SLOT_LOST: Final = Problem(
    "postgres-slot-lost",
    "replication slot {slot!r} is lost: {why}; if it has that name by the source's options, first run there: SELECT "
    "pg_drop_replication_slot('{slot}')",
    Stopped.SOURCE,
    (ANEW,),
)
SLOT_MOVED: Final = Problem(
    "postgres-slot-moved",
    "slot {slot!r} has moved to {now}, beyond {start}, from where on it must be read: what lies between is gone",
    Stopped.SOURCE,
    (ANEW,),
)
UNPUBLISHED: Final = Problem(
    "postgres-table-unpublished",
    "publication {publication!r} does not have {table}",
    Stopped.TABLE,
    (Way("add it there", "ALTER PUBLICATION {quoted} ADD TABLE {table}", foreign=True),),
)
TRUNCATE: Final = Problem(
    "postgres-truncate-unpublished",
    "the publication leaves out TRUNCATE: rows that go by it stay here",
    Stopped.NOTHING,
    (
        Way(
            "have it sent from now on",
            "ALTER PUBLICATION {quoted} SET (publish = 'insert, update, delete, truncate')",
            foreign=True,
        ),
    ),
)


def check(
    standing: Standing,
    tables: Iterable[tuple[str, str]],
    made: SlotNote | None,
    slot: str,
    publication: str,
    item: str,
) -> None:
    """Raise `SourceError` if nothing can be read as upstream stands.  ``made``: what is known of the slot.

    ``tables``: what the statement is to name that makes the publication.  ``item``: the source's name.
    """
    if standing.wal_level != "logical":
        raise SourceError(WAL_LEVEL.said(level=standing.wal_level))
    if made is not None and (made.system, made.database) != (standing.system, standing.database):
        about = {"known": made.database, "cluster": made.system, "database": standing.database}
        raise SourceError(OTHER_DATABASE.said(**about, system=standing.system, item=item))
    if standing.published is None and made is not None and made.made:
        about = {"publication": publication, "database": standing.database}
        raise SourceError(PUBLICATION_DROPPED.said(**about, item=item))
    check_publication(standing, tables, publication)
    _check_slot(standing, made, slot, item)


def check_log(standing: Standing, read: int, item: str) -> None:
    """Raise `SourceError` if the server's log ends before ``read``, or before where the slot stands.

    ``item``: the source's name.
    """
    known = max(read, 0 if standing.slot is None else standing.slot.confirmed)
    if standing.flushed < known:
        about = {"flushed": lsn_text(standing.flushed), "known": lsn_text(known)}
        raise SourceError(SERVER_BACK.said(**about, item=item))


def check_publication(standing: Standing, tables: Iterable[tuple[str, str]], publication: str) -> None:
    """Raise `SourceError` if there is no publication.  ``tables``: what the statement is to name that makes it."""
    if standing.published is None:
        listed = ", ".join(map(dotted, tables)) or "…"
        about = {"database": standing.database, "publication": publication, "quoted": quoted(publication)}
        raise SourceError(NO_PUBLICATION.said(**about, tables=listed))


def check_kinds(standing: Standing, publication: str) -> None:
    """Raise `SourceError` if the publication leaves out changes that no table can do without."""
    if left_out := _left_out(standing, publication):
        raise SourceError(KINDS.said(why=left_out, quoted=quoted(publication)))


def _left_out(standing: Standing, publication: str) -> str:
    lacking = ", ".join(kind for kind in standing.unpublished if kind in _NEEDED)
    return f"publication {publication!r} leaves out each {lacking}" if lacking else ""


def followed(note: TableNote, standing: Standing, publication: str) -> TableNote:
    """Return the note of a table as it is after a look at the publication and the table.

    It says from then on if changes since the snapshot may be missing: upstream decides what it sends by the publication
    as it was at each change, and has no memory of what it was.  It sends nothing of rows that a statement rewrites.
    """
    assert standing.published is not None
    table = table_name(note.table)
    now = standing.published.get(table)
    if note.left:
        return note
    if now is None:
        why = f"publication {publication!r} does not have it; first run there: "
        why += f"ALTER PUBLICATION {quoted(publication)} ADD TABLE {dotted(table)}"
    elif left_out := _left_out(standing, publication):
        why = f"{left_out}; first change that there"
    elif note.entries and not now.goes_on(note.entries):
        why = (
            f"publication {publication!r} has left it out for a while, or was altered or made anew, so changes may be "
        )
        why += "missing"
    elif now.unlike:
        why = unlike(now.unlike)
    elif not (why := rewritten(note, now.shape)):
        return structs.replace(shaped(note, now.shape, standing.flushed), entries=(*sorted(now.entries),))
    return structs.replace(note, left=why)


def _check_slot(standing: Standing, made: SlotNote | None, slot: str, item: str) -> None:
    there = standing.slot
    if there is None:
        if made is not None and made.made:
            raise SourceError(SLOT_DROPPED.said(slot=slot, item=item))
        return
    if made is None:
        raise SourceError(SLOT_TAKEN.said(slot=slot))
    if (there.plugin, there.database) != (PLUGIN, standing.database):
        raise SourceError(SLOT_OTHER.said(slot=slot, plugin=PLUGIN, database=standing.database))
    if there.lost:
        raise SourceError(SLOT_LOST.said(slot=slot, why=there.lost, item=item))


def notices(standing: Standing, publication: str) -> tuple[str, ...]:
    """Return what an operator should know."""
    return (TRUNCATE.said(quoted=quoted(publication)),) if "truncate" in standing.unpublished else ()


def table_of(tables: Sequence[UpstreamTable], wanted: tuple[str, str], publication: str) -> UpstreamTable:
    """Return the table ``wanted``.  Raises `SourceError`: the publication does not have it."""
    for table in tables:
        if (table.schema, table.name) == wanted:
            return table
    listed = dotted(wanted)
    raise SourceError(UNPUBLISHED.said(publication=publication, quoted=quoted(publication), table=listed))


def quoted(name: str) -> str:
    """Return a name as PostgreSQL's SQL writes it, for a person to type.

    >>> print(quoted("bank"), quoted('My bank'))
    bank "My bank"
    """
    plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'


def dotted(table: tuple[str, str]) -> str:
    """Return schema and name of a table as SQL of PostgreSQL names it."""
    return f"{quoted(table[0])}.{quoted(table[1])}"
