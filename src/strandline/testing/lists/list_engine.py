"""An `Engine` over Python lists: for the simulator, and for tests of code that moves rows.

It keeps the engine's contract.  Plans are evaluated row by row (`list_plans`), over the expressions that
`list_expressions` knows; for a query that only Spark can run, a test passes a Python function.  Parts are msgpack in
the given Blob.  Every call computes at once, so a frame is a value; only the Blob suspends.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, cast

import google_crc32c
import msgspec
import pyarrow as pa
import xxhash
from msgspec.structs import replace

from strandline.algebra.messages import GONE, KEPT, ORDER, cancelled
from strandline.algebra.nodes import First, Node
from strandline.algebra.scalar import Condition
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.errors import CollectionError, CorruptionError, InvalidUsage
from strandline.frontier import MINIMUM, TIME_MAX, Frontier
from strandline.persist.handles.contents import Contents, Half, Rows, StageRequest
from strandline.persist.shard.batch import (
    INLINE_PART_BYTES_MAX,
    NOTHING,
    Batch,
    BlobPart,
    Digest,
    InlinePart,
    Part,
    Staged,
    narrowed,
)
from strandline.plane import Described, Differences, Errors
from strandline.sources.envelopes import changed
from strandline.store.protocols import Blob
from strandline.testing.lists.list_plans import Plans, Query

Row = dict[str, Any]
SAMPLE_MAX = 5
_OURS = frozenset({TIME, DIFF})


@dataclass(frozen=True, slots=True)
class Listed:
    """The `Rows` of this engine: column names and a list of rows, each a dict of all columns."""

    names: tuple[str, ...]
    rows: tuple[Row, ...]


class ListedAside:
    """See `Aside`."""

    def __init__(self, schema: Schema, time: int) -> None:
        self._schema = schema
        self._time = time
        self._rows: list[Row] = []

    def add(self, table: pa.Table) -> None:
        """See `Aside.add`."""
        self._rows += listed(_stamped(table, self._schema, self._time, 1)).rows

    def rows(self) -> Rows:
        """See `Aside.rows`."""
        return updates(self._schema, self._rows)


class ListedArrivals:
    """See `Engine.arrivals`."""

    def __init__(self, schema: Schema, *, keyed: bool) -> None:
        self._names = (*schema.names, ERROR, *((ORDER, GONE, KEPT) if keyed else ()), TIME, DIFF)
        self._rows: list[Row] = []

    def add(self, table: pa.Table) -> None:
        """See `Aside.add`; types are not cast."""
        given = {*table.column_names}
        missing, unknown = {*self._names} - given - {ERROR, KEPT}, given - {*self._names}
        if missing or unknown:
            raise InvalidUsage(f"of a reader's records are missing: {sorted(missing)}; unknown: {sorted(unknown)}")
        self._rows += ({name: row.get(name) for name in self._names} for row in table.to_pylist())

    def rows(self) -> Rows:
        """See `Aside.rows`."""
        names = tuple(n for n in self._names if n != ERROR or any(row[ERROR] is not None for row in self._rows))
        return Rows(Listed(names, tuple({name: row[name] for name in names} for row in self._rows)))


def listed(rows: Rows) -> Listed:
    """Return the frame inside ``rows``."""
    return cast("Listed", rows)


def updates(schema: Schema, rows: Iterable[Mapping[str, Any]]) -> Rows:
    """Return ``rows`` as updates: each has ``__time``, and may lack columns and ``__error`` (None), ``__diff`` (1)."""
    given = list(rows)
    erring = any(row.get(ERROR) is not None for row in given)
    names = (*schema.names, *([ERROR] if erring else []), TIME, DIFF)
    filled = tuple({name: row.get(name, 1 if name == DIFF else None) for name in names} for row in given)
    return Rows(Listed(names, filled))


def _stamped(table: pa.Table, schema: Schema, time: int, diff: int) -> Rows:
    if set(table.column_names) != set(schema.names):
        raise InvalidUsage(f"columns {table.column_names} are not those of the collection, {list(schema.names)}")
    return updates(schema, ({**row, TIME: time, DIFF: diff} for row in table.to_pylist()))


class ListEngine:
    """`plane.Engine` over lists, with parts in ``blob``.

    ``queries``: a function for each query without a plan, by its text.
    """

    def __init__(self, blob: Blob, queries: Mapping[str, Query] | None = None) -> None:
        self._blob = blob
        self._queries = queries or {}
        self.staged = 0  # how many batches with rows were written: each would be a Spark job
        self.discarded = 0  # how many batches were discarded

    async def read(self, contents: Contents) -> Rows:
        """See `Engine.read`."""
        names = (*columns(contents), TIME, DIFF)
        good = {Half.OK: (True,), Half.ERR: (False,), Half.BOTH: (True, False)}[contents.half]
        found = []
        for part in (part for batch in contents.batches for part in batch.parts):
            shown = contents.through(part.window)
            if shown is not None:
                for row in await self._decode(part):
                    time = row[TIME]
                    if shown.lower <= time < shown.upper and (row.get(ERROR) is None) in good:
                        seen = dict(zip(names, map(row.get, names), strict=True))
                        seen[TIME] = max(time, shown.advance)
                        found.append(seen)
        rows = Listed(names, tuple(found))
        return Rows(_added_up(rows) if contents.net else rows)

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """See `Engine.evaluate`."""
        rows = Plans({name: listed(each).rows for name, each in frames.items()}, self._queries, origin).updates(node)
        return Rows(Listed((*node.names, TIME, DIFF), tuple(rows)))

    async def derived(self, node: Node, drafted: Mapping[str, tuple[Schema, Rows]]) -> Rows | None:
        """See `Engine.derived`."""
        return await self.evaluate(node, {name: rows for name, (_, rows) in drafted.items()})

    async def union(self, schema: Schema, frames: Sequence[Rows], *, advance: int, negate: Sequence[bool]) -> Rows:
        """See `Engine.union`."""
        erring = any(ERROR in listed(rows).names for rows in frames)
        names = (*schema.names, *([ERROR] if erring else []), TIME, DIFF)
        both = [
            {
                **dict(zip(names, map(row.get, names), strict=True)),
                TIME: max(row[TIME], advance),
                DIFF: -row[DIFF] if negative else row[DIFF],
            }
            for rows, negative in zip(frames, negate, strict=True)
            for row in listed(rows).rows
        ]
        return Rows(Listed(names, tuple(both)))

    async def stage(self, rows: Rows, request: StageRequest) -> Staged:
        """See `Engine.stage`."""
        columns = (*request.schema.names, ERROR, TIME)
        net: Counter[tuple[Any, ...]] = Counter()
        for row in listed(rows).rows:
            if not request.lower <= row[TIME] < request.upper:
                raise InvalidUsage(f"time {row[TIME]} does not lie in [{request.lower}, {request.upper})")
            net[tuple(row.get(name) for name in columns)] += row[DIFF]
        kept = [dict(zip(columns, values, strict=True)) | {DIFF: diff} for values, diff in net.items() if diff]
        parts = await self._write(kept, request) if kept else ()
        return replace(_counted(kept, Frontier(request.lower), Frontier(request.upper), parts), sort=request.sort)

    async def stage_many(self, asked: Sequence[tuple[Rows, StageRequest]]) -> list[Staged | BaseException]:
        """See `Engine.stage_many`."""
        outcomes: list[Staged | BaseException] = []
        for rows, request in asked:
            try:
                outcomes.append(await self.stage(rows, request))
            except Exception as error:  # noqa: BLE001 - it is the outcome of this one
                outcomes.append(error)
        return outcomes

    async def merge(self, contents: Contents, request: StageRequest) -> Staged:
        """See `Engine.merge`."""
        found = listed(await self.read(replace(contents, half=Half.BOTH)))
        kept = list(_added_up(found).rows)
        parts = await self._write(kept, request) if kept else ()
        lower, upper = contents.batches[0].lower, contents.batches[-1].upper
        digest = sum((batch.digest for batch in contents.batches), NOTHING)
        made = _counted(kept, lower, upper, parts)
        return replace(made, digest=digest, since=Frontier(contents.advance), sort=request.sort)

    async def verify(self, contents: Contents) -> int:
        """See `Merger.verify`."""
        found = listed(await self.read(replace(contents, half=Half.BOTH)))
        return sum(row[DIFF] for row in found.rows)

    def planned(self, shard: str) -> str:
        """See `Engine.planned`: here nothing is planned."""
        return ""

    async def trim(self, staged: Staged, schema: Schema, lower: Frontier, upper: Frontier) -> Staged:
        """See `Engine.trim`."""
        parts = narrowed(staged, lower, upper)
        batch = Batch(lower, upper, MINIMUM, parts, staged.rows, staged.diffs, staged.digest, staged.plain)
        whole = Contents("trimmed", schema, (batch,), 0, TIME_MAX, 0, Half.BOTH)
        found = listed(await self.read(whole))
        return _counted(found.rows, lower, upper, parts if found.rows else ())

    async def discard(self, staged: Staged) -> None:
        """See `Engine.discard`."""
        self.discarded += 1
        for part in staged.parts:
            if isinstance(part, BlobPart):
                await self._blob.delete(part.key)

    async def multiset(self, rows: Rows) -> Rows:
        """See `Engine.multiset`."""
        names = tuple(name for name in listed(rows).names if name not in _OURS)
        counts: Counter[tuple[Any, ...]] = Counter()
        for row in listed(rows).rows:
            counts[tuple(row[name] for name in names)] += row[DIFF]
        for values, count in counts.items():
            if count < 0:
                raise CollectionError(f"a row has the negative count {count}: {dict(zip(names, values, strict=True))}")
        return Rows(Listed(names, tuple(dict(zip(names, v, strict=True)) for v in counts.elements())))

    async def collect(self, rows: Rows, bytes_max: int = 0, rows_max: int = 0) -> pa.Table:
        """See `Engine.collect`; all of it is here already."""
        frame = listed(rows)
        return pa.table({name: [row[name] for row in frame.rows] for name in frame.names})

    async def local(self, table: pa.Table, schema: Schema, *, time: int, diff: int) -> Rows:
        """See `Engine.local`; types are not cast."""
        return _stamped(table, schema, time, diff)

    @contextmanager
    def aside(self, schema: Schema, *, time: int) -> Iterator[ListedAside]:
        """See `Engine.aside`; all of it stays in memory."""
        yield ListedAside(schema, time)

    @contextmanager
    def arrivals(self, schema: Schema, *, keyed: bool) -> Iterator[ListedArrivals]:
        """See `Engine.arrivals`; all of it stays in memory."""
        yield ListedArrivals(schema, keyed=keyed)

    async def query(self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], *, time: int) -> tuple[Schema, Rows]:
        """Refuse: this engine reads no SQL text."""
        raise InvalidUsage("ListEngine reads no SQL; ask Spark's engine")

    async def answer(
        self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], given: Sequence[pa.Scalar] = ()
    ) -> tuple[pa.Schema, Rows]:
        """Refuse: this engine reads no SQL text."""
        raise InvalidUsage("ListEngine reads no SQL; ask Spark's engine")

    async def described(
        self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], count: int, limits: Collection[int]
    ) -> Described:
        """Refuse: this engine reads no SQL text."""
        raise InvalidUsage("ListEngine reads no SQL; ask Spark's engine")

    def require_executors(self) -> None:
        """See `SparkEngine.require_executors`: nothing runs elsewhere."""

    async def executors(self) -> None:
        """See `SparkEngine.executors`: nothing runs elsewhere."""

    def hasten(self) -> None:
        """See `SparkEngine.hasten`: nothing runs elsewhere."""

    def settings(self) -> dict[str, str]:
        """Return the settings that affect results: none."""
        return {}

    async def require_running(self) -> None:
        """See `ViewEngine.require_running`: it runs as long as this process."""

    async def times(self, contents: Contents) -> Mapping[int, int]:
        """See `Engine.times`."""
        return dict(sorted(Counter(row[TIME] for row in listed(await self.read(contents)).rows).items()))

    async def errors(self, rows: Rows, *, of: str | None = None) -> Errors:
        """See `Engine.errors`."""
        sums: Counter[str] = Counter()
        for row in listed(rows).rows:
            if of is None or json.loads(row[ERROR]).get("collection") == of:
                sums[row[ERROR]] += row[DIFF]
        left = {error: count for error, count in sums.items() if count}
        return Errors(sum(left.values()), tuple(sorted(left)[:SAMPLE_MAX]))

    async def cancel(self, rows: Rows, held: Rows, *, time: int) -> Rows:
        """See `Engine.cancel`."""
        there: Counter[str] = Counter()
        for row in (row for each in (rows, held) for row in listed(each).rows if row.get(ERROR) is not None):
            there[row[ERROR]] += row[DIFF]
        names = listed(rows).names
        none = dict.fromkeys(names)
        gone = (none | {ERROR: error, TIME: time, DIFF: -n} for error, n in cancelled(there).items())
        return Rows(Listed(names, (*listed(rows).rows, *gone)))

    async def keyed(
        self, records: Rows, held: Rows | None, errors: Rows | None, schema: Schema, key: Sequence[str]
    ) -> Rows:
        """See `Engine.keyed`."""
        there, erring = (() if rows is None else listed(rows).rows for rows in (held, errors))
        found = changed(listed(records).rows, there, erring, schema.names, key)
        names = (*schema.names, ERROR, TIME, DIFF)
        return Rows(Listed(names, tuple(found)))

    async def weights(self, rows: Rows) -> Mapping[int, int]:
        """See `Engine.weights`."""
        sums: Counter[int] = Counter()
        for row in listed(rows).rows:
            sums[row[TIME]] += row[DIFF]
        return dict(sorted(sums.items()))

    async def net(
        self, contents: Contents, *, key: Sequence[str] = (), times: bool = False
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """See `Engine.net`; each batch has one row, so that tests cover keys that span batches."""
        found = listed(await self.read(contents))
        kept = [*(name for name in found.names if name not in _OURS), *([TIME] if times else [])]
        sums: Counter[tuple[Any, ...]] = Counter()
        for row in found.rows:
            sums[tuple(row[name] for name in kept)] += row[DIFF]
        net = [dict(zip(kept, values, strict=True)) | {DIFF: diff} for values, diff in sums.items() if diff]
        net.sort(key=lambda row: ([repr(row[name]) for name in key], row[TIME] if times else 0, repr(row)))
        names = [*kept, DIFF]
        arrays = [pa.array([row[name] for row in net]) for name in names]
        for batch in pa.Table.from_arrays(arrays, names).to_batches(1):
            yield batch

    async def lookup(
        self,
        old: Contents,
        columns: Sequence[str],
        keys: Sequence[tuple[Rows, Sequence[str]]],
        *,
        nulls: bool,
        first: tuple[First, Rows] | None = None,
        span: bool = False,
        read: Collection[str] | None = None,
    ) -> Rows | None:
        """See `Engine.lookup`: exactly those rows."""
        if span:
            ((rows, (name,)),) = keys
            return await self._between(old, columns[0], [(row[name], row) for row in listed(rows).rows], read)
        wanted = {tuple(row[name] for name in named) for rows, named in keys for row in listed(rows).rows}
        wanted = {key for key in wanted if nulls or None not in key} if columns or keys else {()}
        found = _added_up(listed(await self.read(replace(old, half=Half.OK))))
        groups: dict[tuple[Any, ...], list[Row]] = {key: [] for key in wanted}
        for row in found.rows:
            groups.get(tuple(row[name] for name in columns), []).append(row)
        names = tuple(name for name in found.names if read is None or name in _OURS or name in read)
        if first is None:
            return _narrow((row for rows in groups.values() for row in rows), names)
        least, change = first
        gone: Counter[tuple[Any, ...]] = Counter()
        for row in listed(change).rows:
            gone[tuple(row[name] for name in columns)] += max(0, -row[DIFF])
        kept = (first_rows(rows, least, gone[key]) for key, rows in groups.items())
        return _narrow((row for rows in kept for row in rows), names)

    async def peek(
        self, old: Contents, columns: Sequence[str], keys: pa.Table, limit: int | None = None
    ) -> pa.Table | None:
        """See `Engine.peek`: all contents are in memory."""
        wanted = {_key(row) for row in _decoded(_encoded(keys.to_pylist()))}
        found = listed(await self.multiset(await self.read(replace(old, half=Half.OK))))
        rows = [row for row in found.rows if _key({name: row[name] for name in columns}) in wanted]
        return pa.table({name: [row[name] for row in rows[:limit]] for name in found.names})

    async def _between(
        self, old: Contents, column: str, keys: Sequence[tuple[Any, Row]], read: Collection[str] | None
    ) -> Rows | None:
        values, sums = [value for value, _ in keys], Counter[int]()
        for _, row in keys:
            sums[row[TIME]] += row[DIFF]
        if not values or any(sums.values()) or not all(isinstance(value, int | Decimal) for value in values):
            return None  # a date is a text here
        found = _added_up(listed(await self.read(replace(old, half=Half.OK))))
        inside = (r for r in found.rows if r[column] is not None and min(values) <= r[column] <= max(values))
        return _narrow(inside, tuple(name for name in found.names if read is None or name in _OURS or name in read))

    async def prune(self, old: Contents, column: str, keys: Sequence[tuple[Rows, str]], *, nulls: bool) -> Rows | None:
        """See `Engine.prune`: exactly those rows."""
        values = [row[name] for rows, name in keys for row in listed(rows).rows if row[name] is not None]
        if not values:
            return None
        found = listed(await self.read(old))
        inside = (
            row for row in found.rows if (nulls if row[column] is None else min(values) <= row[column] <= max(values))
        )
        return _narrow(inside, found.names)

    async def narrowed(self, rows: Rows, conditions: Sequence[Condition]) -> Rows:
        """See `Engine.narrowed`: every row remains."""
        return rows

    async def restrict(self, rows: Rows, to: Rows, schema: Schema) -> Rows:
        """See `Engine.restrict`."""
        wanted = {_values(row, schema) for row in listed(to).rows}
        kept = tuple(row for row in listed(rows).rows if _values(row, schema) in wanted)
        return Rows(Listed(listed(rows).names, kept))

    async def differences(self, rows: Rows, schema: Schema, *, significant: int | None = None) -> Differences:
        """See `Engine.differences`; floats are compared exactly."""
        sums: Counter[tuple[Any, ...]] = Counter()
        for row in listed(rows).rows:
            sums[_values(row, schema)] += row[DIFF]
        left = [dict(zip(schema.names, values, strict=True)) | {DIFF: diff} for values, diff in sums.items() if diff]
        left.sort(key=lambda row: row[DIFF])
        missing = -sum(row[DIFF] for row in left if row[DIFF] < 0)
        extra = sum(row[DIFF] for row in left if row[DIFF] > 0)
        return Differences(
            missing, extra, pa.table({name: [row[name] for row in left] for name in (*schema.names, DIFF)})
        )

    async def _write(self, rows: list[Row], request: StageRequest) -> tuple[Part, ...]:
        self.staged += 1
        if request.sort:
            rows = sorted(rows, key=lambda row: [_before(row.get(name)) for name in (*request.sort, TIME)])
        data = _encoded(rows)
        if len(data) <= min(INLINE_PART_BYTES_MAX, request.inline_bytes_max):
            return (InlinePart(data, len(rows)),)
        key = f"{request.prefix}part"
        await self._blob.set(key, data)
        return (BlobPart(key, len(data), len(rows), google_crc32c.value(data), ""),)

    async def _decode(self, part: Part) -> list[Row]:
        if isinstance(part, InlinePart):
            return _decoded(part.data)
        found = await self._blob.get(part.key)
        if found is None or google_crc32c.value(found) != part.footer_crc:
            raise CorruptionError(f"part {part.key} is {'missing' if found is None else 'damaged'}")
        return _decoded(found)


_DECIMAL: Final = 1
"""The extension type for decimals, which msgpack would otherwise store as text."""
_decoder: Final = msgspec.msgpack.Decoder(ext_hook=lambda _, data: Decimal(bytes(data).decode()))


def _encoded(rows: Iterable[Row]) -> bytes:
    return msgspec.msgpack.encode([{name: _plain(value) for name, value in row.items()} for row in rows])


def _plain(value: Any) -> Any:
    return msgspec.msgpack.Ext(_DECIMAL, str(value).encode()) if isinstance(value, Decimal) else value


def _decoded(data: bytes) -> list[Row]:
    return cast("list[Row]", _decoder.decode(data))


def columns(contents: Contents) -> tuple[str, ...]:
    """Return the columns of a read, without time and diff."""
    match contents.half:
        case Half.OK:
            return contents.schema.names
        case Half.ERR:
            return (ERROR,)
        case Half.BOTH:
            return (*contents.schema.names, ERROR)


def first_rows(rows: Sequence[Row], first: First, more: int) -> list[Row]:
    """Return the rows, added up, that are among the first in one of the orders, or among so many more."""
    kept: dict[int, Row] = {}
    for order in first.orders:
        nulls = [row for row in rows if row[order.column] is None]
        others = [row for row in rows if row[order.column] is not None]
        others.sort(key=lambda row: _rank(row[order.column]), reverse=order.descending)
        before, last = 0, None
        for row in (*nulls, *others) if order.nulls_first else (*others, *nulls):
            if before >= first.rows + more and _rank(row[order.column]) != last:
                break
            kept[id(row)] = row
            before, last = before + row[DIFF], _rank(row[order.column])
    return list(kept.values())


def _rank(value: Any) -> tuple[bool, Any]:
    """Return what compares as SQL orders a column's values that are not NULL: NaN last."""
    return (True, None) if isinstance(value, float) and math.isnan(value) else (False, value)


