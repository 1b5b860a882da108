"""One database of a PostgreSQL server, as one session of ours uses it: a connection, made when it is needed.

psycopg blocks, so the work runs in a thread.  If it is cancelled while the server is silent, the socket is shut down:
the thread ends, and what the server did is found out from the checkpoint row.
"""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from socket import SHUT_RDWR, socket
from typing import Final, TypeVar

import psycopg
from psycopg.pq import TransactionStatus

from strandline.connections.postgres import SHUT_OUT
from strandline.connections.postgres import PostgresConnection as Options
from strandline.errors import ConfigError, Unavailable, first_line
from strandline.materialize.drivers.postgres.connection import PostgresConnection, Psycopg, as_texts
from strandline.materialize.drivers.sql.again import begun_anew
from strandline.materialize.drivers.sql.connection import Connection
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.protocol.refusals import DENIED, UNSUITED
from strandline.store.clock import Clock

T = TypeVar("T")

VERSION_MIN: Final = 15
SETTINGS: Final[Mapping[str, str]] = {
    "client_min_messages": "warning",
    "row_security": "off",  # a policy that hides rows is an error
    "statement_timeout": "0",
    # A process that stopped, or whose machine has gone, in a transaction keeps its successor out.  So the server ends a
    # session that leaves a transaction alone, or whose client's machine is silent; and meanwhile the successor says why
    # it waits.
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "30",
    "tcp_keepalives_interval": "10",
    "tcp_keepalives_count": "3",
    "lock_timeout": "90s",
}
_DURABLE: Final = """
SELECT set_config('synchronous_commit', 'on', false)
WHERE current_setting('synchronous_commit') IN ('off', 'local')"""
"""What a commit has answered must stay: history that it needs no longer is let go of."""


class PostgresDatabase:
    """See `Database`."""

    def __init__(self, clock: Clock, options: Options) -> None:
        self._clock = clock
        self._options = options
        self._inner: Psycopg | None = None

    def __str__(self) -> str:
        return self._options.place

    async def run(self, work: Callable[[Connection], T], *, again: bool = False) -> T:
        """See `Database.run`."""
        attempt = partial(to_its_end, partial(self._attempt, work), self._shut_down)
        return await begun_anew(attempt, self, self._clock, again=again)

    async def close(self) -> None:
        """See `Database.close`."""
        inner, self._inner = self._inner, None
        if inner is not None:
            await asyncio.to_thread(inner.close)

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        inner = self._connected()
        try:
            return work(PostgresConnection(inner, str(self)))
        finally:
            if inner.closed or inner.info.transaction_status is not TransactionStatus.IDLE:
                inner.close()

    def _connected(self) -> Psycopg:
        inner = self._inner
        if inner is not None and not _ended(inner):
            return inner
        if inner is not None:
            inner.close()
        try:
            inner = psycopg.connect(**self._options.parameters(SETTINGS), autocommit=True, prepare_threshold=None)
            self._inner = inner
            as_texts(inner)
            inner.execute(_DURABLE)
        except psycopg.Error as error:
            said = first_line(error)
            if SHUT_OUT.search(said):
                raise ConfigError(DENIED.said(endpoint=self, why=said)) from error
            raise Unavailable(f"{self} does not answer: {said}") from error
        version = inner.info.server_version // 10_000
        if version < VERSION_MIN:
            inner.close()
            about = {"has": f"is version {version}", "so": "it lacks what is needed"}
            raise ConfigError(UNSUITED.said(endpoint=self, **about, to=f"version {VERSION_MIN} or later"))
        return inner

    def _shut_down(self) -> None:
        """Have the server's answer fail, for which a thread may wait."""
        inner = self._inner
        if inner is not None:
            with suppress(OSError, psycopg.Error), socket(fileno=os.dup(inner.fileno())) as shared:
                shared.shutdown(SHUT_RDWR)


def _ended(inner: Psycopg) -> bool:
    """Tell whether an idle connection is of no use: the server has something to say, which is farewell."""
    if inner.closed:
        return True
    watched = select.poll()
    watched.register(inner.fileno(), select.POLLIN)
    return bool(watched.poll(0))
