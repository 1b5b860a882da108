"""A real PostgreSQL server, by psycopg: its connections, snapshots and changes, all within bounded time and memory.

Every call runs in a thread, on one connection that one call has at a time; a snapshot has its own.  An exchange ends
within a bounded time, or the connection is dropped and the call is `Unavailable`.  Rows that a server sends one by one
come in portions bounded by bytes, because rows may be of any size.

Copying and advancing the slot hold an advisory lock, so two readers of one source wait for each other instead of
failing.  Making a slot waits for all running transactions.  That may take hours, so it runs in a thread that nothing
else needs, while calls that ask for the slot raise `Unavailable`.

Source: libpq's connection parameters; PostgreSQL's manual, "PostgreSQL Error Codes", "Streaming Replication Protocol"
(USE_SNAPSHOT), "Logical Decoding Concepts" (exported snapshots).
"""

from __future__ import annotations

import asyncio
import os
import select
import threading
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from socket import SHUT_RDWR, socket
from typing import Any, Final, TypeAlias, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.abc import PQGen

from strandline.connections.postgres import PostgresConnection
from strandline.errors import Unavailable, first_line
from strandline.sources.readers.postgres import statements
from strandline.sources.readers.postgres.pgoutput import lsn_number, lsn_text
from strandline.sources.readers.postgres.server import Name, Standing, Take, UpstreamTable

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


ROWS_MAX: Final = 5_000
BYTES_MAX: Final = 4 << 20


def portions(rows: Iterable[bytes], *, rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX) -> Iterator[list[bytes]]:
    """Yield all rows in their order, as many at once as both bounds allow; a row that is larger comes alone.

    No row is asked for before those that fill a portion are taken, but the one that no longer fits.

    >>> list(portions([b"a", b"b", b"cccccc", b"d"], bytes_max=3))
    [[b'a', b'b'], [b'cccccc'], [b'd']]
    """
    held, size = list[bytes](), 0
    for row in rows:
        if held and (len(held) == rows_max or size + len(row) > bytes_max):
            yield held
            held, size = [], 0
        held.append(row)
        size += len(row)
    if held:
        yield held


class PsycopgSnapshot:
    """See `Snapshot`: a transaction on a connection of its own.

    The transaction's first statement fixes what it sees: the snapshot of a temporary slot, made by
    CREATE_REPLICATION_SLOT … USE_SNAPSHOT in this transaction.  Its position is exact by the log: a transaction is seen
    if and only if its commit record is before it.  No snapshot of plain SQL has that property: a transaction's commit
    is in the log before others see it, and for a moment (with synchronous standbys for long) it is durable and not
    seen.  For the moment between a commit in the log and in the list of transactions, the snapshot waits (`UNSETTLED`);
    otherwise it would miss a row for good.  The slot is dropped at once: the transaction keeps what it sees.
    """

    def __init__(self, place: str, publication: str, connection: BoundedConnection, position: int) -> None:
        self._place = place
        self._publication = publication
        self._connection = connection
        self._guard = threading.Lock()
        self.position = position

    async def tables(self, only: Collection[Name]) -> tuple[UpstreamTable, ...]:
        """See `Snapshot.tables`."""
        return await self._call(lambda connection: published(connection, self._publication, only))

    async def copy(self, table: UpstreamTable, columns: Sequence[str], take: Take) -> None:
        """See `Snapshot.copy`."""

        def read(connection: BoundedConnection) -> None:
            query = statements.copy(table, columns, connection.encoding_of_values)
            with connection.cursor() as cursor, cursor.copy(query) as copying:
                for rows in portions(map(bytes, copying)):
                    take(rows)

        await self._call(read)

    async def close(self) -> None:
        """See `Snapshot.close`."""
        await asyncio.to_thread(self._connection.close)

    async def _call(self, call: Callable[[BoundedConnection], T]) -> T:
        def run() -> T:
            with self._guard, failing(self._place, "its snapshot", self._connection.close):
                return call(self._connection)

        return await asyncio.to_thread(run)


Connection: TypeAlias = psycopg.Connection[tuple[Any, ...]]

READ_SECONDS_MAX: Final = 600.0
"""How long the server may decode its log before the first change comes."""
MAKE_SECONDS_MAX: Final = 24 * 3600.0
"""How long a slot may wait for the transactions that run, and a snapshot for those that it counts as committed."""
PATIENCE_SECONDS: Final = 5.0
"""How long a call waits for what may take long, before it says so."""
LOCK_SECONDS_MAX: Final = 10.0
assert LOCK_SECONDS_MAX < SECONDS_MAX < READ_SECONDS_MAX < MAKE_SECONDS_MAX


