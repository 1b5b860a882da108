"""Databases on a real MariaDB server, as endpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pymysql
import pytest
from tests.materialize.drivers.sql.endpoint import SqlEndpoint

import mariadb_server as mariadb
from strandline.materialize.drivers.mariadb.database import MariaDBDatabase
from strandline.materialize.drivers.mariadb.kind import MariaDBDialect, MariaDBTarget
from strandline.options import understood
from strandline.testing.contracts.drivers.driver_contract import HOSTILE
from strandline.testing.doubles import HandClock

SESSIONS_MAX = 16


class MariaDBEndpoint(SqlEndpoint):
    """One database."""

    unnameable = tuple(name for name in HOSTILE if "\0" in name or max(name) > "\uffff" or name.endswith(" "))
    unholdable = (
        "date before Christ", "date of year 0", "date after 9999", "last date", "time before Christ", "time after 9999",
        "last time", "NaN", "infinity",
    )  # fmt: skip
    finite = True
    system = "MariaDB"

    def __init__(self, server: mariadb.MariaDBServer, database: str, **how: Any) -> None:
        port = how.pop("port", server.port)
        super().__init__(**how)
        self.server = server
        self.name = database
        where = {"host": "127.0.0.1", "port": str(port), "user": mariadb.USER, "password": mariadb.PASSWORD}
        self.options = understood("e", MariaDBTarget, {**where, "database": database})
        self.made: list[MariaDBDatabase] = []
        self.kept = server.connect(database)
        self.kept.cursor().execute("SET SESSION sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'")

    @property
    def dialect(self) -> MariaDBDialect:
        return MariaDBDialect()

    def database(self) -> MariaDBDatabase:
        self.made.append(MariaDBDatabase(HandClock(), self.options))
        self._close(self.made[:-SESSIONS_MAX])  # of sessions that crashed, as their process would have
        return self.made[-1]

    def run(self, text: str, *values: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        with self.kept.cursor() as cursor:
            cursor.execute(text, values or None)
            return [column for column, *_ in cursor.description or ()], list(cursor.fetchall())

    def missing(self, error: Exception) -> bool:
        return isinstance(error, pymysql.err.ProgrammingError) and error.args[0] == 1146

    def close(self) -> None:
        self._close(self.made)
        self.kept.close()

    def _close(self, ended: list[MariaDBDatabase]) -> None:
        for database in ended:
            if database._inner is not None and database._inner.open:
                database._inner.close()


@pytest.fixture
def make_endpoint(mariadb_server: mariadb.MariaDBServer) -> Iterator[Callable[..., MariaDBEndpoint]]:
    """Each endpoint is a database of its own."""
    with ExitStack() as closing:

        def make(**how: Any) -> MariaDBEndpoint:
            database = closing.enter_context(mariadb_server.database())
            endpoint = MariaDBEndpoint(mariadb_server, database, **how)
            closing.callback(endpoint.close)
            return endpoint

        yield make
