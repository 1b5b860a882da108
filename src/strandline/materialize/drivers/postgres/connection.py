"""A connection to PostgreSQL, by psycopg.

Rows are staged in a temporary table, which is made once a connection and is emptied by each commit.

Source: PostgreSQL's manual, "PostgreSQL Error Codes"; psycopg 3, "Using COPY", "Server-side cursors".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.types.string import TextLoader

from strandline.algebra.arrow_types import arrow
from strandline.algebra.types import Array, Atom, Struct, Type
from strandline.errors import ConfigError, DefinitionError, StrandlineError, Unavailable, first_line
from strandline.materialize.drivers.postgres.copying import without_era, written_ahead
from strandline.materialize.drivers.sql.connection import READ_ROWS, OutcomeUnknownError, Staged, Take, Value
from strandline.materialize.drivers.sql.text import Sql, compose, identifier, joined
from strandline.materialize.protocol.refusals import DENIED, REFUSED
from strandline.materialize.spool import Spool
from strandline.materialize.wire.values import column

Psycopg: TypeAlias = psycopg.Connection[tuple[Any, ...]]

ANALYZED_ROWS_MIN: Final = 1_000
"""Fewer staged rows are merged as fast without statistics."""
_CONFLICTS: Final = frozenset({"40001", "40P01"})
_MADE_TWICE: Final = frozenset({"42701", "42710", "42P07", "pg_type_typname_nsp_index", "pg_class_relname_nsp_index"})
"""What is violated if two sessions make one table or column at once; "IF NOT EXISTS" does not prevent it."""
_OPERATORS: Final = frozenset({"42501", "3F000"})
"""A privilege, or a schema, is missing."""
_LATER: Final = ("08", "25006", "25P03", "53", "55", "57", "58")
"""The beginnings of the codes of what passes."""
_TIMES: Final = ("date", "timestamp", "timestamptz")
_COMMON: Final = "^[0-9]{4}-[0-9]{2}-[0-9]{2}(?: [0-9:]{8}(?:[.][0-9]{1,6})?)?$"
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
_FROZEN: Final = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"


class PostgresConnection:
    """See `Connection`; ``place`` is what messages call the database."""

    def __init__(self, inner: Psycopg, place: str) -> None:
        self._inner = inner
        self._place = place
        self._staged: set[str] = set()

    def begin(self, *, frozen: bool = False) -> None:
        """See `Connection.begin`."""
        self._staged.clear()
        self.change(Sql(_FROZEN if frozen else _BEGIN))

    def commit(self) -> None:
        """See `Connection.commit`."""
        try:
            done = self._inner.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            raise OutcomeUnknownError(first_line(error)) from error
        if done != "COMMIT":
            raise OutcomeUnknownError("the server rolled it back")

    def rollback(self) -> None:
        """See `Connection.rollback`."""
        with suppress(psycopg.Error):
            self._inner.execute("ROLLBACK")

    def change(self, statement: Sql, *values: Value) -> int:
        """See `Connection.change`."""
        with self._failing():
            return self._run(statement, values).rowcount

    def query(self, statement: Sql, *values: Value) -> list[tuple[object, ...]]:
        """See `Connection.query`."""
        with self._failing():
            return self._run(statement, values).fetchall()

    def read(self, statement: Sql, names: Sequence[str], types: Sequence[Type], take: Take) -> None:
        """See `Connection.read`."""
        with self._failing(), self._inner.cursor(name="strandline_rows") as cursor:
            cursor.execute(statement.text.encode())
            while rows := cursor.fetchmany(READ_ROWS):
                columns = zip(names, types, zip(*rows, strict=True), strict=True)
                take(pa.table([_array(name, kind, values) for name, kind, values in columns], names=list(names)))

    def stage(self, staged: Staged, rows: Spool) -> None:
        """See `Connection.stage`."""
        made = "CREATE TEMPORARY TABLE IF NOT EXISTS {t} ({d}) ON COMMIT DELETE ROWS"
        self.change(compose(made, t=staged.table, d=staged.declared))
        if staged.table.text in self._staged:
            self.change(compose("TRUNCATE {t}", t=staged.table))
        self._staged.add(staged.table.text)
        self.append(staged.table, [identifier(name) for name in staged.names], staged.types, rows)
        if rows.rows >= ANALYZED_ROWS_MIN:  # the other columns are as many again, and decide nothing
            self.change(compose("ANALYZE {t} ({k})", t=staged.table, k=joined(", ", map(identifier, staged.key))))

    def append(self, table: Sql, columns: Sequence[Sql], types: Sequence[Type], rows: Spool) -> int:
        """See `Connection.append`."""
        statement = compose("COPY {t} ({c}) FROM STDIN (FORMAT csv)", t=table, c=joined(", ", columns))
        with self._failing(), self._inner.cursor() as cursor:
            with cursor.copy(statement.text.encode()) as copy:
                for part in written_ahead(rows.tables()):
                    copy.write(part)
            return cursor.rowcount

    def _run(self, statement: Sql, values: Sequence[Value]) -> psycopg.RawCursor[tuple[Any, ...]]:
        return psycopg.RawCursor(self._inner).execute(statement.text.encode(), list(values) if values else None)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise self._meaning(error) from error

    def _meaning(self, error: psycopg.Error) -> StrandlineError | OutcomeUnknownError:
        code, said = error.sqlstate or "", first_line(error)
        if code in _CONFLICTS or {code, error.diag.constraint_name} & _MADE_TWICE:
            return OutcomeUnknownError(said)
        if code in _OPERATORS:
            return ConfigError(DENIED.said(endpoint=self._place, why=said))
        if not code or code.startswith(_LATER):
            return Unavailable(f"{self._place} failed: {said}")
        return DefinitionError(REFUSED.said(endpoint=self._place, why=said))


def as_texts(inner: Psycopg) -> None:
    """Have a connection return dates and times as texts: Python has not all years that PostgreSQL has."""
    for name in _TIMES:
        inner.adapters.register_loader(name, TextLoader)


def _array(name: str, kind: Type, values: Sequence[Any]) -> pa.Array:
    match kind:
        case Array() | Struct():
            return column(name, values, kind)
        case Atom("date" | "timestamp" | "timestamp_ntz"):
            texts = pa.array([None if value is None else without_era(value) for value in values], pa.string())
            if pc.all(pc.match_substring_regex(texts, _COMMON)).as_py() is False:
                return column(name, texts.to_pylist(), kind)
            plainly = texts.cast(pa.date32() if kind == Atom("date") else pa.timestamp("us"))
            return plainly if kind == Atom("date") else plainly.cast(pa.int64()).cast(arrow(kind))
        case _:
            return pa.array(values, arrow(kind))