class PsycopgServer:
    """See `Server`.

    Changes are read from a temporary slot of the connection's own (`_own_slot`), which begins as a copy of the source's
    slot and is advanced before each peek.  So each change is read once, though the source's slot stays behind until all
    tables have it.
    """

    def __init__(self, options: PostgresConnection, publication: str, slot: str) -> None:
        self._options = options
        self._place = options.place
        self._names = {"slot": slot, "publication": publication}
        self._quoted = {**self._names, "publication": '"' + publication.replace('"', '""') + '"'}
        self._lock_number = _number(f"strandline slot {slot}")
        self._guard = threading.Lock()
        self._connection: BoundedConnection | None = None
        self._making: dict[str, asyncio.Future[Any]] = {}
        self._threads = ThreadPoolExecutor(2, "strandline-postgres")  # one makes the slot, one the snapshot
        self._others: set[BoundedConnection] = set()
        self._ends = False

    async def standing(self, tables: Collection[Name]) -> Standing:
        """See `Server.standing`."""

        def look(connection: Connection) -> Standing:
            version = connection.info.server_version
            statements.check_version(version, self._place)
            query = statements.standing_query(**self._names, only=tables, version=version)
            row = connection.execute(query).fetchone()
            assert row is not None
            return statements.standing(row, self._place)

        return await self._call("its state", look)

    async def create_slot(self) -> None:
        """See `Server.create_slot`."""
        await self._made("slot", self._create_slot)

    async def drop_slot(self) -> None:
        """See `Server.drop_slot`."""
        await self._call("its slot", lambda connection: connection.execute(statements.DROP_SLOT, self._names))

    async def tables(self, only: Collection[Name] | None) -> tuple[UpstreamTable, ...]:
        """See `Server.tables`."""
        publication = self._names["publication"]
        return await self._call("the publication", lambda connection: published(connection, publication, only))

    async def peek(self, start: int, upto: int, changes: int | None, take: Take) -> int:
        """See `Server.peek`."""

        def read(connection: BoundedConnection) -> int:
            count = 0
            with self._patient(connection), connection.cursor(statements.CHANGES) as cursor:
                own = self._own_slot(connection, start)
                connection.execute(statements.ENCODED, {"encoding": connection.encoding_of_values})
                cursor.execute(
                    statements.PEEK, {**self._quoted, "slot": own, "upto": lsn_text(upto), "changes": changes}
                )
                while fetched := _fetched(connection, take):
                    count += fetched
            return count

        return await self._call("its changes", read)

    async def advance(self, position: int) -> None:
        """See `Server.advance`."""

        def move(connection: BoundedConnection) -> None:
            with self._patient(connection):
                self._lock(connection)
                _advance(connection, self._names["slot"], position)

        await self._call("its slot", move)

    async def snapshot(self) -> PsycopgSnapshot:
        """See `Server.snapshot`."""
        opened: PsycopgSnapshot = await self._made("snapshot", self._open_snapshot)
        return opened

    async def close(self) -> None:
        """See `Server.close`."""
        self._ends = True
        for making in self._making.values():
            making.add_done_callback(_abandon)
        self._making.clear()
        self._threads.shutdown(wait=False)
        connections = [*self._others, *([self._connection] if self._connection else [])]
        await asyncio.to_thread(_end, connections)

    def _settle(self, seen: str) -> None:
        """Wait until what a snapshot counts as committed is noted as such."""
        with self._other() as connection:
            for _ in range(round(MAKE_SECONDS_MAX / WAIT_SECONDS)):
                if connection.execute(statements.UNSETTLED, {"snapshot": seen}).fetchone() == (0,):
                    return
                if self._ends:
                    raise self._closed()
                threading.Event().wait(WAIT_SECONDS)
        raise Unavailable(
            f"{self._place}: transactions that are in the log have not been shown for {MAKE_SECONDS_MAX:.0f} s: see "
            "that the synchronous standbys answer; the snapshot begins anew"
        )

    def _closed(self) -> Unavailable:
        return Unavailable(f"{self._place}: the reader was closed")

    async def _made(self, what: str, make: Callable[[], Any]) -> Any:
        """Return what ``make`` makes in its thread, perhaps begun by an earlier call.

        Only the call that begins it waits: each tick asks again for each table, and the others must not wait for them.
        """
        making = self._making.get(what)
        if making is None:
            if self._ends:
                raise self._closed()
            making = self._making[what] = asyncio.get_running_loop().run_in_executor(self._threads, make)
            await asyncio.wait([making], timeout=PATIENCE_SECONDS)
        if not making.done():
            raise Unavailable(f"{self._place}: the {what} waits for transactions that run there{await self._running()}")
        if self._making.get(what) is making:
            del self._making[what]
        return making.result()

    async def _running(self) -> str:
        """Return which of them is the oldest, in words, if that can be known."""
        with suppress(Unavailable):
            find = lambda connection: connection.execute(statements.RUNNING).fetchone()  # noqa: E731
            if found := await self._call("its sessions", find):
                return f"; the oldest is {found[0]}, for {str(found[1]).partition('.')[0]}"
        return ""

    def _create_slot(self) -> None:
        with failing(self._place, "its slot"), self._other() as connection:
            connection.seconds_max = MAKE_SECONDS_MAX
            connection.execute("SET statement_timeout = 0")
            connection.execute(statements.CREATE_SLOT, self._names)

    def _open_snapshot(self) -> PsycopgSnapshot:
        with failing(self._place, "a snapshot"):
            # No statement is prepared: a session for replication has the simple protocol only.
            connection = self._connect(replication="database", prepare_threshold=None)
            self._others.add(connection)
            try:
                connection.seconds_max = MAKE_SECONDS_MAX
                connection.execute("SET statement_timeout = 0")
                connection.execute(statements.BEGIN_SNAPSHOT)
                slot = sql.Identifier(f"strandline_snapshot_{connection.info.backend_pid}")
                make = sql.SQL("CREATE_REPLICATION_SLOT {} TEMPORARY LOGICAL pgoutput USE_SNAPSHOT").format(slot)
                made = connection.execute(make).fetchone()
                connection.execute(sql.SQL("DROP_REPLICATION_SLOT {}").format(slot))
                seen = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
                assert made is not None
                assert seen is not None
                self._settle(statements.in_order(seen[0]))
                connection.seconds_max = READ_SECONDS_MAX
            except BaseException:
                self._drop_other(connection)
                raise
        return PsycopgSnapshot(self._place, self._names["publication"], connection, lsn_number(made[1]))

    async def _call(self, what: str, call: Callable[[BoundedConnection], T]) -> T:
        def run() -> T:
            with self._guard, failing(self._place, what, self._drop):
                return call(self._connected())

        return await asyncio.to_thread(run)

    def _own_slot(self, connection: BoundedConnection, start: int) -> str:
        """Return the name of a slot of the connection's own that sends the transactions from ``start`` on.

        A slot cannot step back: one that is beyond ``start`` is made anew, as a copy of the source's.
        """
        own = f"strandline_read_{connection.info.backend_pid}"
        if connection.read_from is None or connection.read_from > start:
            self._lock(connection)
            connection.execute(statements.DROP_SLOT, {"slot": own})
            connection.execute(statements.COPY_SLOT, {**self._names, "own": own})
            found = connection.execute(statements.CONFIRMED, {"slot": own}).fetchone()
            assert found is not None
            if lsn_number(found[0]) > start:
                raise Unavailable(f"{self._place}: slot {self._names['slot']!r} was moved by another reader meanwhile")
        _advance(connection, own, start)
        connection.read_from = start
        return own

    def _lock(self, connection: Connection) -> None:
        """Have the source's slot to oneself until the transaction ends."""
        connection.execute(statements.LOCK, {"number": self._lock_number})

    @contextmanager
    def _patient(self, connection: BoundedConnection) -> Iterator[None]:
        """Begin a transaction that the server may need long for."""
        limits = {"lock_ms": str(round(LOCK_SECONDS_MAX * 1000)), "statement_ms": str(round(READ_SECONDS_MAX * 1000))}
        connection.seconds_max = READ_SECONDS_MAX
        with connection.transaction():
            connection.execute(statements.LIMITS, limits)
            yield
        connection.seconds_max = SECONDS_MAX

    def _connected(self) -> BoundedConnection:
        if self._connection is not None and self._connection.ended:
            self._drop()
        if self._connection is None:
            self._connection = self._connect()
        return self._connection

    def _connect(self, **more: Any) -> BoundedConnection:
        if self._ends:
            raise self._closed()
        return BoundedConnection.connect(**parameters(self._options), **more, autocommit=True)

    @contextmanager
    def _other(self) -> Iterator[BoundedConnection]:
        connection = self._connect()
        self._others.add(connection)
        try:
            yield connection
        finally:
            self._drop_other(connection)

    def _drop_other(self, connection: BoundedConnection) -> None:
        self._others.discard(connection)
        connection.close()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _fetched(connection: Connection, take: Take) -> int:
    """Give ``take`` the next messages of the cursor; return how many.

    They come one by one, and not as a result that this process would have to hold: a message may have any size.
    """
    count = 0
    with connection.cursor() as cursor:
        rows = cast("Generator[tuple[bytes]]", cursor.stream(statements.FETCH, binary=True))
        with closing(rows):  # given up, it ends the statement: no other can be sent before
            for messages in portions(data for (data,) in rows):
                take(messages)
                count += len(messages)
    return count


def _advance(connection: Connection, slot: str, position: int) -> None:
    connection.execute(statements.ADVANCE, {"slot": slot, "position": lsn_text(position)})


def _number(text: str) -> int:
    """Return the advisory lock of a text; a collision only makes two sources wait for each other."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big", signed=True)


def _end(connections: Sequence[BoundedConnection]) -> None:
    for connection in connections:
        with suppress(psycopg.Error):
            connection.cancel_safe(timeout=2.0)
        with suppress(psycopg.Error):
            connection.close()


def _abandon(made: asyncio.Future[Any]) -> None:
    """Take note of how something ended that no call waits for."""
    if not made.cancelled():
        made.exception()
