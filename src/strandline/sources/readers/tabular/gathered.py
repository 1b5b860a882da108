"""Gathering: Arrow tables, made one after the other, become the rows of a read, in bounded memory.

The rows of one time and one diff are put aside together (`Staging.aside`); what lies there stays until the next read
gathers anew, or until upstream has its slices committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import pyarrow as pa

from strandline.algebra.schema import Schema
from strandline.frontier.gauge import Offsets
from strandline.persist.handles.contents import Rows
from strandline.plane.staging import Aside, Staging


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

    def __init__(self, engine: Staging) -> None:
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


def without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with texts and bytes where they lie by value: Arrow can do little with views of them.

    >>> views = pa.record_batch({"a": pa.array(["x"], pa.string_view()), "b": pa.array([1])})
    >>> [str(field.type) for field in without_views(views).schema]
    ['string', 'int64']
    """
    fields = [field.with_type(_without_views(field.type)) for field in batch.schema]
    if all(field.type == was.type for field, was in zip(fields, batch.schema, strict=True)):
        return batch
    return batch.cast(pa.schema(fields))


def _without_views(kind: pa.DataType) -> pa.DataType:
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_without_views(kind.value_type)))
    if pa.types.is_struct(kind):
        inner = [kind.field(n) for n in range(kind.num_fields)]
        return pa.struct([field.with_type(_without_views(field.type)) for field in inner])
    return kind


def _fill(aside: Aside, pieces: Sequence[Piece]) -> None:
    for piece in pieces:
        for table in piece.tables():
            aside.add(table)
