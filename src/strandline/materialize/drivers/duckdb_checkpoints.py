"""The table `strandline_checkpoints`: the fence and the checkpoint of each materialization and key range.

Every function works inside the caller's transaction.

Law: M3.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import duckdb

from strandline.errors import DefinitionError, FencedError
from strandline.materialize.protocol.task import NOTHING, Checkpoint, KeyRange

TABLE: Final = "strandline_checkpoints"

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS strandline_checkpoints (
    materialization VARCHAR, key_begin UINTEGER, key_end UINTEGER, fence BIGINT, checkpoint VARCHAR,
    PRIMARY KEY (materialization, key_begin, key_end)
)"""
_EXISTS: Final = "SELECT count(*) FROM duckdb_tables() WHERE table_name = 'strandline_checkpoints' AND NOT temporary"
_FENCE: Final = """
UPDATE strandline_checkpoints SET fence = fence + 1
WHERE materialization = ? AND key_begin <= ? AND key_end >= ?"""
_OVERLAPPING: Final = """
SELECT key_begin, key_end, fence, checkpoint FROM strandline_checkpoints
WHERE materialization = ? AND key_begin <= ? AND key_end >= ?
ORDER BY key_end - key_begin, key_begin"""
_INSERT: Final = "INSERT INTO strandline_checkpoints VALUES (?, ?, ?, ?, ?)"
_ADVANCE: Final = """
UPDATE strandline_checkpoints SET checkpoint = ?, fence = fence
WHERE materialization = ? AND key_begin = ? AND key_end = ? AND fence = ?"""
"""It writes the fence too, because two transactions conflict in DuckDB only if they change the same column."""
_LOOK: Final = """
SELECT fence, checkpoint FROM strandline_checkpoints
WHERE materialization = ? AND key_begin = ? AND key_end = ?"""
_OF_TASK: Final = "SELECT checkpoint FROM strandline_checkpoints WHERE materialization = ?"


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to commit for a range: it lasts until another session raises the fence."""

    materialization: str
    range: KeyRange
    fence: int

    def fenced(self) -> FencedError:
        """Return the error for a lost claim."""
        return FencedError(
            f"materialization {self.materialization!r} was fenced off by another session (its fence was {self.fence})"
        )


def claim(connection: duckdb.DuckDBPyConnection, materialization: str, wanted: KeyRange) -> tuple[Claim, Checkpoint]:
    """Fence every overlapping range, create the exact one if missing; return its claim and its checkpoint.

    Raises:
        DefinitionError: ranges that overlap but do not cover this one have other checkpoints, so no single checkpoint
            is right.
    """
    connection.execute(_CREATE)
    connection.execute(_FENCE, [materialization, wanted.end, wanted.begin])
    rows = connection.execute(_OVERLAPPING, [materialization, wanted.end, wanted.begin]).fetchall()
    others = [(KeyRange(begin, end), fence, Checkpoint.decode(text)) for begin, end, fence, text in rows]
    covering = [other for other in others if other[0].covers(wanted)]
    base = covering[0][2] if covering else NOTHING
    for held, _, checkpoint in others:
        if checkpoint != base and not held.covers(wanted):
            raise DefinitionError(
                f"materialization {materialization!r}: key range [{wanted.begin}, {wanted.end}] cannot be opened, "
                f"because [{held.begin}, {held.end}] has another checkpoint; bump the backfill of its bindings"
            )
    if covering and covering[0][0] == wanted:
        return Claim(materialization, wanted, covering[0][1]), base
    fence = 1 + max((fence for _, fence, _ in others), default=0)
    connection.execute(_INSERT, [materialization, wanted.begin, wanted.end, fence, base.encode()])
    return Claim(materialization, wanted, fence), base


def advance(connection: duckdb.DuckDBPyConnection, held: Claim, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint, as part of the caller's transaction.  Raises `FencedError` if the claim is lost."""
    parameters = [checkpoint.encode(), held.materialization, held.range.begin, held.range.end, held.fence]
    if connection.execute(_ADVANCE, parameters).fetchall() != [(1,)]:
        raise held.fenced()


def look(connection: duckdb.DuckDBPyConnection, held: Claim) -> Checkpoint:
    """Return the committed checkpoint of the claim.  Raises `FencedError` if the claim is lost."""
    rows = connection.execute(_LOOK, [held.materialization, held.range.begin, held.range.end]).fetchall()
    if len(rows) != 1 or rows[0][0] != held.fence:
        raise held.fenced()
    return Checkpoint.decode(rows[0][1])


def of_task(connection: duckdb.DuckDBPyConnection, materialization: str) -> tuple[Checkpoint, ...]:
    """Return the checkpoints of all ranges of a materialization; changes nothing."""
    if connection.execute(_EXISTS).fetchall() == [(0,)]:
        return ()
    return tuple(Checkpoint.decode(text) for (text,) in connection.execute(_OF_TASK, [materialization]).fetchall())
