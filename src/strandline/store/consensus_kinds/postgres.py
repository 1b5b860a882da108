"""Consensus in one PostgreSQL table: for several machines, with the database's own durability.

A version is a row, and ``(key, seqno)`` is the primary key.  To install a successor, a writer *locks* the expected row
and inserts the next one; the primary key refuses a second writer.  That is linearizable under READ COMMITTED:

- the lock applies to the current row, not to a row of an old snapshot.  So an expected row that was truncated meanwhile
  is a mismatch, and a locked row cannot be truncated: a successor is never inserted without its predecessor;
- versions are consecutive, so while the expected row is locked, its successor is absent exactly if it is the head.

A fresh key has no row to lock, and its first version may have any seqno; so a writer takes an advisory lock for the
key.  Locks are taken in one order (advisory ones by number, rows by key and seqno), so calls of many keys cannot
deadlock.

The meaning of a failure depends on when it comes.  Nothing commits before ``COMMIT`` is sent, so an earlier failure is
`Determinate`.  From then on a failure is `Determinate` only if the server reports a rollback (`COMMIT_REFUSED`); a lost
connection, a shutdown or a cancelled wait for a standby is `Indeterminate`, and the connection is dropped.

Every call runs in a thread: one connection per instance, one call at a time.  A statement ends within ``seconds_max``,
or the server cancels it; a server that does not answer within twice that time counts as lost.

Warning: a failover to an asynchronous standby loses acknowledged commits.  Promote only synchronous standbys.

Source: PostgreSQL's manual, "Read Committed Isolation Level".
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import sql
from psycopg.abc import PQGen
from psycopg.conninfo import conninfo_to_dict

from strandline.errors import (
    ConfigError,
    CorruptionError,
    Determinate,
    Indeterminate,
    NothingStored,
    StoreError,
    StrandlineError,
    Unavailable,
    first_line,
)
from strandline.store.consensus_kinds import SCHEMA_DEFAULT
from strandline.store.postgres_forms import FORMS
from strandline.store.protocols import (
    SEQNO_MAX,
    Committed,
    CompareAndSet,
    Mismatch,
    Versioned,
    check_limit,
    check_truncation,
)
from strandline.store.secret import Secret

T = TypeVar("T")
Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

TABLE_DEFAULT: Final = "versions"
SECONDS_MAX: Final = 10.0
"""How long a call may take; each touches a few rows, so only a lock or a lost server makes it slow."""
WAIT_SECONDS: Final = 0.1
"""How often a waiting call checks its time limit."""
NAME_BYTES_MAX: Final = 63
"""PostgreSQL truncates longer names, so that two names could become one."""
FORMAT: Final = 1
"""Kept in the table's comment."""
COMMIT_REFUSED: Final = ("40000", "40001", "40002", "40P01")
"""The errors of ``COMMIT`` that mean a rollback: after any other error the commit may have happened."""
_ROTTEN: Final = ("XX001", "XX002")
_NOT_OURS: Final = ("3F", "42")
"""Classes of SQLSTATE that a retry does not mend: no permission for the schema or the table."""

_MARK: Final = "Strandline's versions, format "
_CREATE: Final = """
    CREATE TABLE IF NOT EXISTS {table} (
        key bytea NOT NULL, seqno bigint NOT NULL, data bytea NOT NULL, PRIMARY KEY (key, seqno)
    )
"""
_LIMIT: Final = "SELECT set_config('statement_timeout', %s, false)"
_SET: Final = sql.SQL("SELECT {}").format(sql.SQL(", ").join([sql.SQL("set_config(%s, %s, false)")] * len(FORMS)))
"""Said once connected, since a proxy such as PgBouncer takes no settings with the connection."""
_DURABLE: Final = """
    SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'
"""
"""Makes acknowledged commits durable, whatever the server's default."""
_COMMENT: Final = """
    SELECT said.description FROM pg_catalog.pg_class AS found
    JOIN pg_catalog.pg_namespace AS place ON place.oid = found.relnamespace
    LEFT JOIN pg_catalog.pg_description AS said
        ON said.objoid = found.oid AND said.classoid = 'pg_catalog.pg_class'::regclass AND said.objsubid = 0
    WHERE place.nspname = %s AND found.relname = %s"""
