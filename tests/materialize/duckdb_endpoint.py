"""A DuckDB file for the driver contract, whose sessions may be of a wrong kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb

from strandline.materialize.driver import Session
from strandline.materialize.drivers.duckdb import DuckDBDriver, DuckDBSession
from strandline.materialize.drivers.duckdb_file import DuckDBFile
from strandline.materialize.protocol.task import NOTHING, Checkpoint
from strandline.testing.doubles import HandClock


class DuckDBEndpoint:
    """One DuckDB file.  A connection is kept, so that opening it again is cheap."""

    fences = True

    def __init__(
        self,
        path: Path,
        session: type[DuckDBSession] = DuckDBSession,
        connect: Callable[[str], Any] = duckdb.connect,
    ) -> None:
        self.path = path
        self.clock = HandClock()
        self.kept = duckdb.connect(str(path))
        self._session = session
        self._connect = connect

    def driver(self) -> DuckDBDriver:
        """Return one more driver to the file."""
        file, session = DuckDBFile(self.clock, self.path, connect=self._connect), self._session

        class Driver(DuckDBDriver):
            async def open(self) -> Session:
                return session(file)

        return Driver(file)

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
