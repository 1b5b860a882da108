"""DuckDB keeps the contract."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pytest

from strandline.materialize.drivers.duckdb import DuckDBDriver
from strandline.materialize.drivers.duckdb_file import DuckDBFile
from strandline.materialize.task import NOTHING, Checkpoint
from strandline.testing.doubles import HandClock
from strandline.testing.driver_contract import DriverContract


class DuckDBEndpoint:
    """One DuckDB file."""

    fences = True

    def __init__(self, path: Path, connect: Callable[[str], Any] = duckdb.connect) -> None:
        self.path = path
        self.clock = HandClock()
        self._connect = connect

    def driver(self) -> DuckDBDriver:
        return DuckDBDriver(DuckDBFile(self.clock, self.path, connect=self._connect))

    def rows(self, table: str) -> list[dict[str, Any]]:
        name = '"' + table.replace('"', '""') + '"'
        with duckdb.connect(str(self.path)) as connection:
            if connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = ?", [table]).fetchall() == []:
                return []
            return connection.sql(f"SELECT * FROM {name}").to_arrow_table().to_pylist()

    def checkpoint(self, name: str) -> Checkpoint | None:
        with duckdb.connect(str(self.path)) as connection:
            try:
                rows = connection.execute(
                    "SELECT checkpoint FROM strandline_checkpoints WHERE materialization = ?", [name]
                ).fetchall()
            except duckdb.CatalogException:
                return NOTHING
        return Checkpoint.decode(rows[0][0]) if rows else NOTHING


@pytest.fixture
def make_endpoint(tmp_path: Path) -> Callable[[], DuckDBEndpoint]:
    """Each endpoint is a file of its own."""
    numbers = count()
    return lambda: DuckDBEndpoint(tmp_path / f"{next(numbers)}.duckdb")


class TestDuckDB(DriverContract):
    pass
