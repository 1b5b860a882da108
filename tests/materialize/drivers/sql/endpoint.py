"""An SQL endpoint as its tests see it, beside what the driver contract asks of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from strandline.materialize.driver import DriverSpec, Session
from strandline.materialize.drivers.sql.connection import Database
from strandline.materialize.drivers.sql.dialect import Dialect
from strandline.materialize.drivers.sql.driver import SqlDriver, SqlSession
from strandline.materialize.protocol.task import NOTHING, Checkpoint

_COPIES = count()


class SqlEndpoint:
    """A database that a client of the tests reads and changes, too.

    ``unnameable``, ``finite``: see `EndpointUnderTest`.  ``enforces``: the database itself refuses a second row of a
    key.  ``evolves``: it can change the type of a column in place.
    """

    fences = True
    unnameable: Sequence[str] = ()
    unholdable: Sequence[str] | None = ()
    finite = False
    enforces = True
    evolves = True
    system = ""

    def __init__(self, session: type[SqlSession] = SqlSession, *, soft: bool = False) -> None:
        self.session = session
        self.soft = soft

    @property
    def dialect(self) -> Dialect:
        """Return the dialect."""
        raise NotImplementedError

    def database(self) -> Database:
        """Return one more handle to the database."""
        raise NotImplementedError

    def run(self, text: str, *values: Any) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run a statement by a client of its own; return the names of the columns, and the rows."""
        raise NotImplementedError

    def missing(self, error: Exception) -> bool:
        """Tell whether an error of `run` says that there is no such table."""
        raise NotImplementedError

    def driver(self) -> SqlDriver:
        """Return one more driver."""
        return driver_of(self.session, self.dialect, self.database, soft=self.soft)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table; none if there is no such table."""
        return self.found(f"SELECT * FROM {self.dialect.qualified(table).text}")

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return the checkpoint of a materialization."""
        table = self.dialect.qualified("strandline_checkpoints").text
        held = self.found(f"SELECT materialization, checkpoint FROM {table}")
        ours = [each["checkpoint"] for each in held if each["materialization"] == name]
        return Checkpoint.decode(ours[0]) if ours else NOTHING

    def keep(self) -> Callable[[], None]:
        """See `Loses`: of tables that are not there yet, no row stays."""
        names = ("Orders", "People", "strandline_checkpoints")
        number = next(_COPIES)
        there = [name for name in names if self._is_there(name)]
        for name in there:
            self.run(f"CREATE TABLE {self._named(name, number)} AS SELECT * FROM {self._named(name)}")

        def put_back() -> None:
            for name in names:
                if name not in there and self._is_there(name):
                    self.run(f"DELETE FROM {self._named(name)}")
            for name in there:
                self.run(f"DELETE FROM {self._named(name)}")
                self.run(f"INSERT INTO {self._named(name)} SELECT * FROM {self._named(name, number)}")

        return put_back

    def _named(self, table: str, number: int | str = "") -> str:
        return self.dialect.qualified(f"{table}{number}").text

    def _is_there(self, table: str) -> bool:
        try:
            self.run(f"SELECT 1 FROM {self._named(table)}")
        except Exception as error:
            if not self.missing(error):
                raise
            return False
        return True

    def found(self, text: str) -> list[dict[str, Any]]:
        """Return the rows of a query, none if its table is missing."""
        try:
            names, rows = self.run(text)
        except Exception as error:
            if not self.missing(error):
                raise
            return []
        return [dict(zip(names, row, strict=True)) for row in rows]


def driver_of(
    session: type[SqlSession], dialect: Dialect, database: Callable[[], Database], *, soft: bool
) -> SqlDriver:
    """Return a driver whose sessions are of a kind."""

    class Driver(SqlDriver):
        async def open(self) -> Session:
            return session(database(), dialect, soft=soft)

    return Driver(DriverSpec({}, {}, ""), dialect, database, soft=soft)
