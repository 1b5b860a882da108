"""The correction buffer: what is desired and not yet in the shard, and the negation of what is there and not desired.

In steady state it holds one step's updates for as long as it takes to append them.  After a conflict it also holds the
negation of what the other wrote.  Its times are those of its updates, or the shard's upper where that is later: when
the shard's frontier advances, all times in the buffer move up to it, and what is left after consolidation is owed.

Source: design page "compute" (correction = desired − persist; "when the shard's frontier advances …").
"""

from __future__ import annotations

from strandline.algebra.schema import Schema
from strandline.persist.plane import Engine, Rows


class Correction:
    """Update frames of one sink, each with its sign."""

    def __init__(self, engine: Engine, schema: Schema) -> None:
        self._engine = engine
        self._schema = schema
        self._frames: list[tuple[Rows, bool]] = []

    @property
    def empty(self) -> bool:
        """Whether nothing is owed (as far as is known without looking at rows)."""
        return not self._frames

    @property
    def foreign(self) -> bool:
        """Whether it withdraws what somebody else wrote."""
        return any(negated for _, negated in self._frames)

    def add(self, desired: Rows) -> None:
        """Owe updates that the dataflow desires."""
        self._frames.append((desired, False))

    def withdraw(self, stored: Rows) -> None:
        """Owe the negation of updates that are in the shard and not desired."""
        self._frames.append((stored, True))

    def clear(self) -> None:
        """Owe nothing: everything has been appended."""
        self._frames.clear()

    async def rows(self, advance: int) -> Rows:
        """Return all that is owed, times moved up to ``advance``."""
        frames = [frame for frame, _ in self._frames]
        return await self._engine.union(
            self._schema, frames, advance=advance, negate=[negated for _, negated in self._frames]
        )
