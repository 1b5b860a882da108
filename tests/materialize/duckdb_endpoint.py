"""A DuckDB file for the driver contract, whose sessions may be of a wrong kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from strandline.materialize.driver import Session
from strandline.materialize.drivers.duckdb.dialect import DuckDBDialect
from strandline.materialize.drivers.duckdb.file import DuckDBFile
from strandline.materialize.drivers.duckdb.kind import KIND
from strandline.materialize.drivers.sql.driver import SqlDriver
from strandline.materialize.drivers.sql.session import SqlSession
from strandline.materialize.protocol.task import NOTHING, Checkpoint
from strandline.testing.doubles import HandClock


class DuckDBEndpoint:
    """One DuckDB file.  A connection is kept, so that opening it again is cheap."""

    fences = True

    def __init__(
        self,
        path: Path,
        session: type[SqlSession] = SqlSession,
        connect: Callable[[str], Any] = duckdb.connect,
        *,
        soft: bool = False,
    ) -> None:
        self.path = path
        self.clock = HandClock()
        self.kept = duckdb.connect(str(path))
        self._session = session
        self._connect = connect
        self._soft = soft

    def driver(self) -> SqlDriver:
        """Return one more driver to the file."""
        file, dialect, soft = DuckDBFile(self.clock, self.path, connect=self._connect), DuckDBDialect(), self._soft
        session = self._session

        class Driver(SqlDriver):
            async def open(self) -> Session:
                return session(file, dialect, soft=soft)

        return Driver(KIND.spec, dialect, lambda: file, soft=soft)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table; none if there is no such table."""
        name = '"' + table.replace('"', '""') + '"'
        try:
            # Arrow ends a column's name at its first NUL.
            columns = [column for column, *_ in self.kept.execute(f"DESCRIBE {name}").fetchall()]
            return self.kept.sql(f"SELECT * FROM {name}").to_arrow_table().rename_columns(columns).to_pylist()
        except duckdb.CatalogException:
            return []

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return the checkpoint in the file."""
        try:
            rows = self.kept.execute(
                "SELECT checkpoint FROM strandline_checkpoints WHERE materialization = ?", [name]
            ).fetchall()
        except duckdb.CatalogException:
            return NOTHING
        return Checkpoint.decode(rows[0][0]) if rows else NOTHING
