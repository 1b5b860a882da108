"""Turns the net changes of a window into rows to store, by key.

Over a collection whose rows have a key, the net changes of a window hold at most one ``-old`` and one ``+new`` per key:

    -old +new   store new, the key exists
    +new        store new, the key does not exist
    -old        delete, the key exists

Anything else (a row with count 2, two rows with one key) is an error that names the key: a table has one row per key,
and storing the last one would only hide that the declared key is not a key.

Keys are compared as values: NULL equals NULL, NaN equals NaN, -0.0 equals 0.0.

In the batches of a window the rows of one key are adjacent (`feed.Feed.changes`), so a key is complete when the next
key begins: `Stores` keeps only the rows of one key between two batches.

Reference model: `spec.py`.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF, TIME
from strandline.errors import DefinitionError
from strandline.materialize.protocol.holds import key_text
from strandline.materialize.protocol.messages import DELETE, EXISTS, flagged, unflagged
from strandline.materialize.protocol.refusals import REFILL
from strandline.materialize.protocol.task import Binding
from strandline.problem import Problem, Stopped, Way

_ONES: Final = (1, -1)
SECOND_ROW: Final = Problem(
    "key-taken-at-endpoint",
    "{collection!r} into {resource!r}: a second row has the key ({key}); either KEY ({columns}) does not identify its "
    "rows, or another program wrote to the resource",
    Stopped.ENDPOINT,
    (
        Way("remove one row, or declare another key"),
        Way("fill it again, if another program wrote there", REFILL.command),
    ),
)
NOT_A_KEY: Final = Problem(
    "key-not-unique",
    "{collection!r} into {resource!r}: more than one row has the key ({key}); KEY ({columns}) does not identify its "
    "rows",
    Stopped.ENDPOINT,
    (Way("remove all but one of them, or drop the materialization and create it with another key"),),
)


def to_store(binding: Binding, changes: pa.Table) -> pa.Table:
    """Return the rows to store for net ``changes`` (``binding.columns`` plus ``__diff``), as in `messages.Store`.

    Raises:
        DefinitionError: two rows have one key; the message names the binding and the key.
    """
    rows = changes.select([column.name for column in binding.columns])
    if not changes.num_rows:
        return unflagged(rows)
    diffs = changes[DIFF].to_numpy()
    ids = key_ids(_identity(binding, changes))
    plus, minus = (np.bincount(ids[diffs == sign], minlength=len(changes)) for sign in _ONES)
    doubled = ~np.isin(diffs, _ONES) | (plus[ids] > 1) | (minus[ids] > 1)
    if doubled.any():
        raise _not_a_key(binding, changes, int(np.flatnonzero(doubled)[0]))
    inserted = diffs == 1
    exists, gone = minus[ids] > 0, plus[ids] == 0
    kept = pa.array(inserted | gone)
    return flagged(rows, exists, ~inserted).filter(kept)


class Stores:
    """`to_store` over a stream of batches."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._open: pa.Table | None = None

    def add(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the rows to store for the keys that ended in ``batch``.  Raises as `to_store`."""
        changes = pa.Table.from_batches([batch])
        if self._open is not None:
            changes = pa.concat_tables([self._open, changes])
        if not changes.num_rows:
            return to_store(self._binding, changes)
        ids = key_ids(_identity(self._binding, changes))
        others = np.flatnonzero(ids != ids[-1])
        ended = int(others[-1]) + 1 if len(others) else 0
        self._open = changes.slice(ended)
        if len(self._open) > len(_ONES):  # the key has too many rows already: no need to read on
            to_store(self._binding, self._open)
        return to_store(self._binding, changes.slice(0, ended))

    def end(self) -> pa.Table | None:
        """Return the rows to store for the last key; None if there were no changes.  Raises as `to_store`."""
        return None if self._open is None else to_store(self._binding, self._open)


def _identity(binding: Binding, changes: pa.Table) -> list[pa.ChunkedArray]:
    """Return the columns in which the changes of one row agree: its key, and its time if the binding keeps times."""
    return [changes[name] for name in (*((TIME,) if binding.times else ()), *binding.key)]


def keys_of(binding: Binding, rows: pa.Table) -> pa.Table:
    """Return the key columns of ``rows``, in the key's order, for a `messages.Load`."""
    return rows.select(list(binding.key))


def with_existence(binding: Binding, rows: pa.Table, loaded: pa.Table) -> pa.Table:
    """Return ``rows`` with `EXISTS` by the endpoint's answer: true for exactly the keys of ``loaded``.

    A delete of a missing row is dropped.
    """
    both = [
        pa.chunked_array([*rows[name].chunks, *loaded[name].cast(rows[name].type).chunks], rows[name].type)
        for name in binding.key
    ]
    ids = key_ids(both)
    exists = np.isin(ids[: len(rows)], ids[len(rows) :])
    rows = rows.set_column(rows.schema.get_field_index(EXISTS), EXISTS, pa.array(exists))
    return rows.filter(pa.array(exists | ~rows[DELETE].to_numpy()))


def key_ids(columns: list[pa.ChunkedArray]) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a number below the row count for each row, equal for two rows iff they agree in every column."""
    ids: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        codes = _codes(column)
        # Both factors are at most the row count, so the product fits as long as the rows do in memory.
        _, ids = np.unique(ids * (int(codes.max(initial=0)) + 1) + codes, return_inverse=True)
    return ids


def _codes(column: pa.ChunkedArray) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return a small number per value, equal iff the values are."""
    array = column.combine_chunks()
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)
    if pa.types.is_nested(array.type):
        # Arrow cannot compare nested values, so compare their texts.
        array = pa.array([repr(value) for value in array.to_pylist()], pa.string())
    elif pa.types.is_floating(array.type):
        array = pc.add(array, pa.scalar(0, array.type))  # -0.0 becomes 0.0
    codes = array.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False)
    return np.asarray(codes, np.int64)


def second_row(binding: Binding, known: pa.Table) -> DefinitionError:
    """Return the error for the first of ``known``, rows of the resource whose keys the collection adds once more."""
    return DefinitionError(SECOND_ROW.said(**_about(binding, known, 0), item=binding.task))


def _not_a_key(binding: Binding, changes: pa.Table, row: int) -> DefinitionError:
    return DefinitionError(NOT_A_KEY.said(**_about(binding, changes, row)))


def _about(binding: Binding, rows: pa.Table, row: int) -> dict[str, str]:
    key, columns = key_text(binding, rows, row), ", ".join(binding.key)
    return {"collection": binding.collection, "resource": binding.resource, "key": key, "columns": columns}
