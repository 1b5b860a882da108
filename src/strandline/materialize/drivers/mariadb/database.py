"""One database of a MariaDB server, as one session of ours uses it: a connection, made when it is needed.

PyMySQL blocks, so the work runs in a thread.  If it is cancelled while the server is silent, the socket is shut down:
the thread ends, and what the server did is found out from the checkpoint row.
"""

from __future__ import annotations

import asyncio
import select
import struct
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from socket import SHUT_RDWR
from typing import Any, Final, TypeVar

import pymysql
from pymysql.constants import CLIENT, SERVER_STATUS

from strandline.connections.mariadb import MariaDBConnection as Options
from strandline.materialize.drivers.mariadb.connection import MariaDBConnection, meaning
from strandline.materialize.drivers.sql.again import begun_anew
from strandline.materialize.drivers.sql.connection import Connection
from strandline.materialize.drivers.threads import to_its_end
from strandline.store.clock import Clock

T = TypeVar("T")

SETTINGS: Final = """
default_storage_engine = 'InnoDB', default_tmp_storage_engine = 'InnoDB', tx_isolation = 'REPEATABLE-READ',
foreign_key_checks = 1, unique_checks = 1, idle_transaction_timeout = 60
"""
"""A process that stopped in a transaction keeps its successor out: the server ends a session that leaves one alone."""


class MariaDBDatabase:
    """See `Database`."""

    def __init__(self, clock: Clock, options: Options) -> None:
        self._clock = clock
        self._options = options
        self._inner: Any = None

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
            await asyncio.to_thread(_close, inner)

    def _attempt(self, work: Callable[[Connection], T]) -> T:
        inner = self._connected()
        try:
            return work(MariaDBConnection(inner, str(self)))
        except BaseException:
            _close(inner)  # its state is not known
            raise
        finally:
            if inner.open and inner.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
                _close(inner)

    def _connected(self) -> Any:
        inner = self._inner
        if inner is not None and not _ended(inner):
            return inner
        if inner is not None:
            _close(inner)
        try:
            self._inner = pymysql.connect(
                **self._options.parameters(SETTINGS),
                autocommit=True,
                client_flag=CLIENT.FOUND_ROWS,  # an UPDATE counts the rows that it finds
                connect_timeout=10,
                local_infile=False,
            )
        except (pymysql.MySQLError, OSError, struct.error) as error:
            raise meaning(error, str(self)) from error
        return self._inner

    def _shut_down(self) -> None:
        """Have the server's answer fail, for which a thread may wait."""
        shared = getattr(self._inner, "_sock", None)
        if shared is not None:
            with suppress(OSError):
                shared.shutdown(SHUT_RDWR)


def _close(inner: Any) -> None:
    with suppress(pymysql.MySQLError, OSError):
        inner.close()


def _ended(inner: Any) -> bool:
    """Tell whether an idle connection is of no use: the server has something to say, which is farewell."""
    if not inner.open:
        return True
    watched = select.poll()
    watched.register(inner._sock.fileno(), select.POLLIN)  # noqa: SLF001 - PyMySQL has no other way to ask
    return bool(watched.poll(0))
