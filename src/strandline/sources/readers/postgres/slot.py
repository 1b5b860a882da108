"""What is wrong with a server, a publication or a slot, and what to do about it.

Each is definite: it stays wrong until the operator acts.

Source: design page "sources" (postgres: publication handling, detection of slot loss).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from strandline.errors import SourceError
from strandline.sources.readers.postgres.ledger import SlotNote
from strandline.sources.readers.postgres.server import Standing, UpstreamTable

PLUGIN: Final = "pgoutput"
_NEEDED: Final = frozenset({"insert", "update", "delete"})
_ANEW: Final = "drop the source and its tables here, and create them anew"


def check(
    standing: Standing, tables: Iterable[tuple[str, str]], made: SlotNote | None, slot: str, publication: str
) -> None:
    """Raise `SourceError` if no table can be read as upstream stands.  ``made``: what is known of the slot.

    ``tables``: for the statement that makes the publication.
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
    check_publication(standing, tables, publication)
    _check_slot(standing, made, slot)


def check_publication(standing: Standing, tables: Iterable[tuple[str, str]], publication: str) -> None:
    """Raise `SourceError` if there is no publication, or it does not say all changes.  ``tables``: see `check`."""
    name = quoted(publication)
    if standing.published is None:
        listed = ", ".join(map(_dotted, tables)) or "…"
        raise SourceError(
            f"database {standing.database!r} has no publication {publication!r}: run "
            f"CREATE PUBLICATION {name} FOR TABLE {listed} there"
        )
    if lacking := [kind for kind in standing.unpublished if kind in _NEEDED]:
        raise SourceError(
            f"publication {publication!r} leaves out each {', '.join(lacking)}: run ALTER PUBLICATION {name} "
            "SET (publish = 'insert, update, delete, truncate') there"
        )


def check_tables(standing: Standing, tables: Iterable[tuple[str, str]], publication: str) -> None:
    """Raise `SourceError` if the publication, which is there, does not have all of ``tables``."""
    assert standing.published is not None, "it was checked before"
    if missing := [table for table in tables if table not in standing.published]:
        raise _missing(missing, publication)


def _missing(tables: Sequence[tuple[str, str]], publication: str) -> SourceError:
    listed = ", ".join(map(_dotted, tables))
    return SourceError(
        f"publication {publication!r} does not have {listed}: run ALTER PUBLICATION {quoted(publication)} ADD TABLE "
        f"{listed} there"
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
    raise _missing([wanted], publication)


def quoted(name: str) -> str:
    """Return a name as PostgreSQL's SQL writes it, for a person to type.

    >>> print(quoted("bank"), quoted('My bank'))
    bank "My bank"
    """
    plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if plain else '"' + name.replace('"', '""') + '"'


def _dotted(table: tuple[str, str]) -> str:
    return f"{quoted(table[0])}.{quoted(table[1])}"
