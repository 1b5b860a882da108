r"""One database of a PostgreSQL server, as one of our sessions uses it: a psycopg connection, made when it is needed.

psycopg blocks, so the work runs in a thread.  If the work is cancelled while the server is silent, the socket is shut
down: the thread ends, and the checkpoint row shows later what the server did.

Rows are staged in a temporary table, which is made once per connection and emptied by each commit.  COPY fills it with
CSV, which Arrow writes column by column, without a Python object per value.  In this CSV, NULL is an empty field and an
empty text is one in quotes.  Arrow quotes every text, so no line begins with ``\.``.  A timestamp is written in UTC
without a zone: the session's zone is UTC, and with a zone Arrow takes far longer.  A year before 1 is written as
PostgreSQL does, with BC.

Source: PostgreSQL's manual, "COPY" (CSV Format), "Binary Data Types" (hex format), "PostgreSQL Error Codes"; psycopg 3,
"Using COPY", "Server-side cursors".
"""

from __future__ import annotations

import asyncio
import math
import os
import select
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from socket import SHUT_RDWR, socket
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg.pq import TransactionStatus
from psycopg.types.string import TextLoader
from pyarrow import csv

from strandline.algebra.arrow_types import arrow
from strandline.algebra.types import Array, Atom, Struct, Type
from strandline.connections.postgres import SHUT_OUT
from strandline.connections.postgres import PostgresConnection as Options
from strandline.errors import ConfigError, DefinitionError, StrandlineError, Unavailable, first_line
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
from strandline.materialize.protocol.holds import DAY
from strandline.materialize.protocol.refusals import DENIED, REFUSED, UNSUITED
from strandline.materialize.spool import Spool
from strandline.materialize.wire.values import column, not_finite, plain
from strandline.store.clock import Clock

_FIRST, _END = -719_162, 2_932_897
"""The days of the years 1 to 9999, which Arrow writes as PostgreSQL reads them."""
_LEAST, _GREATEST = 1e-6, 1e16
OPTIONS: Final = csv.WriteOptions(include_header=False, batch_size=1 << 16)


def csv_of(rows: pa.Table) -> memoryview:
    r"""Return rows as CSV.

    >>> bytes(csv_of(pa.table({"a": [1, None], "b": ["", None], "c": [b"\x00\xff", None]})))
    b'1,"","\\x00ff"\n,,\n'
    >>> bytes(csv_of(pa.table({"at": pa.array([0], pa.timestamp("us", "UTC"))})))
    b'1970-01-01 00:00:00.000000\n'
    """
    sink = pa.BufferOutputStream()
    csv.write_csv(pa.table([_texts(column) for column in rows.columns], names=rows.column_names), sink, OPTIONS)
    return memoryview(sink.getvalue())


def written_ahead(parts: Iterator[pa.Table]) -> Iterator[memoryview]:
    r"""Yield each part as CSV; the next one is written meanwhile, in a thread, while the server takes this one.

    >>> [bytes(part) for part in written_ahead(iter([pa.table({"a": [1]}), pa.table({"a": [2]})]))]
    [b'1\n', b'2\n']
    """
    written = map(csv_of, parts)
    with ThreadPoolExecutor(1, "strandline-copy") as writer:
        following = writer.submit(next, written, None)
        while (part := following.result()) is not None:
            following = writer.submit(next, written, None)
            yield part


def _texts(column: pa.ChunkedArray) -> pa.ChunkedArray | pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.array((None if value is None else f"\\x{value.hex()}" for value in column.to_pylist()), pa.string())
    if pa.types.is_timestamp(kind):
        naive = column.cast(pa.int64()).cast(pa.timestamp(kind.unit))
        return naive if _common(naive, pa.int64(), DAY) else _with_eras(naive)
    if pa.types.is_date(kind):
        return column if _common(column, pa.int32(), 1) else _with_eras(column)
    return plain(column, short).cast(pa.string()) if pa.types.is_nested(kind) else column


def short(value: float) -> float | str:
    """Return what stands for a double in ``jsonb``, which spells out all digits of a number, and knows no -0.

    >>> [short(each) for each in (1.5, 1e300, -2.5e-9, 0.0, -0.0, float("nan"))]
    [1.5, '1e+300', '-2.5e-09', 0.0, '-0.0', 'NaN']
    """
    if not math.isfinite(value):
        return not_finite(value)
    small = abs(value) < _LEAST and str(value) != "0.0"
    return repr(value) if small or abs(value) >= _GREATEST else value


def _common(column: pa.ChunkedArray, whole: pa.DataType, unit: int) -> bool:
    least, greatest = pc.min_max(column.cast(whole)).values()
    return not least.is_valid or (least.as_py() >= _FIRST * unit and greatest.as_py() < _END * unit)


def _with_eras(column: pa.ChunkedArray) -> pa.Array:
    return pa.array((None if text is None else with_era(text) for text in plain(column).to_pylist()), pa.string())


def with_era(text: str) -> str:
    """Return a date or time of ISO 8601 as PostgreSQL says it, which has no year 0.

    >>> with_era("-0043-03-15"), with_era("0000-01-01T00:00:00"), with_era("12000-01-01")
    ('0044-03-15 BC', '0001-01-01T00:00:00 BC', '12000-01-01')
    """
    year, rest = text[: text.index("-", 1)], text[text.index("-", 1) :]
    return text if int(year) > 0 else f"{1 - int(year):04d}{rest} BC"


def without_era(text: str) -> str:
    """Return a date or time of PostgreSQL's (in UTC) as ISO 8601 says it.

    >>> without_era("0044-03-15 BC"), without_era("12000-01-01 00:00:00.5+00")
    ('-0043-03-15', '12000-01-01 00:00:00.5')
    """
    said = text.removesuffix(" BC")
    moment = said.removesuffix("+00")
    if said == text:
        return moment
    year, _, rest = moment.partition("-")
    return f"{'-' if int(year) > 1 else ''}{int(year) - 1:04d}-{rest}"


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
