"""Peeks: the rows of an arrangement that have a key, exactly these, as plain rows.

A look-up finds rows by the numbers of their keys, so once in a while it finds others too.  Here each row that was found
is compared with the key that has its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF, TIME
from strandline.engine.arrangements.cache import Arrangements
from strandline.engine.arrangements.keys import hashes
from strandline.engine.frames import inline
from strandline.persist.handles.contents import Contents

KEYS_AT_ONCE_MAX: Final = 16
ROWS_AT_ONCE_MAX: Final = 1_000


def peeked(
    arrangements: Arrangements, old: Contents, columns: Sequence[str], keys: pa.Table, limit: int | None
) -> pa.Table | None:
    """See `Engine.peek`; it may wait for another thread, and read what has changed."""
    found = arrangements.lookup(old, columns, [keys], nulls=True)
    return None if found is None else _exact(found.drop_columns([TIME]), columns, keys, limit)


def peeked_at_once(
    arrangements: Arrangements, old: Contents, columns: Sequence[str], keys: pa.Table, limit: int | None
) -> pa.Table | None:
    """Do the same for a few keys in a moment, in the thread of an event loop; None: that cannot be done in a moment."""
    arranged = arrangements.ready(old, tuple(columns)) if 0 < keys.num_rows <= KEYS_AT_ONCE_MAX else None
    if arranged is None:
        return None
    wanted = np.unique(hashes(keys.columns))
    found = arranged.lookup(tuple(columns), wanted, old.schema.names, rows_max=ROWS_AT_ONCE_MAX)
    return None if found is None else _exact(found, columns, keys, limit)


def _exact(found: pa.Table, columns: Sequence[str], keys: pa.Table, limit: int | None) -> pa.Table | None:
    """Return of the rows that a look-up found those of ``keys``; None: that cannot be told."""
    if found.num_rows:
        meet = _meet(found.select(list(columns)), keys)
        if meet is None:
            return None
        found = found.filter(meet)
    return _rows(found, limit)


def _meet(rows: pa.Table, keys: pa.Table) -> pa.ChunkedArray | None:
    """Return of each of ``rows`` whether it is one of ``keys``; None: two of these have one number."""
    if keys.num_rows == 1:
        return _alike(rows, keys.take(pa.array(np.zeros(rows.num_rows, np.int64))))
    numbers, first, same = np.unique(hashes(keys.columns), return_index=True, return_inverse=True)
    if not pc.all(_alike(keys, keys.take(pa.array(first[same])))).as_py():
        return None
    places = np.minimum(np.searchsorted(numbers, hashes(rows.columns)), len(numbers) - 1)
    return _alike(rows, keys.take(pa.array(first[places])))


def _alike(some: pa.Table, others: pa.Table) -> pa.ChunkedArray:
    """Return of each row whether it equals the one in its place, NULL being NULL and NaN being NaN."""
    pairs = zip(some.columns, others.columns, strict=True)
    found = [_equal(one.combine_chunks(), other.combine_chunks()) for one, other in pairs]
    whole = found[0]
    for each in found[1:]:
        whole = pc.and_(whole, each)
    return whole


def _equal(one: pa.Array, other: pa.Array) -> pa.Array:
    equal = pc.equal(one, other)
    if pa.types.is_floating(one.type):
        equal = pc.or_(equal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    if one.null_count or other.null_count:
        equal = pc.if_else(pc.is_null(equal), pc.and_(pc.is_null(one), pc.is_null(other)), equal)
    return equal


def _rows(found: pa.Table, limit: int | None) -> pa.Table:
    """Return each row as often as its diffs say."""
    diffs = found[DIFF].to_numpy()
    if (diffs < 0).any():  # of a row that is there less often than not at all, which is an error of the collection
        found = inline.counted(found)
        diffs = found[DIFF].to_numpy()
    rows = found.drop_columns([DIFF]) if (diffs == 1).all() else inline.copied(found)
    return rows if limit is None else rows.slice(0, limit)
