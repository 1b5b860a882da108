"""An SQLite file that other programs read too: opened for one piece of work, then closed.

A file that is made here has a write-ahead log, so that its readers and its writer do not wait for each other.  A commit
returns once it is on disk (``synchronous = FULL``).

SQLite blocks, so the work runs in a thread.

Warning: SQLite's locks do not hold on network file systems.

Source: https://www.sqlite.org/wal.html, https://www.sqlite.org/rescode.html.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from strandline.errors import ConfigError, CorruptionError, DefinitionError, StrandlineError, Unavailable
from strandline.materialize.drivers.sql.connection import Connection, OutcomeUnknownError
from strandline.materialize.drivers.sqlite.connection import SQLiteConnection
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.protocol.refusals import DAMAGED, REFUSED, UNOPENED

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
