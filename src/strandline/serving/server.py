"""The server: the desk over Arrow Flight SQL, so any client that speaks it can read and write; and where it is found.

It listens on a Unix socket in a directory that only its user may enter, or at an address: with a token, and with TLS
off loopback.  Each call runs in a thread of its own.  A client that leaves a call, or stops reading a stream, costs
other clients nothing but what `desk` bounds.

The socket's directory is in the location, if that is in files; a file beside it says where all servers are.  A path
that is too long for a socket is replaced by one below the directory for temporary files.  The operator chooses a
further address (``serve_at``), and passes it on.

    {"flight_sql": ["grpc+unix:///data/strand/serving/flight.sock"], "pid": 4711, "http": "http://127.0.0.1:40123"}

Limit: pyarrow sets no bound on the message that a server receives; `desk.ROWS_BYTES_MAX` counts what has arrived.

Source: https://arrow.apache.org/docs/format/FlightSql.html.
"""

from __future__ import annotations

import hmac
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyarrow import flight

from strandline.client import Environment, Leaving, Progress, Updates
from strandline.controller.language import statements
from strandline.controller.location.config import Config
from strandline.errors import ConfigError, InvalidUsage
from strandline.instance.carriers.access import Address
from strandline.instance.carriers.exchange import start_thread
from strandline.options import resolve_reference
from strandline.plane import asked_by
from strandline.serving.calls import (
    ADDRESSES,
    BEARER,
    CALL,
    DIRECTORY,
    QUERY,
    ROWS,
    SUBSCRIBE,
    TRUE_AT,
    WHO,
    Addresses,
    Query,
    Rows,
    Subscribe,
    called,
    published,
    read,
)
from strandline.serving.desk import Desk, Resolve, as_it_is
from strandline.serving.failures import OURS, as_flight, unserved
from strandline.serving.messages import Message, kind_of, made, packed, unpacked
from strandline.serving.metadata import told
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.secret import Secret

BATCH_ROWS: Final = 10_000
"""So many rows of a result cross at a time."""
WHO_CHARS_MAX: Final = 100


