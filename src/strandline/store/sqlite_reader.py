"""SQLite read from outside: nothing is written, not even a file of SQLite's own beside the database.

A database in WAL mode cannot be opened without its log.  While somebody has it open, the log is there, and reading is
an ordinary transaction that keeps nobody from writing.  While nobody has, SQLite would *make* the log, and leave it; so
the file is then read as one that does not change (``immutable``), and what was read counts only if it did not: the log
is still absent, and the file is the same to the nanosecond.

So a location can be read on a read-only mount, or by another user than the one who writes it.

Source: design page "persist" (modes: independent); https://www.sqlite.org/wal.html, "Read-Only Databases".
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, Final, TypeAlias

from strandline.errors import Determinate
from strandline.store.consensus import SEQNO_MAX, Versioned, check_limit
from strandline.store.sqlite import BUSY_SECONDS_MAX, HEAD, KEYS, SCAN, VERSION, absent, is_ours, nothing_happened

Stamp: TypeAlias = tuple[int, ...]

LOOKS_MAX: Final = 100
"""How often a read is repeated because somebody opened and closed the database during it."""


class SQLiteReader:
    """What can be read of the consensus in the file ``path``: the reading half of a `Consensus`.

    Raises:
        ConfigError: there is no such file, or it was made by another version.
        CorruptionError: it is no database of ours or no longer.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.exists() or not is_ours(path, self._look(VERSION, ())):
            raise absent(path)

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        rows = await asyncio.to_thread(self._look, HEAD, (key,))
        return Versioned(*rows[0]) if rows else None

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        check_limit(key, limit)
        if start > SEQNO_MAX:
            return []
        rows = await asyncio.to_thread(self._look, SCAN, (key, max(start, 0), min(limit, SEQNO_MAX)))
        return [Versioned(*row) for row in rows]

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        return sorted(key for (key,) in await asyncio.to_thread(self._look, KEYS, ()))

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
        """Return what tells whether the file was changed; None while somebody has it open."""
        if self._path.with_name(f"{self._path.name}-wal").exists():
            return None
        try:
            found = self._path.stat()
        except OSError as error:
            raise Determinate(f"{self._path} cannot be read: {error}") from error
        return found.st_ino, found.st_size, found.st_mtime_ns
