"""Consensus in one SQLite file: several processes of one machine, no server.

WAL mode with ``synchronous=FULL``: a commit returns once the log is fsynced.  A write takes the file's only write lock
*before* it reads the head (``BEGIN IMMEDIATE``), so the head is still the same when it commits.  That makes every key
linearizable, across processes too.

Every call runs in a thread: a commit fsyncs, and any call may wait for the lock.  An instance has one connection and
makes one call at a time; changes that wait meanwhile are installed by the next call, all of them with one fsync.

If the file is deleted or replaced, SQLite still has the old one open and would commit to a file that no other process
finds.  So each call first checks that the path still names the open file, and a commit checks once more.

Readers that may not write use `SQLiteReader`.

Warning: SQLite's locks do not hold on network file systems.

Source: https://www.sqlite.org/wal.html, also its section "Read-Only Databases".
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

from strandline.errors import (
    ConfigError,
    CorruptionError,
    Determinate,
    Indeterminate,
    NothingStored,
    StoreError,
    StrandlineError,
    is_full,
)
from strandline.store.protocols import (
    SEQNO_MAX,
    Committed,
    CompareAndSet,
    Mismatch,
    Versioned,
    check_limit,
    check_truncation,
)

T = TypeVar("T")

BUSY_SECONDS_MAX: Final = 10.0
"""How long a call waits for another process's transaction, each of which is one small write and one fsync."""
OPEN_ATTEMPTS_MAX: Final = 20
LOG_INDEX_BYTES: Final = 32 << 10
"""The space that SQLite needs beside the file before it reads the first row: the index of its log."""
_WHEN_FULL: Final = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
FORMAT: Final = 1
"""Kept in the file's ``user_version``; 0 is a file that is not in use yet."""

VERSION: Final = "PRAGMA user_version"
_CREATE: Final = """
    CREATE TABLE IF NOT EXISTS versions (
        key TEXT NOT NULL, seqno INTEGER NOT NULL, data BLOB NOT NULL, PRIMARY KEY (key, seqno)
    )
"""
_HEAD: Final = "SELECT seqno, data FROM versions WHERE key = ? ORDER BY seqno DESC LIMIT 1"
_INSTALL: Final = """
    INSERT INTO versions (key, seqno, data)
    SELECT ?1, ?2, ?3 WHERE (SELECT max(seqno) FROM versions WHERE key = ?1) IS ?4
"""
_SCAN: Final = "SELECT seqno, data FROM versions WHERE key = ? AND seqno >= ? ORDER BY seqno LIMIT ?"
_TRUNCATE: Final = "DELETE FROM versions WHERE key = ? AND seqno < ?"
_KEYS: Final = "SELECT DISTINCT key FROM versions"


