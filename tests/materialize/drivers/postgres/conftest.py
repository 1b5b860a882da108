"""Schemas on a real PostgreSQL server, as endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import psycopg
import pytest
from tests.materialize.drivers.sql.endpoint import SqlEndpoint

from postgres_server import PostgresDatabase, PostgresServer
from strandline.materialize.drivers.postgres.database import PostgresDatabase as Database
from strandline.materialize.drivers.postgres.kind import PostgresDialect, PostgresTarget
from strandline.options import understood
from strandline.testing.doubles import HandClock
from strandline.testing.hostile import HOSTILE

SESSIONS_MAX = 16
SCHEMAS = count()


class PostgresEndpoint(SqlEndpoint):
    """One schema."""

    unnameable = tuple(name for name in HOSTILE if "\0" in name or len(name.encode()) > 63)
    unholdable = ("last date", "NUL", "NUL in a struct", "long key")
    system = "PostgreSQL"

    def __init__(self, where: PostgresDatabase, schema: str, port: int = 0, user: str = "", **how: Any) -> None:
        super().__init__(**how)
        self.where = where
        self.schema = schema
        other = {name: str(value) for name, value in (("port", port), ("user", user)) if value}
        self.options = understood("e", PostgresTarget, {**where.options, **other, "schema": schema})
        self.made: list[Database] = []
        self.kept = psycopg.connect(where.url, autocommit=True)
        self.kept.execute(f'CREATE SCHEMA "{schema}"')

    @property
    def dialect(self) -> PostgresDialect:
        return PostgresDialect(self.schema)

    def database(self) -> Database:
        self.made.append(Database(HandClock(), self.options))
        self._close(self.made[:-SESSIONS_MAX])  # of sessions that crashed, as their process would have
        return self.made[-1]

    def run(self, text: str, *values: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        cursor = psycopg.RawCursor(self.kept).execute(text, values or None)
        if cursor.description is None:
            return [], []
        return [column.name for column in cursor.description], cursor.fetchall()

    def missing(self, error: Exception) -> bool:
        return isinstance(error, psycopg.errors.UndefinedTable)

    def close(self) -> None:
        self._close(self.made)
        self.kept.close()

    def _close(self, ended: list[Database]) -> None:
        for database in ended:
            if database._inner is not None:
                database._inner.close()


@pytest.fixture(scope="session")
def postgres_database(postgres_server: PostgresServer) -> Iterator[PostgresDatabase]:
    """A database for all tests of the room."""
    with postgres_server.database() as made:
        yield made


@pytest.fixture
def make_endpoint(postgres_database: PostgresDatabase) -> Iterator[Callable[..., PostgresEndpoint]]:
    """Each endpoint is a schema of its own."""
    made: list[PostgresEndpoint] = []

    def make(**how: Any) -> PostgresEndpoint:
        made.append(PostgresEndpoint(postgres_database, f"s {next(SCHEMAS)}", **how))
        return made[-1]

    yield make
    for endpoint in made:
        endpoint.close()
