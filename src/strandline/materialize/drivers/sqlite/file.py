"""An SQLite file that other programs read too: opened for one piece of work, then closed.

A file that is made here has a write-ahead log, so that its readers and its writer do not wait for each other.  A commit
returns once it is on disk (``synchronous = FULL``).  SQLite blocks, so the work runs in a thread.

Warning: SQLite's locks do not hold on network file systems.

Source: https://www.sqlite.org/wal.html, https://www.sqlite.org/rescode.html.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa

from strandline.algebra.types import Array, Atom, Struct, Type
from strandline.errors import ConfigError, CorruptionError, DefinitionError, StrandlineError, Unavailable
from strandline.materialize.drivers.sql.connection import (
    READ_ROWS,
    Connection,
    OutcomeUnknownError,
    Sql,
    Staged,
    Take,
    Value,
    compose,
    identifier,
    joined,
)
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.protocol.refusals import DAMAGED, REFUSED, UNOPENED
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


T = TypeVar("T")

ATTEMPTS_MAX: Final = 3
LOCK_WAIT_S: Final = 15.0
"""How long another process's transaction is waited for."""
_OF_THE_OPERATOR: Final = frozenset(
    {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_AUTH}
)
_OF_THE_STATEMENT: Final = frozenset(
    {
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_TOOBIG,
        sqlite3.SQLITE_RANGE,
    }
)
_PRIMARY: Final = 0xFF
"""The part of a code that says the kind of error."""


class SQLiteFile:
    """See `Database`; ``connect`` is SQLite's own, or a double of it."""

    def __init__(
        self,
        path: Path,
        *,
        lock_wait_s: float = LOCK_WAIT_S,
        connect: Callable[..., sqlite3.Connection] = sqlite3.connect,
    ) -> None:
        self._path = path
        self._lock_wait_s = lock_wait_s
        self._connect = connect

    def __str__(self) -> str:
        return f"SQLite file {self._path}"

    async def run(self, work: Callable[[Connection], T], *, again: bool = False) -> T:
        """See `Database.run`: transactions that write are one at a time, so only after a failed COMMIT."""
        for _ in range(ATTEMPTS_MAX - 1 if again else 0):
            with suppress(OutcomeUnknownError):
                return await to_its_end(partial(self._attempt, work))
        try:
            return await to_its_end(partial(self._attempt, work))
        except OutcomeUnknownError as error:
            if again:
                raise Unavailable(f"{self} does not commit: {error}") from error
            raise

    async def close(self) -> None:
        """Do nothing: no connection is kept."""

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        new = not self._path.exists()
        try:
            with closing(self._connect(str(self._path), timeout=self._lock_wait_s, isolation_level=None)) as inner:
                if new:
                    inner.execute("PRAGMA journal_mode = WAL")
                inner.execute("PRAGMA synchronous = FULL")
                return work(SQLiteConnection(inner))
        except sqlite3.Error as error:
            raise self._meaning(error) from error

    def _meaning(self, error: sqlite3.Error) -> StrandlineError:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
        if code in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return Unavailable(f"{self} is locked by another process; let it end its transaction and try again")
        if code in _OF_THE_OPERATOR:
            return ConfigError(UNOPENED.said(endpoint=self, why=error))
        if code == sqlite3.SQLITE_CORRUPT:
            return CorruptionError(DAMAGED.said(what=self, why=error))
        if code in _OF_THE_STATEMENT:
            return DefinitionError(REFUSED.said(endpoint=self, why=error))
        return Unavailable(f"{self} failed: {error}")