def _before(value: Any) -> tuple[bool, Any]:
    """Return what compares as SQL orders a column's values: NULL first."""
    return value is not None, value


def _counted(rows: Sequence[Row], lower: Frontier, upper: Frontier, parts: tuple[Part, ...]) -> Staged:
    return Staged(
        lower,
        upper,
        parts,
        len(rows),
        sum(row[DIFF] for row in rows),
        sum((_digest(row) for row in rows), NOTHING),
        plain=all(row[DIFF] == 1 for row in rows),
        errors=sum(row.get(ERROR) is not None for row in rows),
    )


def _added_up(rows: Listed) -> Listed:
    """Return the updates with equal ones added up, zeros dropped."""
    identity = tuple(name for name in rows.names if name != DIFF)
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in rows.rows:
        sums[tuple(row[name] for name in identity)] += row[DIFF]
    kept = (dict(zip(identity, values, strict=True)) | {DIFF: diff} for values, diff in sums.items() if diff)
    return Listed(rows.names, tuple(kept))


def _narrow(rows: Iterable[Row], names: tuple[str, ...]) -> Rows:
    """Return rows with only the columns ``names``."""
    return Rows(Listed(names, tuple({name: row[name] for name in names} for row in rows)))


def _key(row: Row) -> tuple[Any, ...]:
    """Return what is equal for equal values: NaN equals NaN."""
    return tuple("NaN" if isinstance(value, float) and math.isnan(value) else value for value in row.values())


def _values(row: Row, schema: Schema) -> tuple[Any, ...]:
    return tuple(row[name] for name in schema.names)


def _digest(row: Row) -> Digest:
    identity = msgspec.msgpack.encode([value for name, value in row.items() if name not in _OURS])
    low, high = (xxhash.xxh64_intdigest(identity, seed) * row[DIFF] % 2**64 for seed in (1, 2))
    return Digest(low, high)
