"""Updates as Python programs see them, and codecs, which say how a collection stores them.

A codec turns Python updates into parts and parts into updates.  `RowCodec` is the usual one: the engine stages and
reads rows of a Spark schema, so the collection is like all others.  `ValueCodec` is for the program's own values: the
program's functions turn them into bytes, and only it can read them.

A codec's ``name`` and ``words`` are kept with the collection's name (`register.py`): opening it with others is refused.
If the encoding changes, the name must change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import InvalidUsage
from strandline.frontier import Frontier, as_time, given_time, whole
from strandline.persist.handles.contents import Contents, Merger, RowJobs, StageRequest
from strandline.persist.handles.records import (
    Bounds,
    Record,
    RecordMerger,
    consolidate,
    discard_records,
    read_records,
    stage_records,
)
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.batch import Staged, as_batch
from strandline.store.protocols import Blob

V = TypeVar("V")

DIFF_MAX: Final = 1 << 40
"""The largest diff of one update, so that sums of millions of them still fit 64 bits."""


class Update(NamedTuple, Generic[V]):
    """At ``time`` the count of ``value`` changes by ``diff``."""

    value: V
    time: int
    diff: int = 1


class Codec(Protocol[V]):
    """How a collection's updates become parts."""

    @property
    def name(self) -> str:
        """The name of the encoding; each way to write bytes has its own."""
        ...

    @property
    def words(self) -> str:
        """A description of the values in the codec's own words (for rows: the schema)."""
        ...

    @property
    def schema(self) -> Schema:
        """The columns, as far as the engine knows them."""
        ...

    @property
    def merger(self) -> Merger:
        """The merger that compacts what the codec wrote."""
        ...

    async def stage(
        self, writer: WriteHandle, updates: Iterable[Update[V]], bounds: Bounds, *, inline_bytes_max: int
    ) -> Staged:
        """Write one batch of ``bounds``, which contain all times; the result is durable and in no shard yet.

        ``inline_bytes_max``: how many inline bytes the shard's state has room for.
        """
        ...

    async def read(self, contents: Contents) -> list[Update[V]]:
        """Return the updates of ``contents``, equal ones added up, in order of time."""
        ...

    async def discard(self, staged: Iterable[Staged]) -> None:
        """Delete the parts of batches that were definitely refused."""
        ...


class RowCodec:
    """Rows of a Spark schema: each a mapping from column to value."""

    name = "rows"

    def __init__(self, engine: RowJobs, schema: Schema) -> None:
        self._engine = engine
        self.merger: Merger = engine
        self.schema = schema

    @property
    def words(self) -> str:
        """The schema."""
        return self.schema.ddl

    async def stage(
        self,
        writer: WriteHandle,
        updates: Iterable[Update[Mapping[str, Any]]],
        bounds: Bounds,
        *,
        inline_bytes_max: int,
    ) -> Staged:
        """See `Codec.stage`.  Raises `InvalidUsage` naming the column that is missing, unknown or of another type."""
        alike: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
        for update in updates:
            alike.setdefault((update.time, update.diff), []).append(update.value)
        names = list(self.schema.names)
        frames = [
            await self._engine.local(_table(rows, names), self.schema, time=time, diff=diff)
            for (time, diff), rows in alike.items()
        ]
        request = StageRequest(
            shard=writer.shard,
            schema=self.schema,
            lower=as_time(bounds[0]),
            upper=as_time(bounds[1]),
            prefix=writer.stage_prefix(),
            small=True,
            inline_bytes_max=inline_bytes_max,
        )
        together = await self._engine.union(self.schema, frames, advance=0, negate=[False] * len(frames))
        return await self._engine.stage(together, request)

    async def read(self, contents: Contents) -> list[Update[Mapping[str, Any]]]:
        """See `Codec.read`."""
        table = await self._engine.collect(await self._engine.read(contents))
        sums: dict[tuple[int, str], Update[Mapping[str, Any]]] = {}
        for row in table.to_pylist():
            time, diff = row.pop(TIME), row.pop(DIFF)
            there = sums.get((time, repr(row)))
            sums[time, repr(row)] = Update(row, time, diff + (there.diff if there else 0))
        return [update for _, update in sorted(sums.items()) if update.diff]

    async def discard(self, staged: Iterable[Staged]) -> None:
        """See `Codec.discard`."""
        for batch in staged:
            await self._engine.discard(batch)