"""The comment of a table, by the statement's snapshot alone: ``to_regclass`` finds a table that came after it."""
_HEAD: Final = "SELECT seqno, data FROM {table} WHERE key = %s ORDER BY seqno DESC LIMIT 1"
_SUCCEED: Final = """
    WITH wanted AS (
        SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bytea[]) AS wanted (key, expected, data)
    ), held AS (
        SELECT wanted.* FROM wanted JOIN {table} AS present
            ON present.key = wanted.key AND present.seqno = wanted.expected
        ORDER BY present.key, present.seqno FOR UPDATE OF present
    )
    INSERT INTO {table} SELECT key, expected + 1, data FROM held ON CONFLICT DO NOTHING RETURNING key, seqno
"""
_LOCK: Final = "SELECT pg_advisory_xact_lock(number) FROM unnest(%s::bigint[]) AS number"
_BEGET: Final = """
    INSERT INTO {table}
    SELECT * FROM unnest(%s::bytea[], %s::bigint[], %s::bytea[]) AS wanted (key, seqno, data)
        WHERE NOT EXISTS (SELECT FROM {table} AS present WHERE present.key = wanted.key)
    ON CONFLICT DO NOTHING RETURNING key, seqno
"""
_SCAN: Final = "SELECT seqno, data FROM {table} WHERE key = %s AND seqno >= %s ORDER BY seqno LIMIT %s"
_TRUNCATE: Final = """
    WITH old AS (SELECT seqno FROM {table} WHERE key = %s AND seqno < %s ORDER BY seqno FOR UPDATE)
    DELETE FROM {table} USING old WHERE {table}.key = %s AND {table}.seqno = old.seqno
"""
_KEYS: Final = "SELECT DISTINCT key FROM {table}"


class Bounded(psycopg.Connection[tuple[Any, ...]]):
    """A connection that waits for a silent server at most ``seconds_max``, so that a hung server blocks no call."""

    seconds_max = SECONDS_MAX

    def wait(self, gen: PQGen[T], interval: float = WAIT_SECONDS, timeout: float | None = None) -> T:
        """Run one exchange with the server; psycopg calls this for every statement."""
        return super().wait(gen, interval, self.seconds_max if timeout is None else timeout)