class FlightSql:
    """A server at one place (``grpc+unix:///…``, ``grpc+tcp://…``, ``grpc+tls://…``).  It serves until `close`.

    ``token``: what a caller must show; None: every caller that can connect is let in.

    Raises `ConfigError` if it cannot listen there.
    """

    def __init__(
        self,
        desk: Desk,
        place: str,
        *,
        token: Secret | None = None,
        certificates: list[tuple[bytes, bytes]] | None = None,
    ) -> None:
        middleware = {"gate": _Gate(token), OURS: _Known(), WHO: _Named()}
        try:
            how = {"tls_certificates": certificates, "middleware": middleware, "auth_handler": _Greeting()}
            self._server = _Server(desk, place, **how)
        except (pa.ArrowException, OSError) as error:
            raise unserved(place, error) from error

    @property
    def port(self) -> int:
        """The port that it listens at."""
        return int(self._server.port)

    def close(self) -> None:
        """Take no further calls.  Those that are being answered are, and end with the environment at the latest."""

        def shut_down() -> None:
            with suppress(Exception):  # it is stopped already
                self._server.shutdown()
            self._server.leaving.close()

        start_thread(shut_down, "serving-ends")


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """The calls of Flight SQL, taken to the desk.

    pyarrow sends a client the stack of whatever a method raises.  So each of them raises in one place, on top.
    """

    def __init__(self, desk: Desk, place: str, **how: Any) -> None:
        self._desk = desk
        self.leaving = Leaving()
        super().__init__(place, **how)

    def get_flight_info(self, context: Any, descriptor: Any) -> Any:
        """Run a query or a statement, and say where its result is."""
        outcome = self._outcome(context, self._info, descriptor)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def get_schema(self, context: Any, descriptor: Any) -> Any:
        """Say which columns a query, or a question about what there is, is answered with."""
        outcome = self._outcome(context, self._schema, descriptor)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def do_get(self, context: Any, ticket: Any) -> Any:
        """Send a result, or what comes of a subscription."""
        outcome = self._outcome(context, self._stream, context, ticket.ticket)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Take rows, parameters, or a statement that changes something."""
        outcome = self._outcome(context, self._taken, descriptor.command or b"", reader)
        if isinstance(outcome, BaseException):
            raise outcome
        writer.write(outcome)

    def do_action(self, context: Any, action: Any) -> Iterator[Any]:
        """Prepare a statement, or end it; begin a transaction, or end it; make a call of ours."""
        outcome = self._outcome(context, self._acted, action.type, action.body.to_pybytes())
        if isinstance(outcome, BaseException):
            raise outcome
        return iter(outcome)

    def list_flights(self, context: Any, criteria: bytes) -> Any:
        """Refuse it, in one sentence: pyarrow would send a traceback."""
        raise as_flight(InvalidUsage("what there is here is asked by Flight SQL (CommandGetTables)"), ours=False)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Refuse it, in one sentence: pyarrow would send a traceback."""
        raise as_flight(InvalidUsage("this server exchanges nothing: ask and put by Flight SQL"), ours=False)

    def list_actions(self, context: Any) -> list[tuple[str, str]]:
        """Return the actions that there are."""
        return [(name, what) for name, what in _ACTIONS.items()]

    def _outcome(self, context: Any, call: Callable[..., Any], *given: Any) -> Any:
        """Return what a call returns, or the error that is to be raised in its place."""
        try:
            with self.leaving.watched(context.is_cancelled), asked_by(_who(context)):
                return call(*given)
        except Exception as error:  # noqa: BLE001 - it is raised in the client
            return as_flight(error, ours=context.get_middleware(OURS) is not None)

    def _info(self, descriptor: Any) -> Any:
        command = unpacked(descriptor.command or b"")
        about = told(command, self._desk.tables)
        if about is not None:
            return _place(descriptor, packed(command), about.schema, about.num_rows)
        match kind_of(command):
            case "CommandStatementQuery":
                handle, schema, rows = self._desk.asked(command.query, command.transaction_id)
            case "CommandPreparedStatementQuery":
                handle, schema, rows = self._desk.asked_prepared(command.prepared_statement_handle)
            case kind:
                raise InvalidUsage(f"Strandline has no answer to {kind}")
        return _place(descriptor, packed(made("TicketStatementQuery", statement_handle=handle)), schema, rows)

    def _schema(self, descriptor: Any) -> Any:
        command = unpacked(descriptor.command or b"")
        about = told(command, self._desk.tables)
        if about is not None:
            return flight.SchemaResult(about.schema)
        match kind_of(command):
            case "CommandStatementQuery":
                return flight.SchemaResult(self._desk.columns(command.query))
            case "CommandPreparedStatementQuery":
                return flight.SchemaResult(self._desk.columns_prepared(command.prepared_statement_handle))
            case kind:
                raise InvalidUsage(f"{kind} has no columns")

    def _stream(self, context: Any, ticket: bytes) -> Any:
        desk = self._desk
        if ticket.startswith(SUBSCRIBE):
            return _followed(context, desk, read(Subscribe, ticket.removeprefix(SUBSCRIBE)))
        if ticket.startswith(QUERY):
            asked = read(Query, ticket.removeprefix(QUERY))
            table, time = desk.answer(asked.sql, asked.as_of, asked.handle, asked.timeout)
            return _sent(table, {} if time is None else {TRUE_AT: str(time)})
        command = unpacked(ticket)
        about = told(command, desk.tables)
        if about is not None:
            return _sent(about)
        if kind_of(command) != "TicketStatementQuery":
            raise InvalidUsage(f"{kind_of(command)} is no ticket")
        return _sent(desk.fetched(command.statement_handle))

    def _taken(self, said: bytes, reader: Any) -> bytes:
        """Take what a client puts; return what it is answered."""
        desk = self._desk
        if said.startswith(ROWS):
            asked = read(Rows, said.removeprefix(ROWS))
            transaction = asked.transaction.encode()
            _, time = desk.changed(asked.table, _batches(reader), transaction, asked.token, deletes=asked.deletes)
            return msgspec.json.encode(time)
        command = unpacked(said)
        match kind_of(command):
            case "CommandStatementUpdate":
                rows = desk.counted([statements.parse(command.query)], command.transaction_id)
            case "CommandPreparedStatementUpdate":
                desk.bind(command.prepared_statement_handle, _batches(reader))
                rows = desk.changed_prepared(command.prepared_statement_handle)
            case "CommandPreparedStatementQuery":
                handle = command.prepared_statement_handle
                desk.bind(handle, _batches(reader))
                return bytes(made("DoPutPreparedStatementResult", prepared_statement_handle=handle).SerializeToString())
            case "CommandStatementIngest":
                _make_ready(command, reader, desk)
                rows, _ = desk.changed(command.table, _batches(reader), command.transaction_id)
            case kind:
                raise InvalidUsage(f"Strandline takes no {kind}")
        return bytes(made("DoPutUpdateResult", record_count=rows).SerializeToString())

    def _acted(self, name: str, body: bytes) -> list[Any]:
        desk = self._desk
        if name == CALL:
            return [flight.Result(called(desk, body))]
        if name not in _ACTIONS:
            raise InvalidUsage(f"there is no action {name!r}; there are {', '.join(sorted(_ACTIONS))}")
        asked = unpacked(body)
        match name:
            case "CreatePreparedStatement":
                handle, schema, wanted = desk.prepare(asked.query, asked.transaction_id)
                known = b"" if schema is None else schema.serialize().to_pybytes()
                shapes = {"dataset_schema": known, "parameter_schema": wanted.serialize().to_pybytes()}
                return _results(made("ActionCreatePreparedStatementResult", prepared_statement_handle=handle, **shapes))
            case "ClosePreparedStatement":
                desk.unprepare(asked.prepared_statement_handle)
            case "BeginTransaction":
                return _results(made("ActionBeginTransactionResult", transaction_id=desk.begin()))
            case "EndTransaction" if asked.action == _COMMIT:
                desk.commit(asked.transaction_id)
            case "EndTransaction":
                desk.roll_back(asked.transaction_id)
        return []


