"""Remote: the environment that another process has open, with the face of `Environment`, over Arrow Flight SQL.

It needs no Spark.  So a query answers with an `Answer`, which has the rows as Arrow, and the few methods of a DataFrame
that show or convert them.
"""

from __future__ import annotations

import getpass
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import msgspec
import pyarrow as pa
from pyarrow import flight

from strandline.algebra.notation import readable
from strandline.algebra.schema import Column, Schema
from strandline.client import Cancel, Progress, Updates, heeding_interrupts, present
from strandline.compute.rules.explanation import Explanation
from strandline.controller.language import arguments
from strandline.controller.location.config import path_of
from strandline.errors import ConfigError, InvalidUsage, StrandlineError
from strandline.instance.carriers.access import Address
from strandline.options import resolve_reference
from strandline.serving import calls
from strandline.serving.failures import OURS, as_ours
from strandline.store.clock import SystemIds
from strandline.store.secret import Secret

if TYPE_CHECKING:
    from strandline.controller.asking.verification import Verification

T = TypeVar("T")

_SOCKET: Final = "grpc+unix"
_CLEAR: Final = "grpc+tcp"
_SCHEMES: Final = (_CLEAR, "grpc+tls", _SOCKET)
_ROLL_BACK: Final = 2
_WIDTH_MAX: Final = 100
"""So wide a column is printed at most; a longer text is whole, and moves what follows it in its line."""
_AGAIN_S: Final = 0.05
"""After so long a call is cancelled again that was not known to the server."""
_ENDING_S: Final = 10.0
"""How long the server may take to answer that a call is cancelled."""


def connect(where: str, *, token: str | None = None, authority: str | None = None) -> RemoteEnvironment:
    """Connect to the process that has an environment open, and return that environment.

    Args:
        where: the location (``file:///path`` or a path), as that process has it; or an address at which it serves
            (``grpc+tcp://127.0.0.1:8815``, ``grpc+tls://host:8815``, ``grpc+unix:///path``).
        token: what the address wants: the token, or a reference to it (``env:NAME``, ``file:PATH``).
        authority: the file (PEM) with the certificates to trust; None: those of this machine.

    Raises:
        ConfigError: no process serves there, it does not let this one in, or others could read what crosses.
        Unavailable: it does not answer.
    """
    place = arguments.text(where, "where to connect")
    scheme, _, at = place.partition("://") if "://" in place else ("file", "", place)
    if scheme == "file":
        found = _published(place)
        if found is None or not found.flight_sql:
            raise ConfigError(f"no process serves the location {place!r}: start `strandline run`, or name its address")
        place = found.flight_sql[0]
    elif scheme not in _SCHEMES:
        raise ConfigError(
            f"{scheme}:// is nowhere to connect to: name a location in files (a path, or file:///path), or an address "
            f"at which a process serves ({', '.join(f'{each}://…' for each in _SCHEMES)})"
        )
    elif scheme != _SOCKET:
        address = Address.parse(at.rstrip("/"))
        if scheme == _CLEAR and not address.loopback:
            raise ConfigError(f"{at} is not loopback, so the way there needs TLS: connect to 'grpc+tls://{at}'")
    secret = None if token is None else Secret(resolve_reference(token, base=Path()))
    return RemoteEnvironment(place, secret, None if authority is None else _authority(Path(authority)))


def _authority(file: Path) -> bytes:
    """Return the certificates in a file, once they can be read: gRPC would say that no address answers."""
    try:
        found = file.read_bytes()
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=found.decode())
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        why = (
            error.strerror
            if isinstance(error, FileNotFoundError | PermissionError)
            else "it holds no certificate (PEM)"
        )
        raise ConfigError(f"`authority`: {file} cannot be used: {why}") from error
    return found


def writer(location: str) -> int | None:
    """Return the process that said that it serves a location in files; None: none does.

    It may have been killed since.
    """
    found = _published(location)
    return None if found is None or not found.flight_sql else found.pid


