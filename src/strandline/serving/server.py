"""The server: the desk over Arrow Flight SQL, so any client that speaks it can read and write.

It listens on a Unix socket in a directory that only its user may enter, or at an address: with a token, and with TLS
off loopback.  Each call runs in a thread of its own.  A call that a client leaves, or a stream that it stops reading,
costs other clients nothing but what `desk` bounds.

Long because it is one class, with every call of Flight SQL, and what guards it.

Limit: pyarrow sets no bound on the message that a server receives; `desk.ROWS_BYTES_MAX` counts what has arrived.

Source: https://arrow.apache.org/docs/format/FlightSql.html.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import unquote

import msgspec
import pyarrow as pa
from pyarrow import flight

from strandline.client import Leaving, Progress, Updates
from strandline.controller.language import statements
from strandline.errors import InvalidUsage
from strandline.instance.carriers.exchange import start_thread
from strandline.plane.asked import asked_by
from strandline.serving.calls import (
    BEARER,
    CALL,
    QUERY,
    ROWS,
    SUBSCRIBE,
    TRUE_AT,
    WHO,
    Query,
    Rows,
    Subscribe,
    called,
    read,
)
from strandline.serving.desk import Desk
from strandline.serving.failures import OURS, as_flight, unserved
from strandline.serving.messages import Message, kind_of, made, packed, unpacked
from strandline.serving.metadata import told
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
