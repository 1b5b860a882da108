"""The correction buffer: what is desired and not in the shard, and the negation of what is there and not desired.

In steady state it holds one step's updates for as long as it takes to append them.  After a conflict it also holds the
negation of what the other wrote.  Its times are those of its updates, or the shard's upper if that is later: when the
shard's frontier advances, all times in the buffer move up to it, and what is left after consolidation is owed.  It
holds both halves of the shard.

It is bounded: a sink that loses race after race to writers of other rows would add to it each time.  Once it is `full`
the sink gives it up for an audit, which owes just two things: all that is desired, and the negation of all that is
stored.

If two replicas computed different contents of one shard from the same inputs, that is a `Disagreement`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

from strandline.algebra.schema import Schema
from strandline.frontier import Frontier
from strandline.persist.handles.contents import RowJobs, Rows
from strandline.persist.shard.batch import Digest
from strandline.persist.shard.state import ShardState

HELD_MAX: Final = 16
"""The most updates, each of one step or of one other writer, that a sink owes before it prefers an audit."""


@dataclass(frozen=True, slots=True)
class Updates:
    """Update frames of both halves: ``err`` has the one column ``__error``."""

    ok: tuple[Rows, ...] = ()
    err: tuple[Rows, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.ok or self.err)


class Correction:
    """Update frames of one sink, each with its sign."""

    def __init__(self, engine: RowJobs, schema: Schema) -> None:
        self._engine = engine
        self._schema = schema
        self._held: list[tuple[Updates, bool]] = []

    @property
    def empty(self) -> bool:
        """Whether nothing is owed (as far as is known without looking at rows)."""
        return not self._held

    @property
    def full(self) -> bool:
        """Whether so much was added since it was empty that an audit is cheaper than more of it."""
        return len(self._held) > HELD_MAX

    def add(self, desired: Updates) -> None:
        """Owe updates that the dataflow desires."""
        if desired:
            self._held.append((desired, False))

    def withdraw(self, stored: Updates) -> None:
        """Owe the negation of updates that are in the shard and not desired."""
        if stored:
            self._held.append((stored, True))

    def clear(self) -> None:
        """Owe nothing: everything is in the shard, or given up."""
        self._held.clear()

    async def rows(self, advance: int) -> Rows:
        """Return all that is owed, times moved up to ``advance``."""
        return await self._union([(r, sign) for held, sign in self._held for r in (*held.ok, *held.err)], advance)

    async def ok(self, advance: int) -> Rows:
        """Return what is owed of the ok half, times moved up to ``advance``."""
        return await self._union([(r, sign) for held, sign in self._held for r in held.ok], advance)

    def err(self) -> tuple[tuple[Rows, ...], tuple[bool, ...]]:
        """Return what is owed of the err half, and which of it is negated."""
        signed = [(r, sign) for held, sign in self._held for r in held.err]
        return tuple(rows for rows, _ in signed), tuple(sign for _, sign in signed)

    async def _union(self, signed: list[tuple[Rows, bool]], advance: int) -> Rows:
        frames, negate = [rows for rows, _ in signed], [sign for _, sign in signed]
        return await self._engine.union(self._schema, frames, advance=advance, negate=negate)


class Disagreement(msgspec.Struct, frozen=True):
    """What a sink found when it lost a race for the times ``[lower, upper)`` of its shard.

    ``theirs`` and ``ours``: the digests of all that the shard holds before ``upper``, and of all that it would hold if
    this sink had been faster.  ``missing``: how many rows only theirs has; ``extra``: only ours; ``example``: one of
    them, as text.  They are 0 where the rows were not compared, or equal: then this sink has not staged what it meant
    to.  ``afresh``: before ``lower`` nothing vouched for the shard, so both had to recompute all of it.  ``audited``:
    this sink had done so anyway, since it disagreed before.  ``by``: the name of the writer that has appended
    ``[lower, upper)``; empty: more than one has, or it is not known.

    One of the two replicas is wrong, and neither can know which: the process that commands both finds out
    (`controller/asking`).
    """

    lower: Frontier
    upper: Frontier
    theirs: Digest
    ours: Digest
    missing: int = 0
    extra: int = 0
    example: str = ""
    afresh: bool = False
    audited: bool = False
    by: str = ""


def writer_since(state: ShardState, lower: Frontier) -> str:
    """Return the name of the only writer that has appended to a shard beyond ``lower``; empty if there were more."""
    found = [name for name, writer in state.writers.items() if lower < writer.upper]
    return found[0] if len(found) == 1 else ""


def inexact(schema: Schema) -> bool:
    """Return whether rows may differ in their last digits, by the order in which Spark adds floats.

    >>> from strandline.algebra.schema import Column
    >>> inexact(Schema((Column("a", "array<double>"),))), inexact(Schema((Column("a", "decimal(10,2)"),)))
    (True, False)
    """
    return any("double" in column.type or "float" in column.type for column in schema)
