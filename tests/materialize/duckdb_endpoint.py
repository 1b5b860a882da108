"""A DuckDB file for the driver contract, whose sessions may be of a wrong kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
from tests.materialize.drivers.sql.endpoint import SqlEndpoint

from strandline.materialize.drivers.duckdb.file import DuckDBFile
from strandline.materialize.drivers.duckdb.kind import DuckDBDialect
from strandline.materialize.drivers.sql.driver import SqlSession
from strandline.store.clock import Clock, SystemClock


class DuckDBEndpoint(SqlEndpoint):
    """One DuckDB file.  A connection is kept, so that opening it again is cheap."""

    unholdable = ("last date", "last time", "dates in an array")
    system = "DuckDB"
    enforces = False

    def __init__(
        self,
        path: Path,
        session: type[SqlSession] = SqlSession,
        connect: Callable[[str], Any] = duckdb.connect,
        *,
        soft: bool = False,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(session, soft=soft)
        self.path = path
        self._clock = clock or SystemClock()  # sessions of one process wait for each other's threads
        self.kept = duckdb.connect(str(path))
        self._connect = connect

    @property
    def dialect(self) -> DuckDBDialect:
        return DuckDBDialect()

    def database(self) -> DuckDBFile:
        return DuckDBFile(self._clock, self.path, connect=self._connect)

    def run(self, text: str, *values: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        found = self.kept.execute(text, list(values) or None)
        return [column for column, *_ in found.description or ()], found.fetchall()

    def missing(self, error: Exception) -> bool:
        return isinstance(error, duckdb.CatalogException)
