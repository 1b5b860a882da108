"""Runs: updates with indexes by key, and an arrangement, which is a few of them.

An arrangement holds the sum of a collection's updates before ``upper``: a row that is there n times is in one run or
several, with diffs that add up to n.  An index has the numbers of the keys of a run's rows, sorted, and the places of
these rows: all keys share the rows.  A look-up is a binary search in each run.  An index may be ordered too: then the
first rows of a key come first.

New updates become a run of their own.  `ALIKE` runs of about one size become one, so that there are few of each size.
When the small runs together are a `FRACTION` of the large one, all become one (`merged`: that takes long, and may be
done beside look-ups).  The newest few always stay apart, because a stage that lags behind others asks for the contents
before them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from functools import cached_property
from itertools import chain
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.nodes import Order
from strandline.algebra.schema import DIFF, TIME
from strandline.engine.arrangements.keys import Hashes, bits, first_word, fixed, hashes, plain
from strandline.engine.frames import inline

MAPPED_BYTES_MIN: Final = 4 << 20
"""A table of fewer bytes stays in the heap."""
BATCH_BYTES: Final = 32 << 20
"""Record batches have so many bytes or a little more, if the tables that they are made of are smaller."""


def mapped(schema: pa.Schema, tables: Iterable[pa.Table]) -> pa.Table:
    """Return ``tables``, which are read one by one, as one; in a file if it is large.

    Tables that are too large for the heap are Arrow files without a name, mapped into memory.  They take page cache
    and disk, and nothing of them is left when the process ends, however it ends.
    """
    few: list[pa.Table] = []
    rest = _collected(schema, tables)
    for table in rest:
        few.append(table)
        if sum(each.nbytes for each in few) >= MAPPED_BYTES_MIN:
            break
    else:
        return pa.concat_tables([schema.empty_table(), *few]).combine_chunks()
    with tempfile.NamedTemporaryFile(prefix="strandline-", suffix=".arrow") as file:
        with pa.ipc.new_file(pa.PythonFile(file, "w"), schema) as writer:
            for table in chain(few, rest):
                writer.write_table(table)
        file.flush()
        return pa.ipc.open_file(pa.memory_map(file.name)).read_all()


def _collected(schema: pa.Schema, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows of ``tables`` in tables of one chunk, few of them."""
    waiting: list[pa.Table] = []
    for table in tables:
        waiting.append(table)
        if sum(each.nbytes for each in waiting) >= BATCH_BYTES:
            yield from _chunks(schema, waiting)
            waiting = []
    if waiting:
        yield from _chunks(schema, waiting)


def _chunks(schema: pa.Schema, tables: list[pa.Table]) -> Iterator[pa.Table]:
    together = pa.concat_tables(tables).cast(schema).combine_chunks()
    for batch in together.to_batches():
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


LAST: Final = np.uint64(0xFFFFFFFFFFFFFFFF)
_SIGN: Final = np.uint64(1 << 63)
_FIRST: Final = np.uint64(0)


def order_numbers(column: pa.ChunkedArray, order: Order) -> Hashes:
    """Return a number per row, for a column of a type that has a `keys.family`.

    The numbers have 64 bits and ascend as the values do in an order.  Unequal values may have equal numbers: texts
    with the same first eight bytes, decimals of more than 64 bits, a NULL and the value beside it.  So a look-up that
    takes rows up to a number takes all rows that have it.
    """
    array = plain(column)
    if isinstance(array, pa.ChunkedArray):  # more than one array can hold
        return np.concatenate([order_numbers(pa.chunked_array([chunk]), order) for chunk in array.chunks])
    numbers = _ascending(array)
    if order.descending:
        numbers = ~numbers
    if array.null_count:
        numbers = np.where(np.asarray(array.is_null()), _FIRST if order.nulls_first else LAST, numbers)
    return numbers


