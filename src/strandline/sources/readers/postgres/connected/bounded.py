"""Connections to a real server that end within bounded time, and what the failures of their calls mean.

Source: libpq's connection parameters; PostgreSQL's manual, "PostgreSQL Error Codes".
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR, socket
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen

from strandline.connections.postgres import PostgresConnection
from strandline.errors import first_line
from strandline.sources.readers.postgres.connected import statements
from strandline.sources.readers.postgres.server import Name, UpstreamTable

T = TypeVar("T")

SECONDS_MAX: Final = 30.0
"""How long a call may take that touches a few rows of the catalog."""
WAIT_SECONDS: Final = 0.1
"""How often a waiting call checks its time limit."""
_UNCHECKED: Final = "SQL_ASCII"


class BoundedConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for a silent server at most ``seconds_max``, and may be closed by any thread.

    One thread at a time uses it.  libpq keeps pointers into a connection while it waits, so a connection that another
    thread uses is first shut down, which ends the wait, and freed when that thread has left it.
    """

    seconds_max = SECONDS_MAX
    read_from: int | None = None
    """From which position on the session's own slot sends changes; None: it has none."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._in_use = threading.RLock()
        self._closing = threading.Lock()

    @property
    def encoding_of_values(self) -> str:
        """The encoding in which to ask for values, so that none of them fails.

        A database in SQL_ASCII holds any bytes.  It converts nothing, but it refuses to send as UTF-8 what is none.
        """
        return _UNCHECKED if self.info.parameter_status("server_encoding") == _UNCHECKED else "UTF8"

    @property
    def ended(self) -> bool:
        """Whether an idle connection is of no use: the server has something to say, which is farewell."""
        if self.closed:
            return True
        watched = select.poll()
        watched.register(self.fileno(), select.POLLIN)
        return bool(watched.poll(0))

    def wait(self, gen: PQGen[T], interval: float = WAIT_SECONDS, timeout: float | None = None) -> T:
        """Run one exchange with the server; psycopg calls this for every statement."""
        with self._in_use:
            return super().wait(gen, interval, self.seconds_max if timeout is None else timeout)

    def close(self) -> None:
        """Close it.  What another thread has under way fails."""
        with self._closing:  # so the socket that is shut down is this connection's still
            if self.closed:
                return
            if not self._in_use.acquire(blocking=False):
                with socket(fileno=os.dup(self.fileno())) as shared, suppress(OSError):
                    shared.shutdown(SHUT_RDWR)
                self._in_use.acquire()
            try:
                super().close()
            finally:
                self._in_use.release()


def parameters(options: PostgresConnection) -> Mapping[str, Any]:
    """Return libpq's parameters: what a value looks like depends on no setting of the server's or the role's."""
    settings = {
        "search_path": "pg_catalog",  # else a regclass is written with or without its schema
        "row_security": "off",  # a policy that hides rows is an error, since their changes come all the same
        "statement_timeout": str(round(SECONDS_MAX * 1000)),
        "idle_in_transaction_session_timeout": "0",
    }
    return options.parameters(settings)


def published(
    connection: psycopg.Connection[tuple[Any, ...]], publication: str, only: Collection[Name] | None
) -> tuple[UpstreamTable, ...]:
    """Return the publication's tables, or some of them, as the connection sees them."""
    query = statements.tables_query(publication, only, connection.info.server_version)
    return statements.tables(connection.execute(query).fetchall())


@contextmanager
def failing(place: str, what: str, drop: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Raise psycopg's errors as ours; ``drop`` ends the connection, whose state is no longer known."""
    try:
        yield
    except psycopg.Error as error:
        drop()
        raise statements.refused(place, what, error.sqlstate or "", first_line(error)) from error
    except BaseException:
        drop()
        raise
