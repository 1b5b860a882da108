"""A connection to MariaDB, by PyMySQL.

Rows are staged in a temporary table, by INSERTs of many rows.  (LOAD DATA LOCAL would be faster, but it lets a server
ask for any file of this machine.)

Source: MariaDB's documentation, "MariaDB Error Code Reference".
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

import msgspec
import pyarrow as pa
import pymysql
from pymysql.cursors import SSCursor

from strandline.algebra.arrow_types import arrow
from strandline.algebra.types import Array, Atom, Struct, Type
from strandline.connections.mariadb import DENIALS, said
from strandline.errors import ConfigError, DefinitionError, StrandlineError, Unavailable
from strandline.materialize.drivers.sql.connection import READ_ROWS, OutcomeUnknownError, Staged, Take, Value
from strandline.materialize.drivers.sql.text import Sql, compose, identifier, joined
from strandline.materialize.protocol.refusals import DENIED, REFUSED
from strandline.materialize.spool import Spool
from strandline.materialize.wire.values import column, plain

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
