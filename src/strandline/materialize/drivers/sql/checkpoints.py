"""The table `strandline_checkpoints`: the fence and the checkpoint of each materialization and key range.

*Open*, in one transaction: raise the fence of every range that overlaps ours, and take ours out of them with the
checkpoint that they have there (`tiles`).  So a range never has a fence again that it had before.  *Commit*, in the
transaction that stores the rows: ``UPDATE ... SET checkpoint, fence = fence + 1 WHERE fence = mine`` must change
exactly one row, else another session has fenced this one.

Every function works inside the caller's transaction.  How two transactions that meet here exclude each other:

| system | an Open and a commit | two Opens |
| --- | --- | --- |
| PostgreSQL, READ COMMITTED | one waits for the row, and reads it anew | an advisory lock |
| MariaDB, REPEATABLE READ | the same: what locks reads what is newest, so all that is read here locks | locks of gaps |
| SQLite | BEGIN IMMEDIATE: one at a time | the same |
| DuckDB | they conflict if both change the fence to another value, so a commit raises it, too | a row that all change |

A session that takes ranges which disagree on bindings that are gone cannot keep a time of these.  It keeps that their
tables were filled (`_REMEMBERED`) and not given up, so that a backfill may still empty them.

Law: M3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from strandline.errors import FencedError, StrandlineError, Unavailable
from strandline.materialize.drivers.sql.connection import Connection, Sql
from strandline.materialize.drivers.sql.dialect import Dialect
from strandline.materialize.drivers.tiles import checkpoint_of, left_of
from strandline.materialize.protocol.refusals import OTHER_CHECKPOINT
from strandline.materialize.protocol.task import Checkpoint, KeyRange, given_up, location_of, resource_of

TABLE: Final = "strandline_checkpoints"

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {table} (
    materialization {name} NOT NULL, key_begin BIGINT NOT NULL, key_end BIGINT NOT NULL,
    fence BIGINT NOT NULL, checkpoint {text} NOT NULL,
    PRIMARY KEY (materialization, key_begin, key_end)
)"""
_FENCE: Final = """
UPDATE {table} SET fence = fence + 1
WHERE materialization = {1} AND key_begin <= {2} AND key_end >= {3}"""
_OVERLAPPING: Final = """
SELECT key_begin, key_end, fence, checkpoint FROM {table}
WHERE materialization = {1} AND key_begin <= {2} AND key_end >= {3}
ORDER BY key_begin"""
_REMOVE: Final = """
DELETE FROM {table}
WHERE materialization = {1} AND key_begin <= {2} AND key_end >= {3}"""
_INSERT: Final = "INSERT INTO {table} VALUES ({1}, {2}, {3}, {4}, {5})"
_ADVANCE: Final = """
UPDATE {table} SET checkpoint = {1}, fence = fence + 1
WHERE materialization = {2} AND key_begin = {3} AND key_end = {4} AND fence = {5}"""
_LOOK: Final = """
SELECT fence, checkpoint FROM {table}
WHERE materialization = {1} AND key_begin = {2} AND key_end = {3}"""
_REPLACE: Final = """
UPDATE {table} SET checkpoint = {1}, fence = fence + 1
WHERE materialization = {2} AND key_begin = {3} AND key_end = {4}"""
_REMEMBERED: Final = ".v0-gone"
"""Makes a state key that no binding has of a resource; a time of it means nothing."""
_OF_TASK: Final = "SELECT key_begin, key_end, checkpoint FROM {table} WHERE materialization = {1}"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to commit for a range: it lasts until another session raises the fence."""

    materialization: str
    range: KeyRange
    fence: int

    @property
    def raised(self) -> Claim:
        """The claim after a commit: it raises the fence, too."""
        return replace(self, fence=self.fence + 1)

    def refused(self, fences: Iterable[int]) -> StrandlineError:
        """Return the error for a lost claim, given the fences of the ranges that overlap its own now.

        Another session raises a fence, and none is ever lowered: where no other is higher, the database has been
        emptied, or an earlier state of it was put in its place.
        """
        if any(fence > self.fence for fence in fences):
            return FencedError(
                f"materialization {self.materialization!r} was fenced off by another session (its fence was "
                f"{self.fence})"
            )
        return Unavailable(OTHER_CHECKPOINT.said())


def create(connection: Connection, dialect: Dialect) -> None:
    """Create the table if it is missing.  Some systems commit here, so it is no part of a transaction."""
    connection.change(
        dialect.statement(_CREATE, table=dialect.qualified(TABLE), name=dialect.name_text, text=dialect.text)
    )


def claim(
    connection: Connection,
    dialect: Dialect,
    materialization: str,
    wanted: KeyRange,
    state_keys: Collection[str],
) -> tuple[Claim, Checkpoint]:
    """Fence every overlapping range and take ``wanted`` out of them; return its claim and its checkpoint.

    Raises `DefinitionError` as `tiles.checkpoint_of`.
    """
    table = dialect.qualified(TABLE)
    dialect.guard(connection, table, materialization)
    overlap = (materialization, wanted.end, wanted.begin)
    connection.change(dialect.statement(_FENCE, table=table), *overlap)
    rows: list[Any] = connection.query(_locking(dialect, dialect.statement(_OVERLAPPING, table=table)), *overlap)
    fences = {KeyRange(begin, end): fence for begin, end, fence, _ in rows}
    held = {KeyRange(begin, end): Checkpoint.decode(text) for begin, end, _, text in rows}
    base = _remembering(checkpoint_of(materialization, wanted, held, state_keys), held.values())
    if wanted in held:
        return Claim(materialization, wanted, fences[wanted]), base
    connection.change(dialect.statement(_REMOVE, table=table), *overlap)
    insert = dialect.statement(_INSERT, table=table)
    for other, checkpoint in held.items():
        for left in left_of(other, [wanted]):
            connection.change(insert, materialization, left.begin, left.end, fences[other], checkpoint.encode())
    fence = 1 + max(fences.values(), default=0)
    connection.change(insert, materialization, wanted.begin, wanted.end, fence, base.encode())
    return Claim(materialization, wanted, fence), base


def advance(connection: Connection, dialect: Dialect, held: Claim, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint, as part of the caller's transaction, after which the claim is ``held.raised``.

    Raises `FencedError` if another session has the claim, and `CorruptionError` if the database has lost it.
    """
    statement = dialect.statement(_ADVANCE, table=dialect.qualified(TABLE))
    place = (held.materialization, held.range.begin, held.range.end)
    if connection.change(statement, checkpoint.encode(), *place, held.fence) != 1:
        raise _refused(connection, dialect, held)


