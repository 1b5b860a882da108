"""Keys of stored rows: which rows of a file have one of some keys, without reading the files that have none.

Keys are compared as values: NULL equals NULL, NaN equals NaN, -0.0 equals 0.0 (`stores.key_ids`).  A hash of each row's
key is kept in memory, for as many files as there is room; a file never changes, so its hashes never do.  A key that no
file has, which is the answer to most Loads, then costs no reading at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, TypeAlias

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.materialize.drivers.staged.shape import Shape, aligned, arrow_schema
from strandline.materialize.drivers.staged.table import Piece, Table
from strandline.materialize.stores import key_ids

Hashes: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]

HELD_BYTES_MAX: Final = 256 * 1024 * 1024
"""Bytes of hashes that are kept: 8 for each stored row, so 32 million rows."""


class Keys:
    """Some keys, as a table of the key columns, no key twice."""

    def __init__(self, columns: Sequence[str], rows: pa.Table) -> None:
        self.columns = tuple(columns)
        self.rows = rows
        self._hashes = pa.array(hashes(rows))

    def maybe(self, hashed: Hashes) -> Mask:
        """Return which of the hashes are of one of the keys: whose rows may have one."""
        return np.asarray(pc.is_in(pa.array(hashed), self._hashes).to_numpy(zero_copy_only=False), np.bool_)

    def __len__(self) -> int:
        return len(self.rows)

    def among(self, rows: pa.Table, hashed: Hashes) -> Mask:
        """Return which of ``rows`` (tables of the key columns) have one of the keys; ``hashed``: the rows' hashes."""
        found = self.maybe(hashed)
        places = np.flatnonzero(found)
        if not len(places):
            return found
        some = rows.take(pa.array(places))
        both = [
            pa.chunked_array([*mine.chunks, *theirs.chunks], mine.type)
            for mine, theirs in zip(self.rows.columns, some.columns, strict=True)
        ]
        ids = key_ids(both)
        found[places] = np.isin(ids[len(self) :], ids[: len(self)])
        return found


class KeyIndex:
    """The hashes of the keys of pieces, least recently used ones dropped first.  For one thread at a time."""

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._held_bytes_max = held_bytes_max
        self._held: OrderedDict[tuple[str, str], Hashes] = OrderedDict()
        self._bytes = 0

    def having(self, table: Table, piece: Piece, shape: Shape, keys: Keys) -> Mask | None:
        """Return which rows of ``piece`` have one of ``keys``; None: none of them."""
        known = self._held.get((table.name, piece.name))
        if known is not None:
            self._held.move_to_end((table.name, piece.name))
            if not keys.maybe(known).any():
                return None
        rows = _key_rows(table, piece, shape, keys.columns)
        if known is None:
            known = hashes(rows)
            self._keep((table.name, piece.name), known)
        found = keys.among(rows, known)
        return found if found.any() else None

    def _keep(self, name: tuple[str, str], hashed: Hashes) -> None:
        self._held[name] = hashed
        self._bytes += hashed.nbytes
        while self._bytes > self._held_bytes_max:
            self._bytes -= self._held.popitem(last=False)[1].nbytes


def _key_rows(table: Table, piece: Piece, shape: Shape, columns: Sequence[str]) -> pa.Table:
    schema = arrow_schema(shape)
    read = list(table.read(piece, shape, columns))
    wanted = pa.schema([schema.field(schema.names.index(each)) for each in columns])
    return pa.concat_tables(read) if read else wanted.empty_table()


def keys_in(columns: Sequence[str], shape: Shape, rows: pa.Table) -> Keys:
    """Return the keys in ``rows``, which has the columns in their order, as a table of ``shape`` has them."""
    schema = arrow_schema(shape)
    wanted = pa.schema([schema.field(schema.names.index(each)) for each in columns])
    return Keys(columns, aligned(rows, wanted))


def hashes(rows: pa.Table) -> Hashes:
    """Return a hash of each row, which is the same for rows that are not distinct.

    >>> nan = float("nan")
    >>> h = hashes(pa.table({"a": [0.0, -0.0, nan, nan, None, None], "b": ["x", "x", "", "", "", ""]}))
    >>> [bool(h[i] == h[i + 1]) for i in range(5)]
    [True, False, True, False, True]
    """
    names = [f"c{place}" for place in range(rows.num_columns)]
    plain = pa.Table.from_arrays([_zeroed(each) for each in rows.columns], names=names)
    with _database().cursor() as connection:
        connection.register("rows", plain)
        hashed = connection.sql(f"SELECT hash({', '.join(names)}) AS h FROM rows").to_arrow_table()  # noqa: S608 - no name is foreign
    return np.asarray(hashed["h"].to_numpy(), np.uint64)


@cache
def _database() -> duckdb.DuckDBPyConnection:
    """Return the process' database, which holds nothing: opening one takes longer than hashing a few thousand rows."""
    return duckdb.connect(":memory:", config={"threads": 1})


def _zeroed(values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.add(values, pa.scalar(0, values.type)) if pa.types.is_floating(values.type) else values
