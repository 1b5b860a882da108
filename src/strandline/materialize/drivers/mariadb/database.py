"""One database of a MariaDB server, as one of our sessions uses it: a PyMySQL connection, made when it is needed.

PyMySQL blocks, so the work runs in a thread.  If the work is cancelled while the server is silent, the socket is shut
down: the thread ends, and the checkpoint row shows later what the server did.

Rows are staged in a temporary table, by INSERTs of many rows.  (LOAD DATA LOCAL would be faster, but it lets a server
ask for any file of this machine.)

Source: MariaDB's documentation, "MariaDB Error Code Reference".
"""

from __future__ import annotations

import asyncio
import select
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from socket import SHUT_RDWR
from typing import Any, Final, TypeVar

import msgspec
import pyarrow as pa
import pymysql
from pymysql.constants import CLIENT, SERVER_STATUS
from pymysql.cursors import SSCursor

from strandline.algebra.arrow_types import arrow
from strandline.algebra.types import Array, Atom, Struct, Type
from strandline.connections.mariadb import DENIALS, said
from strandline.connections.mariadb import MariaDBConnection as Options
from strandline.errors import ConfigError, DefinitionError, StrandlineError, Unavailable
from strandline.materialize.drivers.sql.connection import (
    READ_ROWS,
    Connection,
    OutcomeUnknownError,
    Sql,
    Staged,
    Take,
    Value,
    begun_anew,
    compose,
    identifier,
    joined,
)
from strandline.materialize.drivers.threads import to_its_end
from strandline.materialize.protocol.refusals import DENIED, REFUSED
from strandline.materialize.spool import Spool
from strandline.materialize.wire.values import column, plain
from strandline.store.clock import Clock

STATEMENT_BYTES: Final = 1 << 20
"""About how long an INSERT is; the server's limit is `max_allowed_packet`."""
_CONFLICTS: Final = frozenset({1213, 1050, 1060, 1061})
"""A deadlock; or another session has made a table, a column or an index at the same moment."""
_LATER: Final = frozenset({1040, 1053, 1077, 1079, 1152, 1159, 1161, 1205, 1290, 1317, 1836, 1927})
_LOST_FROM: Final = 2000
"""From here on the codes are the client's: the connection is lost."""


class MariaDBConnection:
    """See `Connection`; ``place`` is what messages call the database."""

    def __init__(self, inner: Any, place: str) -> None:
        self._inner = inner
        self._place = place

    def begin(self, *, frozen: bool = False) -> None:
        """See `Connection.begin`."""
        self.change(Sql("START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY" if frozen else "START TRANSACTION"))

    def commit(self) -> None:
        """See `Connection.commit`."""
        try:
            self._inner.commit()
        except (pymysql.MySQLError, OSError, struct.error) as error:
            raise OutcomeUnknownError(said(error)) from error

    def rollback(self) -> None:
        """See `Connection.rollback`."""
        with suppress(pymysql.MySQLError, OSError):
            self._inner.rollback()

    def change(self, statement: Sql, *values: Value) -> int:
        """See `Connection.change`."""
        with self._failing(), self._inner.cursor() as cursor:
            return int(cursor.execute(statement.text, values or None))

    def query(self, statement: Sql, *values: Value) -> list[tuple[object, ...]]:
        """See `Connection.query`."""
        with self._failing(), self._inner.cursor() as cursor:
            cursor.execute(statement.text, values or None)
            return list(cursor.fetchall())

    def read(self, statement: Sql, names: Sequence[str], types: Sequence[Type], take: Take) -> None:
        """See `Connection.read`."""
        with self._failing(), self._inner.cursor(SSCursor) as cursor:
            cursor.execute(statement.text)
            while rows := cursor.fetchmany(READ_ROWS):
                columns = zip(names, types, zip(*rows, strict=True), strict=True)
                take(pa.table([_array(name, kind, values) for name, kind, values in columns], names=list(names)))

    def stage(self, staged: Staged, rows: Spool) -> None:
        """See `Connection.stage`."""
        self.change(compose("CREATE TEMPORARY TABLE IF NOT EXISTS {t} ({d})", t=staged.table, d=staged.declared))
        self.change(compose("DELETE FROM {t}", t=staged.table))
        self.append(staged.table, [identifier(name) for name in staged.names], staged.types, rows)

    def append(self, table: Sql, columns: Sequence[Sql], types: Sequence[Type], rows: Spool) -> int:
        """See `Connection.append`."""
        head = compose("INSERT INTO {t} ({c}) VALUES ", t=table, c=joined(", ", columns)).text
        taken = 0
        with self._failing(), self._inner.cursor() as cursor:
            for part in rows.tables():
                for values in _written(cursor, part):
                    taken += int(cursor.execute(head + values))
        return taken

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (pymysql.MySQLError, OSError, struct.error) as error:
            raise meaning(error, self._place) from error


def _written(cursor: Any, rows: pa.Table) -> Iterator[str]:
    """Yield the rows as PyMySQL writes parameters, so many at a time as make a statement."""
    places = f"({', '.join(['%s'] * rows.num_columns)})"
    texts: list[str] = []
    size = 0
    for row in zip(*map(_values, rows.columns), strict=True):
        texts.append(cursor.mogrify(places, row))
        size += len(texts[-1])
        if size >= STATEMENT_BYTES:
            yield ",".join(texts)
            texts, size = [], 0
    if texts:
        yield ",".join(texts)


def meaning(error: Exception, place: str) -> StrandlineError | OutcomeUnknownError:
    """Return one of our errors for one of PyMySQL's."""
    code = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else 0
    if code in _CONFLICTS:
        return OutcomeUnknownError(said(error))
    if code in DENIALS:
        return ConfigError(DENIED.said(endpoint=place, why=said(error)))
    if not isinstance(code, int) or not code or code in _LATER or code >= _LOST_FROM:
        return Unavailable(f"{place} failed: {said(error)}")
    return DefinitionError(REFUSED.said(endpoint=place, why=said(error)))


def _values(values: pa.ChunkedArray) -> list[Any]:
    """Return values as PyMySQL takes them."""
    kind = values.type
    if pa.types.is_dictionary(kind):
        values, kind = values.cast(kind.value_type), kind.value_type
    if pa.types.is_nested(kind):
        return [None if value is None else value.decode() for value in plain(values).to_pylist()]
    if pa.types.is_timestamp(kind):
        values = values.cast(pa.int64()).cast(pa.timestamp("us"))  # as UTC shows it
    found: list[Any] = values.to_pylist()
    return found


def _array(name: str, kind: Type, values: Sequence[Any]) -> pa.Array:
    match kind:
        case Array() | Struct():
            return column(name, (None if value is None else msgspec.json.decode(value) for value in values), kind)
        case Atom("boolean"):
            return pa.array([None if value is None else bool(value) for value in values], pa.bool_())
        case Atom("timestamp"):
            return pa.array(values, pa.timestamp("us")).cast(pa.int64()).cast(arrow(kind))
        case _:
            return pa.array(values, arrow(kind))


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