def _ascending(array: pa.Array) -> Hashes:
    """Return numbers in ascending order; those of a NULL are anything."""
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return first_word(array).byteswap()
    if pa.types.is_decimal128(kind):
        lanes = fixed(array, np.dtype(np.int64), 2)
        low, high = lanes[:, 0], lanes[:, 1]
        narrow = high == low >> 63
        edge = np.where(high < 0, np.iinfo(np.int64).min, np.iinfo(np.int64).max)
        return np.asarray(np.where(narrow, low, edge)).view(np.uint64) ^ _SIGN
    numbers = bits(array)
    if pa.types.is_floating(kind):
        return np.where(numbers & _SIGN, ~numbers, numbers | _SIGN)
    return numbers if pa.types.is_boolean(kind) else numbers ^ _SIGN


@dataclass(frozen=True, slots=True)
class Span:
    """Two values of one column, the lesser one first.  Both are in it.

    It reaches from the least to the greatest of some values, as values of the column that is looked up.  Only exact
    types have spans, whose values Spark compares without a cast: whole numbers and decimals with each other, a date or
    a time with its like.
    """

    low: pa.Scalar
    high: pa.Scalar

    @property
    def ends(self) -> pa.ChunkedArray:
        """The two values."""
        return pa.chunked_array([pa.array([self.low.as_py(), self.high.as_py()], self.low.type)])


def cancels(updates: pa.Table) -> bool:
    """Tell whether the diffs of ``updates`` are 0 in all at each time."""
    sums = updates.group_by(TIME).aggregate([(DIFF, "sum")])[f"{DIFF}_sum"]
    return not pc.any(pc.not_equal(sums, 0)).as_py()


def spanned(values: pa.ChunkedArray, kind: pa.DataType) -> Span | None:
    """Return the span of ``values`` in a column of type ``kind``, no smaller than it is.

    None: there is none, since a value is NULL, there is no value, or the types cannot be compared exactly.
    """
    if values.null_count or not len(values):
        return None
    ends = pc.min_max(values)
    low, high = ends["min"], ends["max"]
    if kind == values.type and (pa.types.is_temporal(kind) or pa.types.is_integer(kind)):
        return Span(low, high)
    if not (_is_exact_number(kind) and _is_exact_number(values.type)):
        return None
    try:
        rounded = (_rounded(low.as_py(), kind, ROUND_FLOOR), _rounded(high.as_py(), kind, ROUND_CEILING))
        return Span(*(pa.scalar(each, kind) for each in rounded))
    except (pa.ArrowInvalid, OverflowError):  # a value that no row can have
        return None


def _is_exact_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal128(kind))


def _rounded(value: Any, kind: pa.DataType, rounding: str) -> Any:
    if pa.types.is_integer(kind):
        return int(Decimal(value).to_integral_value(rounding))
    return Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), rounding, Context(prec=80))


ALIKE: Final = 4
"""So many small runs become one, if the first of them has no more rows than the others together."""
RECENT: Final = 4
"""So many of the newest runs stay apart."""
FRACTION: Final = 4
"""The small runs together are at most this part of the large one."""
MERGED_ROWS: Final = 200_000
"""Runs are merged by ranges of numbers that have about so many rows: so many are in the heap at once."""
Places: TypeAlias = "np.ndarray[Any, np.dtype[np.uint32]]"
Counts: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"


@dataclass(frozen=True, slots=True)
class By:
    """What an index is by: the values of some columns, and of rows with equal ones an order."""

    columns: tuple[str, ...]
    order: Order | None = None


