"""The endpoint `postgres`: what it takes, and how it is opened.

CREATE MATERIALIZATION m INTO POSTGRES OPTIONS (host 'db', database 'shop', user 'strandline',
    password 'env:PG_PASSWORD', schema 'reports') AS v KEY (id)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline import extras
from strandline.connections.postgres import PostgresConnection
from strandline.materialize.driver import DriverKind
from strandline.materialize.drivers.postgres.dialect import PostgresDialect
from strandline.materialize.drivers.sql.driver import SqlDriver
from strandline.materialize.drivers.sql.options import TableOptions
from strandline.options import TEXT, option
from strandline.store.clock import Clock


@dataclass(frozen=True, kw_only=True)
class PostgresTarget(TableOptions, PostgresConnection):
    """Where the database is, and how tables are kept."""

    schema: str = option(TEXT, "The schema of the tables; it must be there.", default="public")


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresResource:
    """Where a collection is."""

    table: str = option(TEXT, "The table in the schema; only Strandline writes it.")


def _open(options: PostgresTarget, clock: Clock) -> SqlDriver:
    from strandline.materialize.drivers.postgres.database import PostgresDatabase

    dialect = PostgresDialect(options.schema)
    return SqlDriver(KIND.spec, dialect, lambda: PostgresDatabase(clock, options), soft=options.soft)


KIND: Final = DriverKind(
    "postgres", PostgresTarget, PostgresResource, "docs/endpoints/postgres.md", _open, lambda _: (extras.POSTGRES,)
)
