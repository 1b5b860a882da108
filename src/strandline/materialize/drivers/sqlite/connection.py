"""A connection to an SQLite file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
import pyarrow as pa

from strandline.algebra.types import Array, Atom, Struct, Type
from strandline.materialize.drivers.sql.connection import READ_ROWS, OutcomeUnknownError, Staged, Take, Value
from strandline.materialize.drivers.sql.text import Sql, compose, identifier, joined
from strandline.materialize.spool import Spool
from strandline.materialize.wire.values import column, listed, plain

_ROWS_AT_ONCE: Final = 10_000


class SQLiteConnection:
    """See `Connection`."""

    def __init__(self, inner: sqlite3.Connection) -> None:
        self._inner = inner

    def begin(self, *, frozen: bool = False) -> None:
        """See `Connection.begin`: who writes is the only one from here on."""
        self._inner.execute("BEGIN" if frozen else "BEGIN IMMEDIATE")

    def commit(self) -> None:
        """See `Connection.commit`."""
        try:
            self._inner.execute("COMMIT")
        except sqlite3.Error as error:
            raise OutcomeUnknownError(str(error)) from error

    def rollback(self) -> None:
        """See `Connection.rollback`."""
        with suppress(sqlite3.Error):
            self._inner.execute("ROLLBACK")

    def change(self, statement: Sql, *values: Value) -> int:
        """See `Connection.change`."""
        return self._inner.execute(statement.text, values).rowcount

    def query(self, statement: Sql, *values: Value) -> list[tuple[object, ...]]:
        """See `Connection.query`."""
        return self._inner.execute(statement.text, values).fetchall()

    def read(self, statement: Sql, names: Sequence[str], types: Sequence[Type], take: Take) -> None:
        """See `Connection.read`."""
        cursor = self._inner.execute(statement.text)
        while rows := cursor.fetchmany(READ_ROWS):
            columns = zip(names, types, zip(*rows, strict=True), strict=True)
            take(pa.table([_array(name, kind, values) for name, kind, values in columns], names=list(names)))

    def stage(self, staged: Staged, rows: Spool) -> None:
        """See `Connection.stage`."""
        self.change(compose("CREATE TEMPORARY TABLE IF NOT EXISTS {t} ({d})", t=staged.table, d=staged.declared))
        self.change(compose("DELETE FROM {t}", t=staged.table))
        self.append(staged.table, [identifier(name) for name in staged.names], staged.types, rows)

    def append(self, table: Sql, columns: Sequence[Sql], types: Sequence[Type], rows: Spool) -> int:
        """See `Connection.append`."""
        places = joined(", ", (Sql("?") for _ in columns))
        statement = compose("INSERT INTO {t} ({c}) VALUES ({p})", t=table, c=joined(", ", columns), p=places)
        return sum(self._inner.executemany(statement.text, _rows(part)).rowcount for part in rows.tables())


def _rows(table: pa.Table) -> Iterator[tuple[Any, ...]]:
    """Yield rows as SQLite stores them."""
    for start in range(0, len(table), _ROWS_AT_ONCE):
        part = table.slice(start, _ROWS_AT_ONCE)
        yield from zip(*(_values(each) for each in part.columns), strict=True)


def _values(values: pa.ChunkedArray) -> list[Any]:
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raw: list[Any] = values.to_pylist()
        return raw
    if pa.types.is_nested(kind):
        return [None if value is None else value.decode() for value in plain(values).to_pylist()]
    found = listed(plain(values))
    if pa.types.is_floating(kind):  # SQLite has infinities
        return [float(value) if isinstance(value, str) and value != "NaN" else value for value in found]
    return found


def _array(name: str, kind: Type, values: Sequence[Any]) -> pa.Array:
    match kind:
        case Atom("binary"):
            return pa.array(values, pa.binary())
        case Atom("boolean"):
            return pa.array([None if value is None else bool(value) for value in values], pa.bool_())
        case Array() | Struct():
            return column(name, (None if value is None else msgspec.json.decode(value) for value in values), kind)
        case _:
            return column(name, values, kind)
