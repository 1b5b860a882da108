"""Gathering: Arrow tables, made one after the other, become the rows of a read, in bounded memory.

The rows of one time and one diff are put aside together (`Engine.aside`); what lies there stays until the next read
gathers anew, or until upstream was told that its slices are durable.

Source: design page "sources" (reading is by range).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from strandline.algebra.schema import Schema
from strandline.frontier.gauge import Offsets
from strandline.persist.handles.plane import Aside, Engine, Rows


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows that come (diff 1) or go (diff −1) at ``time``.

    ``tables`` makes them, one bounded table after the other, in a thread of its own; each has the schema's columns.
    """

    time: int
    diff: int
    tables: Callable[[], Iterator[pa.Table]]


class Gathering:
    """The rows of the last read of one table.  One coroutine at a time reads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._held = ExitStack()
        self._until: Offsets | None = None

    async def rows(self, schema: Schema, pieces: Iterable[Piece], until: Offsets) -> Rows:
        """Return the rows of all ``pieces`` (lazy); the last read's are forgotten.

        ``until``: once it is durable these may be forgotten.  Raises what making the tables raises, and
        `InvalidUsage` if a column cannot be cast to what ``schema`` says.
        """
        self.close()
        held, self._until = ExitStack(), until
        with held:
            groups: dict[tuple[int, int], list[Piece]] = {}
            for piece in pieces:
                groups.setdefault((piece.time, piece.diff), []).append(piece)
            frames = []
            for (time, _), those in groups.items():
                aside = held.enter_context(self._engine.aside(schema, time=time))
                await asyncio.to_thread(_fill, aside, those)
                frames.append(aside.rows())
            gathered = await self._engine.union(schema, frames, advance=0, negate=[diff < 0 for _, diff in groups])
            self._held = held.pop_all()
        return gathered

    def release(self, durable: Offsets) -> None:
        """Forget the rows if all of them are durable."""
        if self._until is not None and self._until <= durable:
            self.close()

    def close(self) -> None:
        """Forget the rows.  Idempotent."""
        self._until = None
        self._held.close()


def _fill(aside: Aside, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        for table in piece.tables():
            aside.add(table)
