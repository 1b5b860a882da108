"""SQLite read from outside: nothing is written, not even a file of SQLite's own beside the database.

A database in WAL mode cannot be opened without its log.  While somebody has it open, the log is there, and reading is
an ordinary transaction that keeps nobody from writing.  While nobody has, SQLite would *make* the log, and leave it; so
the file is then read as one that does not change (``immutable``), and what was read counts only if it did not: the log
is still absent, and the file is the same to the nanosecond.

So a location can be read on a read-only mount, or by another user than the one who writes it.

Source: design page "persist" (modes: independent); https://www.sqlite.org/wal.html, "Read-Only Databases".
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

from strandline.errors import Determinate
from strandline.store.sqlite import BUSY_SECONDS_MAX, VERSION, SQLiteVersions, absent, is_ours, nothing_happened

Stamp: TypeAlias = tuple[int, ...]

LOOKS_MAX: Final = 100
"""How often a read is repeated because somebody opened and closed the database during it."""


class SQLiteReader(SQLiteVersions):
    """What can be read of the consensus in the file ``path``: the reading half of a `Consensus`.

    Raises:
        ConfigError: there is no such file, or it was made by another version.
        CorruptionError: it is no database of ours or no longer.
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
        raise Determinate(f"{self._path} was opened and closed by others {LOOKS_MAX} times while it was read")

    def _stamp(self) -> Stamp | None:
        """Return what tells whether the file was changed; None while somebody has it open.

        An empty log counts as none: it holds nothing, and may be all that a process left that could not open the
        database because the disk is full.
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