@dataclass(frozen=True, eq=False)
class Index:
    """The numbers of the keys of some rows, ascending, and the place of the row of each.

    ``orders``: the rows' numbers in an order, ascending within each key; if all rows are one key, they are ``numbers``.
    """

    numbers: Hashes
    places: Places
    orders: Hashes | None = None

    @property
    def size(self) -> int:
        """Bytes."""
        apart = self.orders is not None and self.orders is not self.numbers
        return int(self.numbers.nbytes) * (1 + apart) + int(self.places.nbytes)

    def bounds(self, wanted: Hashes) -> tuple[Counts, Counts]:
        """Return where the rows with each of the ``wanted`` numbers, which ascend, begin and end."""
        if self.orders is self.numbers:
            return np.zeros(len(wanted), np.int64), np.full(len(wanted), len(self.numbers), np.int64)
        begins, ends = (np.searchsorted(self.numbers, wanted, side) for side in ("left", "right"))
        return begins, ends

    def upto(self, begins: Counts, ends: Counts, last: Hashes) -> Counts:
        """Return for each of these ranges where its rows end whose number in the order is at most ``last``."""
        assert self.orders is not None
        low, high = begins, ends
        while (between := low < high).any():
            middle = np.where(between, (low + high) // 2, 0)
            before = between & (self.orders[middle] <= last)
            low, high = np.where(before, middle + 1, low), np.where(between & ~before, middle, high)
        return low

    def within(self, begins: Counts, ends: Counts) -> Places:
        """Return the places of the rows in these ranges, range by range."""
        counts = ends - begins
        total = int(counts.sum())
        shifts = np.repeat(begins - np.concatenate(([0], np.cumsum(counts)[:-1])), counts)
        return np.asarray(self.places[shifts + np.arange(total)], np.uint32)


class Run:
    """Updates (columns and ``__diff``) and indexes of them, each made when it is first asked for."""

    def __init__(self, rows: pa.Table, lower: int, upper: int) -> None:
        """``lower``, ``upper``: the bounds of their times."""
        assert rows.column_names[-1] == DIFF, rows.column_names
        self.lower = lower
        self.upper = upper
        self.schema = rows.schema
        self.num_rows = rows.num_rows
        self.indexes: dict[By, Index] = {}
        self._bytes = self.size = int(rows.nbytes)
        """Bytes, those of the indexes too."""
        self._batches = rows.to_batches()
        self._ends = np.cumsum([0, *(batch.num_rows for batch in self._batches)])

    def index(self, by: By) -> Index:
        """Return the index by ``by``."""
        if by not in self.indexes:
            self.indexes[by] = self._indexed(by)
            self.size = self._bytes + sum(index.size for index in list(self.indexes.values()))
        return self.indexes[by]

    def _indexed(self, by: By) -> Index:
        def numbers() -> Hashes:
            return self._numbers(lambda batch: hashes([pa.chunked_array([batch[name]]) for name in by.columns]))

        if by.order is None:
            keys = numbers()
            places = np.argsort(keys)
            return Index(keys[places], places.astype(np.uint32))
        own = by.order
        orders = self._numbers(lambda batch: order_numbers(pa.chunked_array([batch[own.column]]), own))
        if not by.columns:
            places = np.argsort(orders)
            orders = orders[places]
            return Index(orders, places.astype(np.uint32), orders)
        keys = numbers()
        places = np.lexsort((orders, keys))
        return Index(keys[places], places.astype(np.uint32), orders[places])

    def _numbers(self, of: Callable[[pa.RecordBatch], Hashes]) -> Hashes:
        return np.concatenate([np.empty(0, np.uint64), *(of(batch) for batch in self._batches if batch.num_rows)])

    @cached_property
    def diffs(self) -> Counts:
        """The diff of each row."""
        parts = [np.asarray(batch[DIFF]) for batch in self._batches]
        if all((part == 1).all() for part in parts):
            return np.broadcast_to(np.ones(1, np.int64), self.num_rows)  # which takes no room
        return np.concatenate(parts)

    def net(self, places: Places, counts: Counts) -> Counts:
        """Return what the diffs of the rows at ``places`` come to, for groups of so many rows each."""
        sums = np.concatenate(([0], np.cumsum(self.diffs[places])))
        ends = np.cumsum(counts)
        return np.asarray(sums[ends] - sums[ends - counts])

    def taken(self, places: Places, names: Sequence[str]) -> pa.Table:
        """Return the columns ``names`` and the diffs of the rows at ``places``, in any order."""
        own = [*names, DIFF]
        ordered = np.sort(places).astype(np.int64)
        cuts = np.searchsorted(ordered, self._ends)
        found = [
            batch.select(own).take(pa.array(ordered[begin:end] - start))
            for batch, start, begin, end in zip(self._batches, self._ends, cuts, cuts[1:], strict=False)
            if begin < end
        ]
        return pa.Table.from_batches(found, pa.schema([self.schema.field(name) for name in own]))


@dataclass(frozen=True, eq=False)
class Arrangement:
    """What the updates before ``upper`` come to; ``runs``: the large one first."""

    upper: int
    runs: tuple[Run, ...]

    @property
    def schema(self) -> pa.Schema:
        """Columns and ``__diff``."""
        return self.runs[0].schema

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(run.size for run in self.runs)

    @property
    def rows(self) -> int:
        """How many updates its runs hold."""
        return sum(run.num_rows for run in self.runs)

    def lookup(
        self, columns: tuple[str, ...], wanted: Hashes, names: Sequence[str], *, rows_max: int
    ) -> pa.Table | None:
        """Return the rows whose ``columns`` have a ``wanted`` number, which ascend; of them the columns ``names``.

        None: they are too many.
        """
        indexes = [run.index(By(columns)) for run in self.runs]
        return self._rows([index.within(*index.bounds(wanted)) for index in indexes], names, rows_max)

    def between(self, span: Span, column: str, names: Sequence[str], *, rows_max: int) -> pa.Table | None:
        """Return the rows whose ``column`` has a value in ``span``, and perhaps others beside it.  As `lookup`."""
        order = Order(column)
        low, high = order_numbers(span.ends, order)
        places = []
        for run in self.runs:
            index = run.index(By((), order))
            assert index.orders is not None
            begin, end = np.searchsorted(index.orders, low, "left"), np.searchsorted(index.orders, high, "right")
            places.append(index.places[begin:end])
        return self._rows(places, names, rows_max)

    def first(
        self,
        columns: tuple[str, ...],
        orders: Sequence[Order],
        wanted: Hashes,
        counts: Counts,
        names: Sequence[str],
        *,
        rows_max: int,
    ) -> pa.Table | None:
        """Return the first rows of each ``wanted`` number, which ascend, in each order: so many as ``counts`` says.

        Those that tie with the last of them come too.  As `lookup`.
        """
        places = [np.empty(0, np.uint32) for _ in self.runs]
        for order in orders:
            found = self._first(By(columns, order), wanted, counts, rows_max)
            if found is None:
                return None
            places = [np.union1d(one, other) for one, other in zip(places, found, strict=True)]
        return self._rows(places, names, rows_max)

    def _first(self, by: By, wanted: Hashes, counts: Counts, rows_max: int) -> list[Places] | None:
        """Return the places in each run of the first rows in one order.

        Of each run more and more is taken, up to one and the same number in the order: what is there up to a number
        is known only if no run has more of it.
        """
        indexes = [run.index(by) for run in self.runs]
        bounds = [index.bounds(wanted) for index in indexes]
        asked = np.maximum(counts, 1)
        while True:
            last = np.full(len(wanted), LAST)
            for index, (begins, ends) in zip(indexes, bounds, strict=True):
                more = begins + asked < ends
                assert index.orders is not None
                last[more] = np.minimum(last[more], index.orders[(begins + asked - 1)[more]])
            taken = [index.upto(*each, last) for index, each in zip(indexes, bounds, strict=True)]
            if sum(int((stop - begins).sum()) for stop, (begins, _) in zip(taken, bounds, strict=True)) > rows_max:
                return None
            parts = list(zip(self.runs, indexes, [begins for begins, _ in bounds], taken, strict=True))
            places = [index.within(begins, stop) for _, index, begins, stop in parts]
            net = [run.net(at, stop - begins) for (run, _, begins, stop), at in zip(parts, places, strict=True)]
            short = (last < LAST) & (np.sum(net, axis=0) < counts)
            if not short.any():
                return places
            asked = np.where(short, 2 * asked, asked)

    def _rows(self, places: Sequence[Places], names: Sequence[str], rows_max: int) -> pa.Table | None:
        if sum(map(len, places)) > rows_max:
            return None
        found = [(run, at) for run, at in zip(self.runs, places, strict=True) if len(at)]
        if not found:
            return self.schema.empty_table().select([*names, DIFF])
        rows = pa.concat_tables([run.taken(at, names) for run, at in found])
        withdrawn = any((run.diffs[at] < 0).any() for run, at in found)
        return inline.summed(rows) if withdrawn else rows

    def before(self, upper: int) -> Arrangement | None:
        """Return it as it was at ``upper``; None if that is not known any longer."""
        earlier = tuple(run for run in self.runs if run.upper <= upper)
        apart = len(earlier) == len(self.runs) or upper <= self.runs[len(earlier)].lower
        return Arrangement(upper, earlier) if earlier and apart else None

    def extended(self, rows: pa.Table, upper: int, *, compact: bool = True) -> Arrangement:
        """Return it with the updates up to ``upper`` added; ``compact``: small runs become larger ones."""
        if not rows.num_rows:
            return replace(self, upper=upper)
        runs = (*self.runs, Run(rows.combine_chunks(), self.upper, upper))
        if compact and len(runs) > 1 + RECENT:
            runs = (runs[0], *_compacted(runs[1:-RECENT]), *runs[-RECENT:])
        return replace(self, upper=upper, runs=runs)

    @property
    def due(self) -> bool:
        """Whether it should be `merged`."""
        return self.grown * FRACTION > self.runs[0].num_rows and len(self.older) > 2

    @property
    def grown(self) -> int:
        """How many updates its `older` runs have got since the large one was made."""
        return sum(run.num_rows for run in self.older[1:])

    @property
    def older(self) -> tuple[Run, ...]:
        """The runs that are not among the newest, and the large one."""
        return (self.runs[0], *self.runs[1:-RECENT])

    def merged(self) -> Arrangement:
        """Return its `older` runs as one, with its indexes."""
        merged = _merged(self.older)
        return Arrangement(merged.upper, (merged,))

    def indexed(self, by: Iterable[By]) -> Arrangement:
        """Return its large run when that has these indexes."""
        for each in by:
            self.runs[0].index(each)
        return Arrangement(self.runs[0].upper, self.runs[:1])


def arrangement(schema: pa.Schema, tables: Iterable[pa.Table], upper: int, by: Iterable[By]) -> Arrangement:
    """Return the updates in ``tables`` (columns and ``__diff``) arranged, with these indexes."""
    return Arrangement(upper, (Run(mapped(schema, tables), 0, upper),)).indexed(by)


def _compacted(runs: Sequence[Run]) -> Sequence[Run]:
    """Return the runs; as long as the last `ALIKE` are of about one size, these as one."""
    first = runs[-ALIKE].num_rows if len(runs) >= ALIKE else None
    if first is None or first > sum(run.num_rows for run in runs[1 - ALIKE :]):
        return runs
    return _compacted((*runs[:-ALIKE], _merged(runs[-ALIKE:])))


def _merged(runs: Sequence[Run]) -> Run:
    """Return what the runs come to, with the indexes of the first: all its range of numbers, piece by piece."""
    wanted = list(runs[0].indexes)
    rows = mapped(runs[0].schema, _summed(runs, wanted[0] if wanted else None))
    merged = Run(rows, runs[0].lower, runs[-1].upper)
    for by in wanted:
        merged.index(by)
    return merged


def _summed(runs: Sequence[Run], by: By | None) -> Iterator[pa.Table]:
    """Yield what the runs come to; equal rows have equal numbers, so that they are in one piece."""
    schema = runs[0].schema
    if by is None:
        pieces = [[np.arange(run.num_rows, dtype=np.uint32) for run in runs]]
    else:
        indexes = [run.index(by) for run in runs]
        bounds = np.unique(indexes[0].numbers[MERGED_ROWS::MERGED_ROWS])
        cuts = [[0, *np.searchsorted(index.numbers, bounds), len(index.numbers)] for index in indexes]
        pieces = [
            [index.places[cut[n] : cut[n + 1]] for index, cut in zip(indexes, cuts, strict=True)]
            for n in range(len(bounds) + 1)
        ]
    for places in pieces:
        rows = pa.concat_tables([run.taken(at, schema.names[:-1]) for run, at in zip(runs, places, strict=True)])
        # A sum does not say that it is never NULL.
        yield inline.summed(rows).select(schema.names).cast(schema)
