"""The endpoint `sqlite`: what it takes, and how it is opened.

CREATE MATERIALIZATION m INTO SQLITE OPTIONS (path '/data/out.db') AS v KEY (id)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from strandline.materialize.driver import DriverKind
from strandline.materialize.drivers.sql.driver import SqlDriver
from strandline.materialize.drivers.sql.options import TableOptions
from strandline.materialize.drivers.sqlite.dialect import SQLiteDialect
from strandline.materialize.drivers.sqlite.file import SQLiteFile
from strandline.options import PLACE, TEXT, option
from strandline.store.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class SQLiteOptions(TableOptions):
    """Where the database is, and how tables are kept."""

    path: str = option(PLACE, "The SQLite file; created if missing. Or a reference: `env:NAME`, `file:PATH`.")


@dataclass(frozen=True, slots=True, kw_only=True)
class SQLiteResource:
    """Where a collection is."""

    table: str = option(TEXT, "The table; only Strandline writes it.")


def _open(options: SQLiteOptions, _: Clock) -> SqlDriver:
    return SqlDriver(KIND.spec, SQLiteDialect(), lambda: SQLiteFile(Path(options.path)), soft=options.soft)


KIND: Final = DriverKind("sqlite", SQLiteOptions, SQLiteResource, "docs/endpoints/sqlite.md", _open)
