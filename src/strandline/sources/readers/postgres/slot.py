"""What is wrong with a server, a publication or a slot, and what to do about it.

Each is definite: it stays wrong until the operator acts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import structs

from strandline.errors import SourceError
from strandline.sources.readers.postgres.ledger import SlotNote, TableNote
from strandline.sources.readers.postgres.options import table_name
from strandline.sources.readers.postgres.pgoutput import lsn_text
from strandline.sources.readers.postgres.rewrites import rewritten, shaped, unlike
from strandline.sources.readers.postgres.server import Standing, UpstreamTable

PLUGIN: Final = "pgoutput"
_NEEDED: Final = frozenset({"insert", "update", "delete"})
_ANEW: Final = "drop the source and its tables here, and create them anew"
_TABLE_ANEW: Final = "drop the table {} here and create it anew"


def check(
    standing: Standing, tables: Iterable[tuple[str, str]], made: SlotNote | None, slot: str, publication: str
) -> None:
    """Raise `SourceError` if nothing can be read as upstream stands.  ``made``: what is known of the slot.

    ``tables``: what the statement is to name that makes the publication.
    """
    if standing.wal_level != "logical":
        raise SourceError(
            f"the server has wal_level = {standing.wal_level}: run ALTER SYSTEM SET wal_level = 'logical' there, and "
            "start it anew"
        )
    if made is not None and (made.system, made.database) != (standing.system, standing.database):
        raise SourceError(
            f"another database answers: the source was made on {made.database!r} of cluster {made.system}, and this is "
            f"{standing.database!r} of {standing.system}; correct its connection, or {_ANEW}"
        )
    if standing.published is None and made is not None and made.made:
        raise SourceError(
            f"publication {publication!r} of database {standing.database!r} was dropped: changes since then are not "
            f"sent; create it there, then {_ANEW}"
        )
    check_publication(standing, tables, publication)
    _check_slot(standing, made, slot)


def check_log(standing: Standing, read: int) -> None:
    """Raise `SourceError` if the server's log ends before ``read``, or before where the slot stands."""
    known = max(read, 0 if standing.slot is None else standing.slot.confirmed)
    if standing.flushed < known:
        raise SourceError(
            f"the server went back to {lsn_text(standing.flushed)}, and the source has read up to {lsn_text(known)}: "
            "it lost log that was read, because a standby that was behind took over, or it was restored, and what it "
            f"writes there now is not what was read; {_ANEW}"
        )


def check_publication(standing: Standing, tables: Iterable[tuple[str, str]], publication: str) -> None:
    """Raise `SourceError` if there is no publication.  ``tables``: what the statement is to name that makes it."""
    if standing.published is None:
        listed = ", ".join(map(_dotted, tables)) or "…"
        raise SourceError(
            f"database {standing.database!r} has no publication {publication!r}: run "
            f"CREATE PUBLICATION {quoted(publication)} FOR TABLE {listed} there"
        )


def check_kinds(standing: Standing, publication: str) -> None:
    """Raise `SourceError` if the publication leaves out changes that no table can do without."""
    if left_out := _left_out(standing, publication):
        raise SourceError(
            f"{left_out}: run ALTER PUBLICATION {quoted(publication)} "
            "SET (publish = 'insert, update, delete, truncate') there"
        )


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
        why = f"publication {publication!r} does not have it: run ALTER PUBLICATION {quoted(publication)} ADD TABLE "
        why += f"{_dotted(table)} there, then"
    elif left_out := _left_out(standing, publication):
        why = f"{left_out}: change that there, then"
    elif note.entries and not now.goes_on(note.entries):
        why = (
            f"publication {publication!r} has left it out for a while, or was altered or made anew, so changes may be "
        )
        why += "missing:"
    elif now.unlike:
        why = f"{unlike(now.unlike)}, then"
    elif not (why := rewritten(note, now.shape)):
        return structs.replace(shaped(note, now.shape, standing.flushed), entries=(*sorted(now.entries),))
    return structs.replace(
        note, left=f"table {note.table!r} can be read no further: {why} {_TABLE_ANEW.format(note.table)}"
    )


def _check_slot(standing: Standing, made: SlotNote | None, slot: str) -> None:
    there = standing.slot
    if there is None:
        if made is not None and made.made:
            raise SourceError(f"replication slot {slot!r} was dropped: the changes that it kept are gone; {_ANEW}")
        return
    if made is None:
        raise SourceError(
            f"replication slot {slot!r} is there already, and is not this source's: name another, or drop it "
            f"(SELECT pg_drop_replication_slot('{slot}'))"
        )
    if (there.plugin, there.database) != (PLUGIN, standing.database):
        raise SourceError(
            f"replication slot {slot!r} is not one for {PLUGIN} in database {standing.database!r}: name another"
        )
    if there.lost:
        raise SourceError(
            f"replication slot {slot!r} is lost: {there.lost}; drop it (SELECT pg_drop_replication_slot('{slot}')), "
            f"then {_ANEW}"
        )


def notices(standing: Standing) -> tuple[str, ...]:
    """Return what an operator should know."""
    if "truncate" in standing.unpublished:
        return ("the publication leaves out TRUNCATE: rows that go by it stay here",)
    return ()


def table_of(tables: Sequence[UpstreamTable], wanted: tuple[str, str], publication: str) -> UpstreamTable:
    """Return the table ``wanted``.  Raises `SourceError`: the publication does not have it."""
    for table in tables:
        if (table.schema, table.name) == wanted:
            return table
    listed = _dotted(wanted)
    raise SourceError(
        f"publication {publication!r} does not have {listed}: run ALTER PUBLICATION {quoted(publication)} ADD TABLE "
        f"{listed} there"
    )


def quoted(name: str) -> str:
    """Return a name as PostgreSQL's SQL writes it, for a person to type.

    >>> print(quoted("bank"), quoted('My bank'))
    bank "My bank"
    """
    plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'


def _dotted(table: tuple[str, str]) -> str:
    return f"{quoted(table[0])}.{quoted(table[1])}"