def _published(place: str) -> calls.Addresses | None:
    return calls.published(path_of(place) if place.startswith("file:") else Path(place))


@dataclass(frozen=True)
class Answer:
    """The rows that a query is answered with.  Whatever takes Arrow takes it as it is: ``polars.DataFrame(answer)``."""

    table: pa.Table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Hand them to a library in this process without a copy: see Arrow's PyCapsule interface."""
        return self.table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        """Return how many they are."""
        return int(self.table.num_rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield what `collect` returns."""
        return iter(self.collect())

    def toArrow(self) -> pa.Table:  # noqa: N802  # as Spark calls it
        """Return them as an Arrow table."""
        return self.table

    def toPandas(self) -> Any:  # noqa: N802  # as Spark calls it
        """Return them as a pandas DataFrame."""
        return self.table.to_pandas()

    def collect(self) -> list[dict[str, Any]]:
        """Return them as a list of dictionaries; dates and times of years that Python lacks are texts.

        Raises `InvalidUsage` if two columns have one name: take the table then, or give them names of their own.
        """
        names = self.table.column_names
        if len(set(names)) < len(names):
            raise InvalidUsage(f"two columns have one name in {', '.join(names)}: use toArrow(), or name them with AS")
        rows: list[dict[str, Any]] = readable(self.table).to_pylist()
        return rows

    def show(self) -> None:
        """Print them."""
        print(self)  # noqa: T201  # what it is for

    def __str__(self) -> str:
        columns = [
            (name, *("NULL" if value is None else str(value) for value in column.to_pylist()))
            for name, column in zip(self.table.column_names, readable(self.table).columns, strict=True)
        ]
        widths = [min(_WIDTH_MAX, max(map(len, column))) for column in columns]
        padded = [[cell.ljust(width) for cell in column] for width, column in zip(widths, columns, strict=True)]
        return "\n".join("  ".join(line).rstrip() for line in zip(*padded, strict=True))


@dataclass(frozen=True)
class RemoteCollection:
    """A collection at the moment it was asked for."""

    name: str
    schema: Schema
    since: int | None
    upper: int | None


class RemoteEnvironment:
    """See the module.  Made by `connect`; close it, or use it as a context.  Calls may come from any thread."""

    def __init__(self, place: str, token: Secret | None = None, authority: bytes | None = None) -> None:
        """``place``: where the server is (``grpc+unix:///…``, …); ``authority``: the certificates to trust, in PEM."""
        self.place = place
        headers = [(OURS.encode(), b"1"), (calls.WHO.encode(), _who().encode())]
        if token is not None:
            headers.append((b"authorization", f"{calls.BEARER}{token.reveal()}".encode()))
        self._headers = headers
        self._how = flight.FlightCallOptions(headers=headers)
        self._client = flight.FlightClient(place, tls_root_certs=authority)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<strandline environment at {self.place}>"

    def close(self) -> None:
        """End the connection.  What was acknowledged is durable."""
        self._client.close()

    # ---- statements --------------------------------------------------------------------------------------------------

    def execute(self, sql: str) -> int | None:
        """Run a statement; INSERT, UPDATE and DELETE return their commit timestamp; see `Environment.execute`."""
        found: int | None = self.call("execute", sql=arguments.text(sql, "the statement"))
        return found

    def query(self, sql: str, as_of: int | None = None, *, timeout: float | None = None) -> Answer:
        """Return the answer to ``sql``; see `Environment.query`, and `Environment.answer` for ``timeout``."""
        return Answer(self.answer(sql, as_of, timeout=timeout)[0])

    def answer(
        self, sql: str, as_of: int | None = None, *, cancel: Cancel | None = None, timeout: float | None = None
    ) -> tuple[pa.Table, int | None]:
        """Return the answer to ``sql``, and the time at which it is true; see `Environment.answer`."""
        arguments.question(sql)
        time, limit = arguments.maybe_time(as_of, "as_of"), arguments.seconds(timeout, "timeout")

        def rows(handle: str) -> pa.Table:
            ticket = flight.Ticket(calls.QUERY + msgspec.json.encode(calls.Query(sql, time, handle, limit)))
            with self._failures():
                return self._client.do_get(ticket, self._how).read_all()

        table = self._ended(rows, cancel)
        at = (table.schema.metadata or {}).get(calls.TRUE_AT)
        return table.replace_schema_metadata(None), None if at is None else int(at)

    def queries(self) -> list[dict[str, Any]]:
        """See `Environment.queries`."""
        return list(self.call("queries"))

    def cancel_query(self, number: int) -> bool:
        """See `Environment.cancel_query`."""
        return bool(self.call("cancel_query", number=number))

    def insert(self, table: str, rows: Any, token: str | None = None) -> int:
        """Insert ``rows`` and return the commit timestamp; see `Environment.insert`."""
        return self.put(calls.Rows(table, token=arguments.token(token)), rows) or 0

    def delete(self, table: str, rows: Any, token: str | None = None) -> int:
        """Delete ``rows`` and return the commit timestamp; see `Environment.delete`."""
        return self.put(calls.Rows(table, deletes=True, token=arguments.token(token)), rows) or 0

    @contextmanager
    def transaction(self) -> Iterator[RemoteTransaction]:
        """Gather inserts and deletes, and commit them at one time when the block ends without an error."""
        transaction = self.begin()
        try:
            yield transaction
        except BaseException:
            with suppress(StrandlineError):  # then it ends by itself
                transaction.roll_back()
            raise
        transaction.commit()

    def begin(self) -> RemoteTransaction:
        """Return a transaction for a caller that cannot use `transaction`."""
        from strandline.serving.messages import made, packed, unpacked  # Protobuf, for transactions alone

        found = self._acted("BeginTransaction", packed(made("ActionBeginTransactionRequest")))
        return RemoteTransaction(self, unpacked(found[0]).transaction_id.decode())

    # ---- going on, and asking ----------------------------------------------------------------------------------------

    def tick(self) -> int:
        """Have a tick made now, and return the time that is complete after it."""
        return int(self.call("tick"))

    def sync(self, ts: int, timeout: float | None = None) -> None:
        """Return when everything is complete at ``ts``; raises `AsOfError` after ``timeout`` seconds."""
        arguments.time(ts, "ts")
        arguments.seconds(timeout, "timeout")
        self.call("sync", ts=ts, timeout=timeout)

    def sync_now(self, name: str, timeout: float = 60.0) -> int:
        """See `Environment.sync_now`."""
        return int(self.call("sync_now", name=name, timeout=timeout))

    def status(self) -> dict[str, Any]:
        """See `Environment.status`."""
        return dict(self.call("status"))

    def progress(self) -> dict[str, Any]:
        """See `Environment.progress`."""
        return dict(self.call("progress"))

    def explain(self, name: str) -> Explanation:
        """See `Environment.explain`."""
        return calls.explanation(self.call("explain", name=name))

    def verify(self, name: str, as_of: int | None = None, repair: bool = False) -> Verification:
        """See `Environment.verify`."""
        return calls.verification(self.call("verify", name=name, as_of=as_of, repair=repair))

    def collection(self, name: str) -> RemoteCollection:
        """Return the collection ``name`` as it is now.  Raises `DefinitionError` with candidates if there is none."""
        found = self.call("collection", name=name)
        return RemoteCollection(
            found["name"], Schema(tuple(Column(*each) for each in found["columns"])), found["since"], found["upper"]
        )

    def peek(
        self,
        name: str,
        key: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        as_of: int | None = None,
        limit: int | None = None,
        timeout: float | None = 10.0,
    ) -> pa.Table:
        """See `Environment.peek`."""
        wanted = calls.written(arguments.keys(key))
        return calls.rows(self.call("peek", name=name, key=wanted, as_of=as_of, limit=limit, timeout=timeout))

    def backfill(self, name: str, collection: str | None = None, *, apply: bool = False) -> dict[str, Any]:
        """See `Environment.backfill`."""
        return dict(self.call("backfill", name=name, collection=collection, apply=apply))

    def anew(self, name: str, *, apply: bool = False) -> dict[str, Any]:
        """See `Environment.anew`."""
        return dict(self.call("anew", name=name, apply=apply))

    def skip(
        self, source: str, as_of: int | None = None, *, file: str | Sequence[str] = (), apply: bool = False
    ) -> dict[str, Any]:
        """See `Environment.skip`."""
        files = arguments.one_or_more(file, "file")
        return dict(self.call("skip", source=source, as_of=as_of, file=files, apply=apply))

    def withdraw(self, source: str, files: Sequence[str], *, apply: bool = False) -> dict[str, Any]:
        """See `Environment.withdraw`."""
        return dict(self.call("withdraw", source=source, files=arguments.names(files, "files"), apply=apply))

    def deploy(self, directory: str | Path, *, apply: bool = False, drop: Sequence[str] = ()) -> dict[str, Any]:
        """See `Environment.deploy`; ``directory`` is one of the machine that serves."""
        names, place = arguments.names(drop, "drop"), str(Path(directory).absolute())
        return dict(self.call("deploy", directory=place, apply=apply, drop=names))

    def retry(self, source: str) -> dict[str, Any]:
        """See `Environment.retry`."""
        return dict(self.call("retry", source=source))

    def acknowledge(self, name: str | None = None) -> dict[str, Any]:
        """See `Environment.acknowledge`."""
        return dict(self.call("acknowledge", name=name))

    def promote(self, *, force: bool = False, timeout: float = 60.0) -> int:
        """See `Environment.promote`."""
        return int(self.call("promote", force=force, timeout=timeout))

    def written_by(self, timeout: float | None = None) -> str | None:
        """See `Environment.written_by`; raises `Silent` after ``timeout`` seconds without an answer."""
        found: str | None = self._called("written_by", {}, timeout)
        return found

    def inspect(self, name: str) -> dict[str, Any]:
        """See `Environment.inspect`."""
        return dict(self.call("inspect", name=name))

    def subscribe(self, name_or_sql: str, as_of: int | None = None, until: int | None = None) -> RemoteEvents:
        """See `Environment.subscribe`; close the iterator to end it."""
        what = arguments.text(name_or_sql, "what to subscribe to")
        start, end = arguments.maybe_time(as_of, "as_of"), arguments.maybe_time(until, "until")
        ticket = flight.Ticket(calls.SUBSCRIBE + msgspec.json.encode(calls.Subscribe(what, start, end)))
        with self._failures():
            return RemoteEvents(self._client.do_get(ticket, self._how), self._failures)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def call(self, method: str, **given: Any) -> Any:
        """Make a call of `calls`, and return its answer.  Ctrl-C ends it there."""
        return self._ended(lambda handle: self._called(method, given, None, handle))

    def _called(self, method: str, given: Mapping[str, Any], within_s: float | None, handle: str = "") -> Any:
        said = {name: value for name, value in given.items() if value is not None}
        (answer,) = self._acted(calls.CALL, msgspec.json.encode(calls.Call(method, said, handle)), within_s)
        return msgspec.json.decode(answer)

    def _ended(self, make: Callable[[str], T], cancel: Cancel | None = None) -> T:
        """Make a call, which is given its handle; ``cancel`` (None: what `ended_by` says) and Ctrl-C end it there."""
        handle, over = SystemIds().fresh("call"), threading.Event()

        def end() -> None:
            while not self._called("cancel", {"handle": handle}, _ENDING_S) and not over.wait(_AGAIN_S):
                pass  # the call has not arrived there yet

        def made() -> T:
            try:
                return make(handle)
            finally:
                over.set()

        cancel = present() if cancel is None else cancel
        if cancel.called:
            raise cancel.error()
        cancel.by(end)
        return heeding_interrupts(made, end)

    def put(self, wanted: calls.Rows, rows: Any) -> int | None:
        """Insert or delete rows; return the time of their commit (None: they are part of a transaction)."""
        name = arguments.text(wanted.table, "the table's name")
        given = arguments.arrow(rows, name, self.collection(name).schema.names)
        descriptor = flight.FlightDescriptor.for_command(calls.ROWS + msgspec.json.encode(wanted))
        with self._failures():
            writer, reader = self._client.do_put(descriptor, given.schema, self._how)
            with writer:
                writer.write_table(given)
                writer.done_writing()
                said = reader.read()
        found: int | None = msgspec.json.decode(said.to_pybytes())
        return found

    def end(self, transaction: str) -> None:
        """Drop a transaction."""
        from strandline.serving.messages import made, packed

        request = made("ActionEndTransactionRequest", transaction_id=transaction.encode(), action=_ROLL_BACK)
        self._acted("EndTransaction", packed(request))

    def _acted(self, name: str, body: bytes, within_s: float | None = None) -> list[bytes]:
        how = self._how if within_s is None else flight.FlightCallOptions(timeout=within_s, headers=self._headers)
        with self._failures():
            return [found.body.to_pybytes() for found in self._client.do_action(flight.Action(name, body), how)]

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (flight.FlightError, pa.ArrowException, OSError) as error:
            raise as_ours(error, f"the process that writes ({self.place})") from error


def _who() -> str:
    """Return who this process is, for the people who look at the server's queries, in ASCII."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # the system knows no name of this user
        user = f"user {os.getuid()}"
    said = f"{user}@{socket.gethostname()}, process {os.getpid()}"
    return "".join(sign if sign.isascii() and sign.isprintable() else "?" for sign in said)


class RemoteTransaction:
    """Several tables, one timestamp, all or nothing; see `strandline.client.Transaction`."""

    def __init__(self, env: RemoteEnvironment, handle: str) -> None:
        self._env = env
        self._handle = handle
        self.timestamp: int | None = None
        """The commit's time, once the block has ended; None if it changed nothing."""

    def insert(self, table: str, rows: Any) -> None:
        """Insert ``rows`` into ``table`` when the transaction commits."""
        self._env.put(calls.Rows(table, transaction=self._handle), rows)

    def delete(self, table: str, rows: Any) -> None:
        """Delete ``rows`` from ``table`` when the transaction commits; each must be there, as often as it is given."""
        self._env.put(calls.Rows(table, deletes=True, transaction=self._handle), rows)

    def execute(self, sql: str) -> None:
        """Do an INSERT, UPDATE or DELETE when the transaction commits."""
        self._env.call("execute", sql=arguments.text(sql, "the statement"), transaction=self._handle)

    def commit(self) -> int | None:
        """Commit what was gathered, and return its time (None: it is nothing); durable when it returns."""
        self.timestamp = self._env.call("commit", transaction=self._handle)
        return self.timestamp

    def roll_back(self) -> None:
        """Drop what was gathered."""
        self._env.end(self._handle)


class RemoteEvents(Iterator[Updates | Progress]):
    """What comes of a subscription; close it to end it."""

    def __init__(self, reader: Any, failures: Callable[[], AbstractContextManager[None]]) -> None:
        self._reader = reader
        self._failures = failures
        self._closed = False

    def __next__(self) -> Updates | Progress:
        if self._closed:
            raise StopIteration
        while True:
            with self._failures():
                chunk = self._reader.read_chunk()
            if chunk.app_metadata is not None:
                return Progress(msgspec.json.decode(chunk.app_metadata.to_pybytes()))
            if chunk.data is not None and chunk.data.num_rows:
                return Updates(chunk.data)

    def close(self) -> None:
        """End the subscription."""
        if not self._closed:
            self._closed = True
            with suppress(Exception):  # it may be over already
                self._reader.cancel()
