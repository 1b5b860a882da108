"""The endpoint `duckdb`: what it takes, and how it is opened.

CREATE MATERIALIZATION m INTO DUCKDB (path = '/data/out.duckdb') AS v
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strandline.materialize.driver import DriverKind
from strandline.materialize.drivers.duckdb.dialect import DuckDBDialect
from strandline.materialize.drivers.duckdb.file import DuckDBFile
from strandline.materialize.drivers.sql.driver import SqlDriver
from strandline.materialize.drivers.sql.options import TableOptions
from strandline.options import PLACE, TEXT, option
from strandline.store.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckDBOptions(TableOptions):
    """Where the database is, and how tables are kept."""

    path: str = option(PLACE, "The DuckDB file; created if missing. Or a reference: `env:NAME`, `file:PATH`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class DuckDBResource:
    """Where a collection is."""

    table: str = option(TEXT, "The table in schema `main`; only Strandline writes it.")


def _open(options: DuckDBOptions, clock: Clock) -> SqlDriver:
    return SqlDriver(KIND.spec, DuckDBDialect(), lambda: DuckDBFile(clock, Path(options.path)), soft=options.soft)


KIND: Final = DriverKind("duckdb", DuckDBOptions, DuckDBResource, "docs/endpoints/duckdb.md", _open)
