"""Small tables of updates in Arrow: their bytes as an inline part or one Parquet file, their reading and adding up.

An inline part is an Arrow IPC stream, zstd-compressed as a whole (most of a small stream is metadata, which compresses
well), of the collection's columns, ``__error`` if any row has one, ``__time`` and ``__diff``.  The shard's state seals
it.  `parquet` writes the same rows in the layout that Spark's writer gives a part, page CRCs included, for what is
small and yet too large to inline.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import DIFF, ERROR, TIME, Schema
from strandline.errors import CollectionError, CorruptionError, InvalidUsage
from strandline.persist.handles.contents import Half
from strandline.persist.shard.batch import InlinePart

_CODEC: Final = "zstd"
_DECIMAL_DIGITS: Final = 38
_OURS: Final = (pa.field(ERROR, pa.string()), pa.field(TIME, pa.int64()), pa.field(DIFF, pa.int64()))
_TIME_AND_DIFF: Final = frozenset({TIME, DIFF})
DECODED_PARTS_MAX: Final = 256
SCHEMAS_REMEMBERED: Final = 1_000
"""Of how many schemas it is remembered what their updates look like; those that were asked for last."""
COMPARED_BYTES_MAX: Final = 4_096
"""Bytes of a value, beyond which its column has no statistics and no dictionary: both compare and copy whole values.
Arrow compares all values, and stores no bound that is longer."""
COPIES_MAX: Final = 100_000
"""How many rows `copied` should give: more of them are Spark's to give."""
NEGATIVE: Final = "a row has the negative count"
"""How the sentence about a negative count begins."""
REFUSING: Final = "9G9G9G9"
"""The number format that such a sentence does not have, by which Spark's error is known for ours: no row says it."""


@lru_cache(maxsize=SCHEMAS_REMEMBERED)
def update_schema(schema: Schema) -> pa.Schema:
    """Return the Arrow schema of a collection's updates: its columns, ``__error``, ``__time``, ``__diff``."""
    columns = [pa.field(name, arrow(kind)) for name, kind in types.columns(schema)]
    return pa.schema([*columns, *_OURS])