def landed(connection: Connection, dialect: Dialect, held: Claim, checkpoint: Checkpoint) -> bool:
    """Return whether a transaction that replaced the checkpoint was committed.

    Raises as `advance` if the claim was lost, whether before or after.
    """
    statement = _locking(dialect, dialect.statement(_LOOK, table=dialect.qualified(TABLE)))
    rows: list[Any] = connection.query(statement, held.materialization, held.range.begin, held.range.end)
    match rows:
        case [(fence, _)] if fence == held.fence:
            return False
        case [(fence, text)] if fence == held.raised.fence and Checkpoint.decode(text) == checkpoint:
            return True
    raise _refused(connection, dialect, held)


def _refused(connection: Connection, dialect: Dialect, held: Claim) -> StrandlineError:
    overlap = (held.materialization, held.range.end, held.range.begin)
    statement = _locking(dialect, dialect.statement(_OVERLAPPING, table=dialect.qualified(TABLE)))
    rows: list[Any] = connection.query(statement, *overlap)
    return held.refused(fence for _, _, fence, _ in rows)


def of_task(connection: Connection, dialect: Dialect, materialization: str) -> Mapping[KeyRange, Checkpoint]:
    """Return the checkpoints of all ranges of a materialization; changes nothing."""
    if TABLE not in dialect.tables(connection):
        return {}
    statement = dialect.statement(_OF_TASK, table=dialect.qualified(TABLE))
    rows: list[Any] = connection.query(statement, materialization)
    return {KeyRange(begin, end): Checkpoint.decode(text) for begin, end, text in rows}


def forget(connection: Connection, dialect: Dialect, materialization: str, state_keys: Collection[str]) -> None:
    """Take state keys out of the checkpoints of all ranges, and fence the sessions that would write them again."""
    statement = dialect.statement(_REPLACE, table=dialect.qualified(TABLE))
    for range_, held in of_task(connection, dialect, materialization).items():
        left = held.lacking(state_keys)
        if left != held:
            connection.change(statement, left.encode(), materialization, range_.begin, range_.end)


def _remembering(base: Checkpoint, held: Iterable[Checkpoint]) -> Checkpoint:
    """Return ``base`` with a mention of every resource that one of ``held`` says to be filled."""
    known = {resource_of(key) for key, _ in base.times}
    keys = {key for each in held for key, _ in each.times if resource_of(key) not in known and not given_up(key)}
    lost = (f"{resource_of(key)}{_REMEMBERED}@{location_of(key)}".removesuffix("@") for key in keys)
    return Checkpoint(tuple(sorted({**dict(base.times), **dict.fromkeys(lost, 0)}.items())))


def _locking(dialect: Dialect, query: Sql) -> Sql:
    return dialect.statement(dialect.lock, q=query)