class SQLiteVersions(ABC):
    """The read methods, independent of how the file is opened."""

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        rows = await asyncio.to_thread(self._look, _HEAD, (key,))
        return Versioned(*rows[0]) if rows else None

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        check_limit(key, limit)
        if start > SEQNO_MAX:
            return []
        rows = await asyncio.to_thread(self._look, _SCAN, (key, max(start, 0), min(limit, SEQNO_MAX)))
        return [Versioned(*row) for row in rows]

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        return sorted(key for (key,) in await asyncio.to_thread(self._look, _KEYS, ()))

    @abstractmethod
    def _look(self, query: str, values: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
        """Return the rows of a query that changes nothing; blocks."""


class SQLiteConsensus(SQLiteVersions):
    """A `Consensus` in the file ``path``; its directory must exist.

    The file is created if missing, unless it must be ``existing``.  Opening an existing file changes nothing.

    The meaning of a failure depends on when it comes:

    - Before ``COMMIT`` is issued nothing can have happened, provided that the transaction is rolled back for certain.
      So a busy or full database is `Determinate`.
    - From ``COMMIT`` on, the log may hold the transaction or not, and SQLite itself only finds out when the file is
      next opened.  So a failure is `Indeterminate`, and the connection is dropped.
    - One failure of ``COMMIT`` is `Determinate`: a write to the log found no space.  The page that ends the
      transaction is written last, and a log is read only up to the last page that ends one and whose checksum is
      right.  So the transaction is not in it, also after a crash.  The connection stays open: what is stored can be
      read while the disk is full.

    Raises:
        ConfigError: the file cannot be opened as a database that several processes share, or does not exist although it
            must.
        CorruptionError: the file is not a Strandline database, or is damaged.
    """

    def __init__(self, path: Path, *, existing: bool = False) -> None:
        self._path = path
        self._target = f"{path.absolute().as_uri()}?mode={'rw' if existing else 'rwc'}"
        self._guard = threading.Lock()
        self._entry = threading.Lock()  # held for moments, over the queue
        self._queue: list[tuple[Sequence[CompareAndSet], Future[list[Committed | Mismatch]]]] = []
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None  # device and inode of the file that is open
        if existing and not path.exists():
            raise absent(path)
        try:
            if not is_ours(path, self._look(VERSION, ())):
                if existing:
                    raise absent(path)
                self._transact(self._initialize)
        except StoreError as error:
            self.close()
            if no_space(path):
                raise
            raise ConfigError(f"{path} cannot be used as a consensus database: {error.__cause__}") from error
        except StrandlineError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection.  A later call opens it again."""
        with self._guard:
            self._drop()

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected."""
        (outcome,) = await self.compare_and_set_many([request])
        return outcome

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone, in one transaction and with one fsync.

        So are requests of other calls that wait meanwhile for the one before.  An error stands for all requests: either
        none of them happened (`Determinate`), or all that matched may have.
        """
        answer: Future[list[Committed | Mismatch]] = Future()
        with self._entry:
            self._queue.append((requests, answer))
        await asyncio.to_thread(self._install_queue)
        return answer.result()

    def _install_queue(self) -> None:
        """Do what is queued; nothing, if another call did it while this one waited for its turn."""
        with self._guard:
            with self._entry:
                queue, self._queue = self._queue, []
            if not queue:
                return

            def install(connection: sqlite3.Connection) -> list[list[Committed | Mismatch]]:
                return [[_install(connection, request) for request in requests] for requests, _ in queue]

            try:
                outcomes = self._transact(install)
            except BaseException as error:  # noqa: BLE001 - each caller raises it
                for _, answer in queue:
                    answer.set_exception(error)
            else:
                for (_, answer), outcome in zip(queue, outcomes, strict=True):
                    answer.set_result(outcome)

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; return how many."""

        def delete(connection: sqlite3.Connection) -> int:
            (head,) = connection.execute("SELECT max(seqno) FROM versions WHERE key = ?", (key,)).fetchone()
            check_truncation(key, seqno, head)
            return connection.execute(_TRUNCATE, (key, max(seqno, 0))).rowcount

        return await self._write(delete)

    def _look(self, query: str, values: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
        with self._guard:
            try:
                return self._connected().execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise nothing_happened(self._path, error) from error

    async def _write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        def write() -> T:
            with self._guard:
                return self._transact(change)

        return await asyncio.to_thread(write)

    def _transact(self, change: Callable[[sqlite3.Connection], T]) -> T:
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            raise nothing_happened(self._path, error) from error
        try:
            result = change(connection)
        except sqlite3.Error as error:
            self._roll_back(connection)
            raise nothing_happened(self._path, error) from error
        except BaseException:
            self._roll_back(connection)
            raise
        try:
            connection.execute("COMMIT")
        except sqlite3.Error as error:
            if reason := _ran_out(error, self._path):
                self._roll_back(connection)
                said = f"nothing was stored: {reason} in {self._path.parent}: {_said(error)}"
                raise Determinate(f"{self._path}: {said}") from error
            self._drop()
            raise Indeterminate(f"{self._path}: a commit may have failed: {_reason(error, self._path)}") from error
        try:
            self._require_file()
        except ConfigError as error:
            raise Indeterminate(str(error)) from error
        return result

    def _require_file(self) -> None:
        """Return if the path names the file that was opened first.  Raises `ConfigError`: it was deleted, or replaced.

        No retry could mend that.  What this process knows may be newer than what another file holds, so only a process
        that begins may use that.
        """
        if self._file not in (None, _identity(self._path)):
            self._drop()
            raise ConfigError(
                f"{self._path} was deleted or replaced while it was in use, so nothing more is stored: end this "
                "process; put the location back from a backup, or begin it anew"
            )

    def _roll_back(self, connection: sqlite3.Connection) -> None:
        """Leave no transaction open: a later COMMIT on this connection must not carry it."""
        try:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop()

    def _connected(self) -> sqlite3.Connection:
        self._require_file()
        if self._connection is None:
            connection = sqlite3.connect(
                self._target, timeout=BUSY_SECONDS_MAX, isolation_level=None, check_same_thread=False, uri=True
            )
            try:
                _share_durably(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._file = connection, _identity(self._path)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _initialize(self, connection: sqlite3.Connection) -> None:
        if is_ours(self._path, connection.execute(VERSION).fetchall()):
            return  # another process created it meanwhile
        connection.execute(_CREATE)
        connection.execute(f"PRAGMA user_version = {FORMAT}")


def _identity(path: Path) -> tuple[int, int] | None:
    """Return which file a path names: its device and inode; None: it names none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def is_ours(path: Path, version: list[tuple[Any, ...]]) -> bool:
    """Return whether the file with this answer to `VERSION` is in use; False if it is new.

    Raises `ConfigError` if it was made by another version of Strandline.
    """
    ((form,),) = version
    if form not in (0, FORMAT):
        raise ConfigError(f"{path} has format {form}, made by another version of Strandline; this one: {FORMAT}")
    return bool(form)


def absent(path: Path) -> NothingStored:
    """Return the error for a database that must exist and does not."""
    return NothingStored(f"there is no consensus database {path}: nothing was stored there yet")


def nothing_happened(path: Path, error: sqlite3.Error) -> StrandlineError:
    """Return the error to raise for a failure before any COMMIT was issued."""
    if _primary_code(error) in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptionError(f"{path} is not the database that was stored: {_reason(error, path)}")
    return Determinate(f"{path} did not answer: {_reason(error, path)}")


def _install(connection: sqlite3.Connection, request: CompareAndSet) -> Committed | Mismatch:
    new = request.new
    installed = connection.execute(_INSTALL, (request.key, new.seqno, new.data, request.expected)).rowcount
    return Committed() if installed else Mismatch()


def _share_durably(connection: sqlite3.Connection) -> None:
    """Configure a connection to the file.

    If two processes switch a fresh file to WAL at once, SQLite may report that it is busy without the usual wait; so
    wait by taking the write lock, and try again.
    """
    connection.execute("PRAGMA synchronous = FULL")
    for attempt in range(OPEN_ATTEMPTS_MAX):
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or attempt == OPEN_ATTEMPTS_MAX - 1:
                raise
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        raise ConfigError(f"SQLite cannot keep a write-ahead log here: the journal mode is {mode!r}")


def _primary_code(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code; errors of the Python module itself have none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def no_space(path: Path) -> str:
    """Return the operating system's message if the disk of ``path`` is full, else an empty text.

    SQLite reports a full disk by many codes, most of them "disk I/O error".
    """
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return ""
    full = found.f_bavail * found.f_frsize < LOG_INDEX_BYTES or (found.f_files and not found.f_favail)
    return os.strerror(errno.ENOSPC) if full else ""


def _ran_out(error: sqlite3.Error, path: Path) -> str:
    """Return the operating system's message if a write found no space, else an empty text.

    SQLite calls a used-up quota an error of the disk, so whether it is one is found by a write of our own.
    """
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    if code == sqlite3.SQLITE_FULL:
        return os.strerror(errno.ENOSPC)
    if code != sqlite3.SQLITE_IOERR_WRITE:
        return ""
    try:
        with tempfile.TemporaryFile(dir=path.parent) as file:
            os.pwrite(file.fileno(), bytes(LOG_INDEX_BYTES), 0)
    except OSError as refused:
        return os.strerror(refused.errno or 0) if is_full(refused) else ""
    return ""


def _reason(error: sqlite3.Error, path: Path) -> str:
    reason = no_space(path) if _primary_code(error) in _WHEN_FULL else ""
    return f"{reason} in {path.parent}: {_said(error)}" if reason else _said(error)


def _said(error: sqlite3.Error) -> str:
    return f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"


Stamp: TypeAlias = tuple[int, ...]

LOOKS_MAX: Final = 100
"""How often a read is repeated because another process opened and closed the database during it."""


class SQLiteReader(SQLiteVersions):
    """The read methods of a `Consensus`, on the file ``path``.

    It writes nothing, not even SQLite's own files beside the database.  So a location can be read on a read-only
    mount, or by a user other than the writer.

    A database in WAL mode cannot be opened without its log.  While a process has it open, the log exists, and a read
    is an ordinary transaction that blocks no writer.  While no process has it open, SQLite would *create* the log and
    leave it.  So the reader then opens the file as ``immutable``, and accepts the result only if the file did not
    change: the log is still absent, and the file's stamp is the same to the nanosecond.

    Raises:
        ConfigError: there is no such file, or it was made by another version.
        CorruptionError: it is not a Strandline database, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists() or not is_ours(path, self._look(VERSION, ())):
            raise absent(path)

    def _look(self, query: str, values: tuple[str | int, ...]) -> list[tuple[Any, ...]]:
        for _ in range(LOOKS_MAX):
            before = self._stamp()
            target = f"{self._path.absolute().as_uri()}?mode=ro{'&immutable=1' if before else ''}"
            try:
                with closing(sqlite3.connect(target, timeout=BUSY_SECONDS_MAX, uri=True)) as connection:
                    rows = connection.execute(query, values).fetchall()
            except sqlite3.Error as error:
                if before == self._stamp():
                    raise nothing_happened(self._path, error) from error
            else:
                if before in {None, self._stamp()}:
                    return rows
        raise Determinate(f"{self._path} was opened and closed by other processes {LOOKS_MAX} times while it was read")

    def _stamp(self) -> Stamp | None:
        """Return a stamp that changes with the file; None while another process has it open.

        An empty log counts as none: it holds nothing, and a process that could not open the database on a full disk may
        have left it.
        """
        try:
            if self._log_bytes():
                return None
            found = self._path.stat()
        except OSError as error:
            raise Determinate(f"{self._path} cannot be read: {error}") from error
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _log_bytes(self) -> int:
        try:
            return self._path.with_name(f"{self._path.name}-wal").stat().st_size
        except FileNotFoundError:
            return 0