def encode(table: pa.Table) -> bytes:
    """Return the bytes of an inline part."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, _CODEC) as compressed, pa.ipc.new_stream(compressed, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


@lru_cache(maxsize=DECODED_PARTS_MAX)
def decode(shard: str, part: InlinePart, schema: Schema) -> pa.Table:
    """Return the updates of an inline part under ``schema`` (a column it was written without is NULL).

    Every stage that reads a change decodes it, so what was decoded last is kept.
    """
    try:
        with pa.CompressedInputStream(pa.BufferReader(part.data), _CODEC) as raw, pa.ipc.open_stream(raw) as reader:
            table = reader.read_all()
    except (pa.ArrowInvalid, OSError) as error:
        raise CorruptionError(f"shard {shard!r}: an inline part cannot be decoded ({error})") from error
    if table.num_rows != part.rows:
        raise CorruptionError(f"shard {shard!r}: an inline part has {table.num_rows} rows; {part.rows} were expected")
    return conform(table, update_schema(schema))


def conform(table: pa.Table, target: pa.Schema) -> pa.Table:
    """Return ``table`` with exactly the columns of ``target``: by name without case, missing ones NULL, safely cast."""
    index = {name.lower(): position for position, name in enumerate(table.column_names)}
    arrays = []
    for field in target:
        position = index.get(field.name.lower())
        if position is None:
            arrays.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)], type=field.type))
        else:
            arrays.append(table.column(position).cast(field.type))
    return pa.Table.from_arrays(arrays, schema=target)


def stamped(table: pa.Table, schema: Schema, *, time: int, diff: int) -> pa.Table:
    """Return rows that carry no time yet as updates at ``time``: columns by name, cast to ``schema``.

    Raises:
        InvalidUsage: a column is missing, unknown, or cannot be cast; the message names it, and the first row with a
            value that does not fit (the first is 1).
    """
    given = match_names(table.column_names, schema)
    arrays = {}
    for name, kind in types.columns(schema):
        column, target = table[given[name.lower()]], arrow(kind)
        try:
            arrays[name] = _cast(column, target)
        except pa.ArrowNotImplementedError as error:
            raise InvalidUsage(f"column {name!r} cannot be cast to {target}: {error}") from error
        except pa.ArrowInvalid as error:
            number = 1 + bisect_left(range(len(column)), True, key=partial(_misfits, column, target))
            raise InvalidUsage(f"row {number}: column {name!r} cannot be cast to {target}: {error}") from error
    for ours, value in ((TIME, time), (DIFF, diff)):
        arrays[ours] = pa.chunked_array([pa.repeat(pa.scalar(value, pa.int64()), table.num_rows)], type=pa.int64())
    return pa.table(arrays)


def _cast(column: pa.ChunkedArray, target: pa.DataType) -> pa.ChunkedArray:
    """Cast values, refusing those that do not fit; a whole number fits a decimal by its value, not its type's range.

    Arrow makes a date of any time without a word; here only midnight (of a timestamp with a zone: in UTC) fits a date.
    """
    if pa.types.is_integer(column.type) and pa.types.is_decimal(target):
        column = column.cast(pa.decimal128(_DECIMAL_DIGITS, target.scale))
    cast = column.cast(target)
    if _cut(column, cast):
        raise pa.ArrowInvalid("a date would lose the time of day of a timestamp")
    return cast


def _cut(given: pa.ChunkedArray, cast: pa.ChunkedArray) -> bool:
    """Return whether a date among the values that were cast is of another time than midnight."""
    kind = cast.type
    if kind == given.type:
        return False
    if pa.types.is_date(kind) and pa.types.is_timestamp(given.type):
        return not cast.cast(given.type).equals(given)
    if pa.types.is_list(kind):
        return _cut(pc.list_flatten(given), pc.list_flatten(cast))
    if pa.types.is_struct(kind) and pa.types.is_struct(given.type):
        names = [field.name for field in kind if given.type.get_field_index(field.name) >= 0]
        return any(_cut(pc.struct_field(given, name), pc.struct_field(cast, name)) for name in names)
    return False


def _misfits(column: pa.ChunkedArray, target: pa.DataType, last: int) -> bool:
    """Return whether a value up to the ``last`` does not fit."""
    try:
        _cast(column.slice(0, last + 1), target)
    except pa.ArrowInvalid:
        return True
    return False


def match_names(names: Sequence[str], schema: Schema, *, some: bool = False) -> dict[str, str]:
    """Return the given names by their lower case, if they are those of ``schema``, each once; ``some``: some of them.

    Raises:
        InvalidUsage: a column is missing or unknown; the message names it.
    """
    given = {name.lower(): name for name in names}
    known = {name.lower() for name in schema.names}
    missing = [] if some else [name for name in schema.names if name.lower() not in given]
    unknown = [name for lower, name in given.items() if lower not in known]
    if missing or unknown or len(given) < len(names):
        raise InvalidUsage(
            f"the rows have the columns {list(names)}; {', '.join(schema.names)} are expected, each once"
            + (f"; missing: {', '.join(missing)}" if missing else "")
            + (f"; unknown: {', '.join(unknown)}" if unknown else "")
        )
    return given


def in_order(table: pa.Table, by: Sequence[str]) -> pa.Table:
    """Return ``table`` sorted ``by`` columns (names without case), NULLs first; nested ones have no order here."""
    named = {field.name.lower(): field for field in table.schema}
    fields = [named[name.lower()] for name in by]
    ordered = numbered([table[field.name] for field in fields if not pa.types.is_nested(field.type)])
    keys = [(name, "ascending", "at_start") for name in ordered.column_names]
    return table.take(pc.sort_indices(ordered, sort_keys=keys)) if keys else table


def numbered(columns: Sequence[pa.ChunkedArray]) -> pa.Table:
    """Return columns as a table that Arrow sorts and groups by: each is called by its number.

    Trap: Arrow reads a key that begins with a point or a bracket as a path: by ``.a`` it sorts and groups the column
    ``a``, and by ``[0]`` the first one.
    """
    return pa.table(list(columns), [str(place) for place in range(len(columns))])


def without_idle_error(table: pa.Table) -> pa.Table:
    """Return ``table`` without ``__error`` when no row has one: most batches, and absent is read as NULL."""
    if ERROR in table.column_names and table[ERROR].null_count == table.num_rows:
        return table.drop_columns([ERROR])
    return table


def parquet(table: pa.Table) -> bytes:
    """Return ``table`` as one Parquet file: zstd, page CRCs, statistics but for columns with a very long value."""
    sink = pa.BufferOutputStream()
    short: list[str] | bool = [name for name in table.column_names if _longest(table[name]) <= COMPARED_BYTES_MAX]
    if short == table.column_names:
        short = True
    pq.write_table(
        table,
        sink,
        compression=_CODEC,
        use_dictionary=short,
        write_page_checksum=True,
        write_statistics=short,
        store_schema=False,
    )
    return bytes(sink.getvalue())


def _longest(values: pa.ChunkedArray) -> int:
    """Return how many bytes the longest value has; 0 where values have all one size, or are nested."""
    if not (pa.types.is_string(values.type) or pa.types.is_binary(values.type)):
        return 0
    return pc.max(pc.binary_length(values)).as_py() or 0


def select(table: pa.Table, *, half: Half, lower: int, upper: int, advance: int) -> pa.Table:
    """Return the updates of a half with ``lower <= time < upper``, times advanced; the columns of that half."""
    times = table[TIME]
    wanted = pc.and_(pc.greater_equal(times, lower), pc.less(times, upper))
    kept = list(table.column_names)
    if half is Half.OK:
        wanted, kept = pc.and_(wanted, pc.is_null(table[ERROR])), [name for name in kept if name != ERROR]
    elif half is Half.ERR:
        wanted, kept = pc.and_(wanted, pc.is_valid(table[ERROR])), [ERROR, TIME, DIFF]
    return advanced(table.filter(wanted).select(kept), advance)


def advanced(table: pa.Table, advance: int) -> pa.Table:
    """Return ``table`` with no time before ``advance``."""
    times = pc.max_element_wise(table[TIME], pa.scalar(advance, pa.int64()))
    return table.set_column(table.schema.get_field_index(TIME), TIME, times)


def negated(table: pa.Table) -> pa.Table:
    """Return ``table`` with every diff negated."""
    return table.set_column(table.schema.get_field_index(DIFF), DIFF, pc.negate_checked(table[DIFF]))


def data_columns(names: Sequence[str]) -> list[str]:
    """Return the columns of an update frame other than time and diff."""
    return [name for name in names if name not in _TIME_AND_DIFF]


def can_group(table: pa.Table) -> bool:
    """Tell whether Arrow can group by every column: it cannot by nested ones."""
    return not any(pa.types.is_nested(field.type) for field in table.schema)


def counted(table: pa.Table) -> pa.Table:
    """Return the rows that the updates sum up to, each once with its count as ``__diff`` (for frames that `can_group`).

    Raises:
        CollectionError: a count is negative; the message names the row.
    """
    sums = added_up(table)
    negative = sums.filter(pc.less(sums[DIFF], 0))
    if negative.num_rows:
        (row,) = negative.slice(0, 1).to_pylist()
        raise CollectionError(f"{NEGATIVE} {row.pop(DIFF)}: {row}")
    return sums


def copied(counts: pa.Table) -> pa.Table:
    """Return as many copies of each row as its count: for tables that are known to be small."""
    positions = np.repeat(np.arange(counts.num_rows), counts[DIFF].to_numpy())
    return counts.drop_columns([DIFF]).take(pa.array(positions))


def consolidated(table: pa.Table) -> pa.Table:
    """Return the updates with equal ones added up, zeros dropped, sorted (for frames that `can_group`)."""
    kept = summed(table)
    ordered = numbered([kept[name] for name in kept.column_names if name != DIFF])
    order = [(name, "ascending") for name in ordered.column_names]
    return kept.take(pc.sort_indices(ordered, order)).select(table.column_names)


def added_up(table: pa.Table) -> pa.Table:
    """Return each distinct row once, times ignored, with its Σ diff as ``__diff``; zeros dropped."""
    return summed(table.select([*data_columns(table.column_names), DIFF]))


def summed(table: pa.Table) -> pa.Table:
    """Return each distinct value of the columns other than ``__diff`` once, with its Σ diff; zeros dropped."""
    names = [name for name in table.column_names if name != DIFF]
    canonical = numbered([*(_canonical(table[name]) for name in names), table[DIFF]])
    *keys, diff = canonical.column_names
    sums = canonical.group_by(keys).aggregate([(diff, "sum")]).rename_columns([*names, DIFF])
    return sums.filter(pc.not_equal(sums[DIFF], 0))


def _canonical(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Floats with −0.0 as 0.0 and one NaN, as grouping compares bytes; all else as it is."""
    if not pa.types.is_floating(column.type):
        return column
    nan = pa.scalar(float("nan"), column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, pa.scalar(0.0, column.type)))
