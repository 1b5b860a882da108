"""Updates in Arrow, whatever their types: added up, and told apart by whether a row was ever withdrawn.

Two rows are equal where SQL calls them not distinct; stored floats are normalised, so their bits say it.  Arrow groups
by no nested column, so such a column is compared by the text of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF
from strandline.engine.frames import inline
from strandline.errors import CollectionError

BATCH_ROWS: Final = 16_384
"""The most rows of a batch that Spark is handed."""
_AT: Final = "at"
_OLD: Final = "old"


def added_up(updates: pa.Table) -> pa.Table:
    """Return each distinct row once (every column but ``__diff``), with the sum of its diffs; zeros are dropped."""
    names = [name for name in updates.column_names if name != DIFF]
    keyed = _keys(updates, names)
    grouped = pa.table([*keyed, updates[DIFF], _positions(updates)], [*_numbered(names), DIFF, _AT]).group_by(
        _numbered(names), use_threads=False
    )
    sums = grouped.aggregate([(DIFF, "sum"), (_AT, "min")])
    kept = sums.filter(pc.not_equal(sums[f"{DIFF}_sum"], 0))
    return updates.select(names).take(kept[f"{_AT}_min"]).append_column(DIFF, kept[f"{DIFF}_sum"]).combine_chunks()


def among(updates: pa.Table, known: pa.Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return for each update whether its row is one of ``known``, which has the same columns in the same order."""
    found = np.zeros(updates.num_rows, np.bool_)
    if not known.num_rows or not updates.num_rows:
        return found
    names = [name for name in updates.column_names if name != DIFF]
    both = pa.concat_tables([known.select(names), updates.select(names)])
    old = np.arange(both.num_rows) < known.num_rows
    marked = pa.table([*_keys(both, names), pa.array(old), _positions(both)], [*_numbered(names), _OLD, _AT])
    groups = marked.group_by(_numbered(names), use_threads=False).aggregate([(_OLD, "any"), (_AT, "list")])
    hits = groups.filter(groups[f"{_OLD}_any"])[f"{_AT}_list"].combine_chunks()
    places = pc.list_flatten(hits).to_numpy(zero_copy_only=False)
    found[places[places >= known.num_rows] - known.num_rows] = True
    return found


def withdrawn(updates: pa.Table) -> pa.Table:
    """Return the rows that an update takes away, without diffs; one may be there several times."""
    return updates.filter(pc.less(updates[DIFF], 0)).drop_columns([DIFF])


def copies(counted: pa.Table) -> Iterator[pa.Table]:
    """Yield each row as often as its ``__diff`` says, without that column, in tables of bounded size.

    Raises `CollectionError` for a negative count; the message names the row.
    """
    negative = counted.filter(pc.less(counted[DIFF], 0))
    if negative.num_rows:
        (row,) = negative.slice(0, 1).to_pylist()
        raise CollectionError(f"{inline.NEGATIVE} {row.pop(DIFF)}: {row}")
    rows = counted.drop_columns([DIFF])
    ends = np.cumsum(counted[DIFF].to_numpy())
    for start in range(0, int(ends[-1]) if len(ends) else 0, BATCH_ROWS):
        wanted = np.arange(start, min(start + BATCH_ROWS, int(ends[-1])))
        yield rows.take(pa.array(np.searchsorted(ends, wanted, side="right")))


def _keys(table: pa.Table, names: Sequence[str]) -> list[pa.ChunkedArray | pa.Array]:
    """Return the columns to group by; a table without columns has equal rows."""
    return [_key(table[name]) for name in names] or [pa.repeat(pa.scalar(0), table.num_rows)]


def _numbered(names: Sequence[str]) -> list[str]:
    """Return names for `_keys` that no column of ours has."""
    return [str(place) for place in range(max(1, len(names)))]


def _key(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    if not pa.types.is_nested(column.type):
        return column
    return pa.array(map(repr, column.cast(_counted(column.type)).to_pylist()), pa.string())


def _counted(kind: pa.DataType) -> pa.DataType:
    """Return a nested type with numbers for times and days, of which Python's own types hold too few."""
    if pa.types.is_timestamp(kind):
        return pa.int64()
    if pa.types.is_date32(kind):
        return pa.int32()
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_counted(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_counted(field.type)) for field in kind])
    return kind


def _positions(table: pa.Table) -> pa.Array:
    return pa.array(np.arange(table.num_rows))