_COMMIT: Final = 1
_ACTIONS: Final = {
    "CreatePreparedStatement": "prepare a statement, to run it with parameters",
    "ClosePreparedStatement": "end a prepared statement",
    "BeginTransaction": "gather what is inserted and deleted",
    "EndTransaction": "commit it at one time, or drop it",
}


def _place(descriptor: Any, ticket: bytes, schema: pa.Schema, rows: int) -> Any:
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(flight.Ticket(ticket), [])], rows, -1)


def _sent(table: pa.Table, said: Mapping[bytes, str] | None = None) -> Any:
    """Return a stream of the rows, which refers to the table until it ends: see `Desk.results_bytes`.

    ``said``: the metadata of the schema, in place of the table's own.
    """
    schema = table.schema if said is None else table.schema.with_metadata(said)

    def batches() -> Iterator[pa.RecordBatch]:
        for batch in table.to_batches(max_chunksize=BATCH_ROWS):
            yield batch.replace_schema_metadata(schema.metadata)

    return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(schema, batches()))


def _followed(context: Any, desk: Desk, wanted: Subscribe) -> Any:
    """Return a stream of what comes of a subscription: batches of updates, and progress beside empty ones."""
    schema, events = desk.followed(wanted.what, wanted.as_of, wanted.until)
    empty = pa.RecordBatch.from_pylist([], schema=schema)

    def sent() -> Iterator[Any]:
        try:
            with desk.traffic.subscription():
                for event in events:
                    match event:
                        case Updates(rows):
                            yield rows.cast(schema)
                        case Progress(upper):
                            yield empty, msgspec.json.encode(upper)
        except Exception as error:  # noqa: BLE001 - it is raised in the client
            raise as_flight(error, ours=context.get_middleware(OURS) is not None) from None
        finally:
            events.close()

    return flight.GeneratorStream(schema, sent())


def _batches(reader: Any) -> Iterator[pa.RecordBatch]:
    for chunk in reader:
        if chunk.data is not None:
            yield chunk.data


def _make_ready(command: Message, reader: Any, desk: Desk) -> None:
    """Make the table that rows are to go into, if the client says so and it is not there."""
    options = command.table_definition_options
    there = command.table.lower() in {name.lower() for name in desk.tables()}
    if command.schema or command.catalog or command.temporary:
        raise InvalidUsage("a table of Strandline is in no schema or catalog, and is not temporary: leave that out")
    if there and options.if_exists in (_EXISTS_FAIL, _EXISTS_REPLACE):
        raise InvalidUsage(f"table {command.table!r} is there already: append to it, or drop it first")
    if not there and options.if_not_exist == _CREATE:
        desk.create(command.table, reader.schema)


