"""SQLite consensus opened read-only: a reader writes nothing, not even SQLite's own files beside the database.

A database in WAL mode cannot be opened without its log.  While a process has it open, the log exists, and a read is an
ordinary transaction that blocks no writer.  While no process has it open, SQLite would *create* the log and leave it.
So the reader then opens the file as ``immutable``, and accepts the result only if the file did not change: the log is
still absent, and the file's stamp is the same to the nanosecond.

So a location can be read on a read-only mount, or by a user other than the writer.

Source: https://www.sqlite.org/wal.html, "Read-Only Databases".
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

from strandline.errors import Determinate
from strandline.store.consensus_kinds.sqlite import (
    BUSY_SECONDS_MAX,
    VERSION,
    SQLiteVersions,
    absent,
    is_ours,
    nothing_happened,
)

Stamp: TypeAlias = tuple[int, ...]

LOOKS_MAX: Final = 100
"""How often a read is repeated because another process opened and closed the database during it."""


class SQLiteReader(SQLiteVersions):
    """The read methods of a `Consensus`, on the file ``path``.

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