class PostgresConsensus:
    """A `Consensus` in the table ``schema.table`` of the database that ``conninfo`` (a URL, or libpq's form) names.

    Schema and table are created if missing, unless they must be ``existing``; opening existing ones changes nothing.
    Locations that share a database need a schema each.

    Raises:
        ConfigError: the connection string cannot be parsed, the user may not create the table, the table does not exist
            although it must, or it belongs to another application.
        Unavailable: no connection; the message says why (no server answers, or the server rejects the login).
    """

    def __init__(
        self,
        conninfo: str | Secret,
        *,
        schema: str = SCHEMA_DEFAULT,
        table: str = TABLE_DEFAULT,
        seconds_max: float = SECONDS_MAX,
        existing: bool = False,
    ) -> None:
        for name in (schema, table):
            if not 0 < len(name.encode()) <= NAME_BYTES_MAX or "\0" in name:
                raise ConfigError(f"{name!r} is not a name in PostgreSQL: 1 to {NAME_BYTES_MAX} bytes")
        self._conninfo = conninfo if isinstance(conninfo, Secret) else Secret(conninfo)
        self._seconds_max = seconds_max
        host = _parameters(self._conninfo, seconds_max).get("host", "the local socket")
        self._names, self._name = (schema, table), f"{schema}.{table}"
        self._place = f"PostgreSQL ({host}, {self._name})"
        self._schema, self._table = sql.Identifier(schema), sql.Identifier(schema, table)
        self._statement_ms = max(1, round(seconds_max * 1000))
        self._guard = threading.Lock()
        self._connection: Connection | None = None
        try:
            if not self._on_connection(self._is_ours):
                if existing:
                    raise NothingStored(f"{self._place} is not there: nothing was stored there yet")
                self._transact(self._initialize)
        except StoreError as error:
            self.close()
            raise _at_start(self._place, error) from error
        except StrandlineError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection.  A later call opens it again."""
        with self._guard:
            self._drop()

    async def head(self, key: str) -> Versioned | None:
        """Return the newest version, or None if the key was never set."""
        rows = await self._read(_HEAD, (key.encode(),))
        return Versioned(*rows[0]) if rows else None

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected."""
        (outcome,) = await self.compare_and_set_many([request])
        return outcome

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """Do each request as if alone, in one transaction.

        An error stands for all requests: either none of them happened (`Determinate`), or all that matched may have.
        """
        if not requests:
            return []
        first: dict[tuple[str, int | None], CompareAndSet] = {}
        for request in requests:  # of several requests for one version only the first can win
            first.setdefault((request.key, request.expected), request)
        installed = await self._write(lambda connection: self._install(connection, list(first.values())))
        return [
            Committed()
            if first[request.key, request.expected] is request
            and (request.key.encode(), request.new.seqno) in installed
            else Mismatch()
            for request in requests
        ]

    async def scan(self, key: str, start: int, limit: int) -> list[Versioned]:
        """Return at most ``limit`` versions with ``seqno >= start``, ascending."""
        check_limit(key, limit)
        if start > SEQNO_MAX:
            return []
        rows = await self._read(_SCAN, (key.encode(), max(start, 0), min(limit, SEQNO_MAX)))
        return [Versioned(*row) for row in rows]

    async def truncate(self, key: str, seqno: int) -> int:
        """Delete the versions before ``seqno``; return how many."""

        def delete(connection: Connection) -> int:
            head = connection.execute(self._composed(_HEAD), (key.encode(),)).fetchone()
            check_truncation(key, seqno, head[0] if head else None)
            values = (key.encode(), max(seqno, 0), key.encode())
            return connection.execute(self._composed(_TRUNCATE), values).rowcount

        return await self._write(delete)

    async def list_keys(self) -> list[str]:
        """Return all keys, sorted."""
        return sorted(key.decode() for (key,) in await self._read(_KEYS, ()))

    def _install(self, connection: Connection, requests: Sequence[CompareAndSet]) -> set[tuple[bytes, int]]:
        """Install the requests that match; return the keys and seqnos that were inserted."""
        fresh = [request for request in requests if request.expected is None]
        later = [request for request in requests if request.expected is not None]
        installed: set[tuple[bytes, int]] = set()
        if fresh:
            connection.execute(_LOCK, (sorted({_number(self._name, request.key) for request in fresh}),))
            values = ([r.key.encode() for r in fresh], [r.new.seqno for r in fresh], [r.new.data for r in fresh])
            installed |= set(connection.execute(self._composed(_BEGET), values).fetchall())
        if later:
            expected = [request.expected for request in later]
            succeeding = ([r.key.encode() for r in later], expected, [r.new.data for r in later])
            installed |= set(connection.execute(self._composed(_SUCCEED), succeeding).fetchall())
        return installed

    async def _read(self, query: str, values: tuple[object, ...]) -> list[tuple[Any, ...]]:
        def read() -> list[tuple[Any, ...]]:
            with self._guard:
                return self._on_connection(
                    lambda connection: connection.execute(self._composed(query), values).fetchall()
                )

        return await asyncio.to_thread(read)

    async def _write(self, change: Callable[[Connection], T]) -> T:
        def write() -> T:
            with self._guard:
                return self._transact(change)

        return await asyncio.to_thread(write)

    def _transact(self, change: Callable[[Connection], T]) -> T:
        def begin(connection: Connection) -> Connection:
            connection.execute("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
            return connection

        connection = self._on_connection(begin)
        try:
            result = change(connection)
        except psycopg.Error as error:
            self._drop()  # the server rolls back a transaction whose connection closes
            raise self._nothing_happened(error) from error
        except BaseException:
            self._drop()
            raise
        self._commit(connection)
        return result

    def _commit(self, connection: Connection) -> None:
        warnings: list[psycopg.errors.Diagnostic] = []
        connection.add_notice_handler(warnings.append)
        try:
            status = connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            self._drop()
            if error.sqlstate in COMMIT_REFUSED:
                raise Determinate(f"{self._place} rolled back: {_reason(error)}") from error
            raise Indeterminate(f"{self._place}: a commit may have failed: {_reason(error)}") from error
        connection.remove_notice_handler(warnings.append)
        if status != "COMMIT":
            raise Determinate(f"{self._place} answered a commit with {status}")
        if warnings:  # committed on this server, but not confirmed by the standby
            raise Indeterminate(f"{self._place}: a commit may be lost: {warnings[0].message_primary}")

    def _on_connection(self, call: Callable[[Connection], T]) -> T:
        """Run a call that has no effect; retry on a new connection if the kept one has died since its last use."""
        kept = self._connection is not None
        try:
            return call(self._connected())
        except psycopg.OperationalError as error:
            dead = self._connection is None or self._connection.closed
            self._drop()
            if not (kept and dead):
                raise self._nothing_happened(error) from error
        except psycopg.Error as error:
            self._drop()
            raise self._nothing_happened(error) from error
        try:
            return call(self._connected())
        except psycopg.Error as error:
            self._drop()
            raise self._nothing_happened(error) from error

    def _nothing_happened(self, error: psycopg.Error) -> StrandlineError:
        """Return the error to raise for a failure before any COMMIT was sent."""
        if error.sqlstate in _ROTTEN:
            return CorruptionError(f"{self._place} no longer holds what was stored: {_reason(error)}")
        return Determinate(f"{self._place} did not answer: {_reason(error)}")

    def _connected(self) -> Connection:
        if self._connection is None:
            connection = Bounded.connect(**_parameters(self._conninfo, self._seconds_max), autocommit=True)
            connection.seconds_max = 2 * self._statement_ms / 1000
            self._connection = connection
            connection.execute(_LIMIT, (str(self._statement_ms),))
            connection.execute(_SET, [part for setting in FORMS.items() for part in setting])
            connection.execute(_DURABLE)
        return self._connection

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _is_ours(self, connection: Connection) -> bool:
        """Return whether the table exists; raise `ConfigError` if another application made it."""
        found = connection.execute(_COMMENT, self._names).fetchone()
        if found is not None and found[0] != f"{_MARK}{FORMAT}":
            raise ConfigError(
                f"{self._place} is not a table of this version of Strandline: {found[0] or 'no comment'!r}"
            )
        return found is not None

    def _initialize(self, connection: Connection) -> None:
        connection.execute(_LOCK, ([_number(self._name, "")],))
        if not self._is_ours(connection):
            create = "CREATE SCHEMA IF NOT EXISTS {schema}"
            connection.execute(sql.SQL(create).format(schema=self._schema))
            connection.execute(self._composed(_CREATE))
            mark = sql.SQL("COMMENT ON TABLE {table} IS {mark}")
            connection.execute(mark.format(table=self._table, mark=sql.Literal(f"{_MARK}{FORMAT}")))

    def _composed(self, text: str) -> sql.Composed:
        return sql.SQL(text).format(table=self._table)


def _parameters(conninfo: Secret, seconds_max: float) -> dict[str, Any]:
    """Return libpq's parameters; the connection string overrides our defaults."""
    try:
        given = conninfo_to_dict(conninfo.reveal())
    except psycopg.ProgrammingError:
        # libpq's message may quote any part of the string, a password too
        raise ConfigError("the connection string of PostgreSQL cannot be read (it is not shown here)") from None
    seconds = max(2, round(seconds_max))  # libpq treats 1 as 2
    defaults = {
        "application_name": "strandline",
        "connect_timeout": seconds,
        "target_session_attrs": "read-write",  # of several hosts, the one that accepts writes
    }
    return {**defaults, **given}


def _number(table: str, key: str) -> int:
    """Return the advisory lock of a key; a collision only makes two keys wait for each other."""
    return int.from_bytes(blake2b(f"{table} {key}".encode(), digest_size=8).digest(), "big", signed=True)


def _at_start(place: str, error: StoreError) -> StrandlineError:
    cause = error.__cause__
    state = (cause.sqlstate or "") if isinstance(cause, psycopg.Error) else ""
    if state.startswith(_NOT_OURS):
        return ConfigError(f"{place} cannot be used: {cause}")
    return Unavailable(str(error))


def _reason(error: psycopg.Error) -> str:
    return f"{first_line(error)} ({error.sqlstate or type(error).__name__})"
