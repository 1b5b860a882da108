"""The endpoint `mariadb`: what it takes, and how it is opened.

CREATE MATERIALIZATION m INTO MARIADB OPTIONS (host 'db', database 'shop', user 'strandline',
    password 'env:MARIADB_PASSWORD') AS v KEY (id)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline import extras
from strandline.connections.mariadb import MariaDBConnection
from strandline.materialize.driver import DriverKind
from strandline.materialize.drivers.mariadb.dialect import MariaDBDialect
from strandline.materialize.drivers.sql.driver import SqlDriver
from strandline.materialize.drivers.sql.options import TableOptions
from strandline.options import TEXT, option
from strandline.store.clock import Clock


@dataclass(frozen=True, kw_only=True)
class MariaDBTarget(TableOptions, MariaDBConnection):
    """Where the database is, and how tables are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MariaDBResource:
    """Where a collection is."""

    table: str = option(TEXT, "The table in the database; only Strandline writes it.")


def _open(options: MariaDBTarget, clock: Clock) -> SqlDriver:
    from strandline.materialize.drivers.mariadb.database import MariaDBDatabase

    return SqlDriver(KIND.spec, MariaDBDialect(), lambda: MariaDBDatabase(clock, options), soft=options.soft)


KIND: Final = DriverKind(
    "mariadb", MariaDBTarget, MariaDBResource, "docs/endpoints/mariadb.md", _open, lambda _: (extras.MARIADB,)
)