class ValueCodec(Generic[V]):
    """Stores the program's own values by ``encode`` and ``decode``; equal values must have equal bytes."""

    schema = Schema((Column("value", "binary"),))

    def __init__(
        self, blob: Blob, name: str, encode: Callable[[V], bytes], decode: Callable[[bytes], V], *, words: str = ""
    ) -> None:
        self._blob = blob
        self.merger: Merger = RecordMerger(blob)
        self._encode = encode
        self._decode = decode
        self.name = f"value:{name}"
        self.words = words

    async def stage(
        self, writer: WriteHandle, updates: Iterable[Update[V]], bounds: Bounds, *, inline_bytes_max: int
    ) -> Staged:
        """See `Codec.stage`.  Raises `InvalidUsage` naming a value that cannot be encoded."""
        records = [Record(self._bytes(value), time, diff) for value, time, diff in updates]
        return await stage_records(self._blob, writer, records, bounds, inline_bytes_max=inline_bytes_max)

    async def read(self, contents: Contents) -> list[Update[V]]:
        """See `Codec.read`."""
        parts = (part for batch in contents.batches for part in batch.parts)
        wanted = [
            Record(r.data, max(r.time, contents.advance), r.diff)
            for r in await read_records(self._blob, contents.shard, parts)
            if contents.lower <= r.time < contents.upper
        ]
        return [Update(self._decode(r.data), r.time, r.diff) for r in consolidate(wanted)]

    async def discard(self, staged: Iterable[Staged]) -> None:
        """See `Codec.discard`."""
        await discard_records(self._blob, staged)

    def _bytes(self, value: V) -> bytes:
        try:
            data = self._encode(value)
        except Exception as error:  # the program's own function, which may raise anything
            raise InvalidUsage(f"codec {self.name!r} cannot encode {value!r}: {error!r}") from error
        if not isinstance(data, bytes | bytearray | memoryview):
            raise InvalidUsage(f"codec {self.name!r} makes {type(data).__name__} of {value!r}, not bytes")
        return bytes(data)


def given_updates(updates: Iterable[Update[V] | tuple[V, int, int]], whose: str) -> tuple[Update[V], ...]:
    """Check the updates that a caller passed, and return them with times and diffs as ints.

    Raises `InvalidUsage` for a number that is no time or diff: stored, it would make the whole batch unreadable.
    """
    given = (Update(*update) for update in updates)
    return tuple(Update(value, given_time(time, whose), given_diff(diff, whose)) for value, time, diff in given)


def given_diff(number: object, whose: str) -> int:
    """Check a diff that a caller passed, and return it.  Raises `InvalidUsage` that names ``whose`` it is.

    >>> given_diff(-2, "'orders'")
    -2
    >>> given_diff(1.5, "'orders'")
    Traceback (most recent call last):
    strandline.errors.InvalidUsage: 'orders': diff 1.5 is not a whole number within ±2**40
    """
    diff = whole(number)
    if diff is None or abs(diff) > DIFF_MAX:
        raise InvalidUsage(f"{whose}: diff {number!r} is not a whole number within ±2**40")
    return diff


def contents_of(shard: str, schema: Schema, staged: Staged) -> Contents:
    """Return the contents of a staged batch, to read them."""
    lower = as_time(staged.lower)
    return Contents(shard, schema, (as_batch(staged),), lower, as_time(staged.upper), lower)


def bounds_of(updates: Iterable[Update[Any]]) -> Bounds:
    """Return the narrowest bounds that all of ``updates`` (there is one) lie in."""
    times = [update.time for update in updates]
    return Frontier(min(times)), Frontier(max(times) + 1)


def _table(rows: list[Mapping[str, Any]], names: list[str]) -> pa.Table:
    for row in rows:
        if not isinstance(row, Mapping):
            raise InvalidUsage(f"{row!r} is no row: a mapping from column to value")
    found = dict.fromkeys((*names, *(name for row in rows for name in row)))
    return pa.table({str(name): _column(name, [row.get(name) for row in rows]) for name in found})


def _column(name: str, values: list[Any]) -> pa.Array:
    try:
        return pa.array(values)
    except Exception as error:  # Arrow calls methods of the program's own objects, which may raise anything
        raise InvalidUsage(f"column {name!r} cannot be made of these values: {error}") from error