_CREATE: Final = 1
_EXISTS_FAIL: Final = 1
_EXISTS_REPLACE: Final = 3


def _results(message: Message) -> list[Any]:
    return [flight.Result(packed(message))]


class _Greeting(flight.ServerAuthHandler):  # type: ignore[misc]  # pyarrow ships no types
    """Answers the handshake by which the JDBC driver begins; who may come in is for `_Gate` to say, at each call."""

    def authenticate(self, outgoing: Any, incoming: Any) -> None:
        """Say nothing."""

    def is_valid(self, token: bytes) -> bytes:
        """Ask for nothing."""
        return b""


class _Shown(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow ships no types
    """Gives a caller its token back, which the JDBC driver then shows at each call."""

    def __init__(self, authorization: str) -> None:
        self._authorization = authorization

    def sending_headers(self) -> dict[str, str]:
        """Return what is sent beside the answer to a handshake."""
        return {"authorization": self._authorization}


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """Refuses callers that do not show the token."""

    def __init__(self, token: Secret | None) -> None:
        self._token = token

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> _Shown | None:
        """Let a call begin, or refuse it."""
        if self._token is None:
            return None
        shown = [each for each in headers.get("authorization", []) if isinstance(each, str)]
        wanted = f"{BEARER}{self._token.reveal()}".encode()
        if not any(hmac.compare_digest(each.encode(), wanted) for each in shown):
            why = "the token that was shown is another one" if any(shown) else "no token was shown"
            raise flight.FlightUnauthenticatedError(f"{why}; this server wants its own (authorization: Bearer …)")
        return _Shown(wanted.decode()) if info.method == flight.FlightMethod.HANDSHAKE else None


class _Name(flight.ServerMiddleware):  # type: ignore[misc]  # pyarrow ships no types
    """What a caller says that it is."""

    def __init__(self, text: str) -> None:
        self.text = text


class _Named(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """Reads who a caller says that it is: a person and a process, or the library that it uses."""

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> _Name:
        """Return what the first header says that says anything."""
        said = [each for name in (WHO, "user-agent") for each in headers.get(name, []) if isinstance(each, str)]
        return _Name(next(filter(str.isprintable, said), "")[:WHO_CHARS_MAX])


def _who(context: Any) -> str:
    """Return who makes a call, for people: what it says that it is, and where it comes from, if that says anything."""
    said, peer = context.get_middleware(WHO).text or "a client", unquote(context.peer())
    return said if peer.startswith("unix:") else f"{said} at {peer.partition(':')[2] or peer}"


class _Known(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """Recognizes clients of ours."""

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> Any:
        """Return something for a client of ours, and nothing for others."""
        return flight.ServerMiddleware() if OURS in headers else None


_SOCKET: Final = "flight.sock"
_PATH_BYTES_MAX: Final = 100
"""A path of a socket has 107 bytes at most (Linux; 103 elsewhere)."""
_OWN: Final = 0o700


@dataclass(frozen=True, slots=True)
class Door:
    """An address to listen at, beside the socket.  ``certificate`` and ``key``: files (PEM), both or neither."""

    address: str
    token: Secret | None = None
    certificate: Path | None = None
    key: Path | None = None

    @property
    def place(self) -> str:
        """Where Flight SQL listens.  Raises as `checked`."""
        at = self.checked()
        return f"grpc+tls://{at}" if self.certificate is not None else f"grpc+tcp://{at.bound}"

    def checked(self, *, tokenless: bool = False) -> Address:
        """Return the address, if listening there lets no stranger in and shows none what crosses.

        ``tokenless``: on loopback it may do without a token.  Raises `ConfigError` if it may not listen there.
        """
        at = Address.parse(self.address)
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("TLS needs both files: set `serve_certificate` and `serve_key`, or neither")
        if self.token is None and not (tokenless and at.loopback):
            raise ConfigError(f"serving at {at} needs a token, since others can connect there: set `serve_token`")
        if not at.loopback and self.certificate is None:
            raise ConfigError(
                f"{at} is not loopback, so serving there needs TLS: set `serve_certificate` and `serve_key`, "
                "or serve at 127.0.0.1"
            )
        return at

    @classmethod
    def of(cls, config: Config) -> Door | None:
        """Return what the configuration names; None: nothing.  Raises `ConfigError` if its token is not there."""
        return None if config.serve_at is None else cls.at(config.serve_at, config)

    @classmethod
    def at(cls, address: str, config: Config) -> Door:
        """Return a door at another address, with the token and the files that the configuration names."""
        token = None if config.serve_token is None else Secret(resolve_reference(config.serve_token, base=Path()))
        files = [None if each is None else Path(each) for each in (config.serve_certificate, config.serve_key)]
        return cls(address, token, *files)

    def certificates(self) -> list[tuple[bytes, bytes]] | None:
        """Return the chain and key to show; None without TLS."""
        if self.certificate is None or self.key is None:
            return None
        try:
            return [(self.certificate.read_bytes(), self.key.read_bytes())]
        except OSError as error:
            raise ConfigError(
                f"`serve_certificate`, `serve_key`: {error.filename} cannot be read ({error.strerror})"
            ) from error


@dataclass(frozen=True, slots=True)
class Serving:
    """A desk that is open, and where."""

    desk: Desk
    flight_sql: tuple[str, ...]
    announce: Callable[[str], None]
    """Says that the console is served, too, and where."""


@contextmanager
def serve(
    env: Environment, door: Door | None, hurry: Callable[[], None], resolve: Resolve = as_it_is
) -> Iterator[Serving]:
    """Serve ``env`` as long as the context lasts.

    ``door``: a further address, beside the socket of a location in files; ``hurry``, ``resolve``: as for `Desk`.

    Raises `ConfigError` if one of the places cannot be had.
    """
    desk = Desk(env, SystemClock(), SystemIds(), hurry, resolve)
    root = env.directory
    with ExitStack() as opened:
        places = []
        if root is not None:
            places.append(_socket(desk, root, opened))
        if door is not None:
            server = FlightSql(desk, door.place, token=door.token, certificates=door.certificates())
            opened.callback(server.close)
            at = Address.parse(door.address)
            places.append(f"{door.place.partition('://')[0]}://{Address(at.host, server.port)}")

        def publish(http: str | None = None) -> None:
            addresses = Addresses(places, os.getpid(), http)
            desk.served = addresses.told
            if root is not None:
                _publish(root, addresses)

        if root is not None:
            opened.callback(_withdraw, root)
        publish()
        yield Serving(desk, tuple(places), publish)


def _socket(desk: Desk, root: Path, opened: ExitStack) -> str:
    """Listen at a socket in the location; below the directory for temporary files where it can have none."""
    there = _private(root / DIRECTORY) / _SOCKET
    if len(os.fsencode(there)) <= _PATH_BYTES_MAX:
        with suppress(ConfigError):  # a file system without sockets
            return _listening(desk, there, opened)
    digest = blake2b(os.fsencode(root.absolute()), digest_size=8).hexdigest()
    directory = _private(Path(tempfile.gettempdir(), f"strandline-serving-{os.getuid()}"))
    return _listening(desk, directory / f"{digest}.sock", opened)


def _listening(desk: Desk, path: Path, opened: ExitStack) -> str:
    path.unlink(missing_ok=True)  # of a process that was killed: the location is ours now
    place = f"grpc+unix://{path}"
    server = FlightSql(desk, place)
    opened.callback(path.unlink, missing_ok=True)
    opened.callback(server.close)
    return place


def _private(directory: Path) -> Path:
    """Return a directory, made if need be, that only its user may enter."""
    try:
        directory.mkdir(mode=_OWN, parents=True, exist_ok=True)
        if directory.stat().st_uid != os.getuid():
            raise ConfigError(f"{directory} is another user's, so nothing is served there: remove it")
        directory.chmod(_OWN)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be made, to serve there: {error.strerror}") from error
    return directory


def _publish(root: Path, addresses: Addresses) -> None:
    path = root / DIRECTORY / ADDRESSES
    fresh = path.with_suffix(".new")
    fresh.write_bytes(msgspec.json.encode(addresses))
    fresh.replace(path)


def _withdraw(root: Path) -> None:
    found = published(root)
    if found is not None and found.pid == os.getpid():  # else a successor's
        with suppress(OSError):
            (root / DIRECTORY / ADDRESSES).unlink()
