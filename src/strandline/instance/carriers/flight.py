"""A carrier between processes: a replica is an Arrow Flight service, and each connection one ``DoExchange`` of it.

Each connection begins with a `handshake`, in which both ends prove that they know the token; before it, nothing else
is read.  A listener takes several connections at once, since a new controller connects while the old one still hangs:
the replica decides between them.

Limit: pyarrow sets no bound on the message that a server receives, so a stranger can have one of any length be read.
Its connection is cut when such a message has arrived.

Contract suite: `strandline.testing.contracts.carrier_contract`.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from strandline.connections.addresses import cannot_listen
from strandline.errors import ConfigError, Disconnected, first_line
from strandline.instance.carriers.access import Address, ClientAccess, ServerAccess
from strandline.instance.carriers.buffer import Latch
from strandline.instance.carriers.exchange import MESSAGE_BYTES_MAX, Call, FlightCarrier, Pace, meaning, start_thread
from strandline.instance.carriers.handshake import Doorkeeper, Unproven, prove, sever
from strandline.instance.protocol.carrier import Dial, Serve

CONNECTIONS_MAX: Final = 4
_DESCRIPTOR: Final = flight.FlightDescriptor.for_command(b"strandline.instance")
_OVERHEAD_BYTES: Final = 64 << 10
"""What Flight adds to a message, with room to spare."""

# ---- a replica's side ------------------------------------------------------------------------------------------------


class FlightListener:
    """Listens at an address and has ``serve`` called with each connection, in the event loop that `start` ran in.

    When ``serve`` returns, the listener closes the connection.  Port 0 takes a free port; `address` says which.
    """

    def __init__(
        self,
        address: str,
        serve: Serve,
        access: ServerAccess,
        *,
        pace: Pace | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._address = Address.parse(address)
        self._serve, self._access, self._pace = serve, access, pace or Pace()
        self._connections_max = connections_max
        self._lock = threading.Lock()
        self._open: list[FlightCarrier] = []
        self._serving: list[Future[None]] = []
        self._doorkeeper = Doorkeeper(access.token, self._say)
        self._closing = False
        self._server: _Server | None = None
        access.check(self._address)

    @property
    def address(self) -> str:
        """Where it listens."""
        return str(Address(self._address.host, self._port()))

    def _port(self) -> int:
        return self._address.port if self._server is None else int(self._server.port)

    async def start(self) -> None:
        """Begin to listen.  Raises `ConfigError` if the address cannot be had."""
        certificates = self._access.certificates()
        self._loop = asyncio.get_running_loop()
        try:
            self._server = _Server(self, _uri(self._address, tls=bool(certificates)), certificates)
        except (pa.ArrowException, OSError) as error:
            why = cannot_listen(self._address.local, first_line(error))
            raise ConfigError(f"cannot listen on {self._address}: {why}") from error
        _listening.add(self)

    async def close(self) -> None:
        """Stop listening and close all connections; idempotent, and takes at most a few seconds."""
        with self._lock:
            self._closing = True
            carriers, serving = list(self._open), list(self._serving)
        stopped = self._shut_down()
        for carrier in carriers:
            await carrier.close()
        waiting = [asyncio.wrap_future(each) for each in serving]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=self._pace.close_s)
            for each in late:
                each.cancel()
        await stopped.waited(self._pace.close_s)

    def stop(self) -> None:
        """As `close`, for a process that ends: cut all connections, and do not wait for ``serve``."""
        with self._lock:
            self._closing = True
            carriers = list(self._open)
        stopped = self._shut_down()
        for carrier in carriers:
            carrier.abort("this process ends")
        stopped.wait(self._pace.close_s)

    def _shut_down(self) -> Latch:
        """Stop the server, which waits for its calls, in a thread of its own."""
        _listening.discard(self)
        server = self._server
        self._doorkeeper.close(self._port())

        def shut_down() -> None:
            if server is not None:
                with suppress(Exception):  # it is stopped already
                    server.shutdown()

        return start_thread(shut_down, "stopping")

    def exchange(self, peer: str, reader: Any, writer: Any) -> None:
        """Carry one connection, in the thread of its call, until it is over."""
        self._doorkeeper.admit(peer, self._port(), self._bound(), reader, writer)
        call = Call(reader, writer, ends_at_farewell=True, abort=lambda: sever(peer, self._port()), ended=_nothing)
        carrier = FlightCarrier(call, f"the controller at {peer}", self._pace)
        with self._lock:
            if self._closing or len(self._open) >= self._connections_max:
                raise flight.FlightUnavailableError(
                    "it is closing" if self._closing else f"it has {self._connections_max} connections already"
                )
            self._open.append(carrier)
            serving = self._begin(self._served(carrier))
            self._serving.append(serving)
        serving.add_done_callback(self._forget)
        try:
            carrier.run()
        finally:
            with self._lock:
                self._open.remove(carrier)

    def _bound(self) -> str:
        return "" if self._access.certificate is not None else Address(self._address.host, self._port()).bound

    def _say(self, message: str) -> None:
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._loop.call_exception_handler, {"message": message})

    async def _served(self, carrier: FlightCarrier) -> None:
        try:
            await self._serve(carrier)
        except Disconnected:
            pass  # the connection has ended, as connections do
        except Exception as error:  # noqa: BLE001 - it ends this connection, not the listener
            said = {"message": "a replica's connection failed", "exception": error}
            self._loop.call_exception_handler(said)
        finally:
            await carrier.close()

    def _begin(self, call: Coroutine[Any, Any, None]) -> Future[None]:
        try:
            return asyncio.run_coroutine_threadsafe(call, self._loop)
        except RuntimeError:
            call.close()
            raise flight.FlightUnavailableError("it is closing") from None

    def _forget(self, serving: Future[None]) -> None:
        with self._lock:
            self._serving.remove(serving)


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow ships no types
    """The Flight service; it has no other call than the exchange."""

    def __init__(self, listener: FlightListener, uri: str, certificates: list[tuple[bytes, bytes]]) -> None:
        self._listener = listener
        super().__init__(uri, tls_certificates=certificates or None, middleware={"gate": _Gate()})

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        """Carry a connection."""
        self._listener.exchange(context.peer(), reader, writer)


class _Gate(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow ships no types
    """Refuses any call but an exchange, and clients of earlier versions, which show the token."""

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> None:
        """Let a call begin, or refuse it; a refusal as unavailable is one whose text such a client passes on."""
        if "authorization" in headers:
            raise flight.FlightUnavailableError(
                "it was sent a token, as by an earlier version, and takes none: run the same version at both ends"
            )
        if info.method != flight.FlightMethod.DO_EXCHANGE:
            raise flight.FlightUnauthenticatedError("there is no such call, and none without a proof")


_listening: Final[set[FlightListener]] = set()


@atexit.register
def _stop_all() -> None:
    """Stop all listeners before the interpreter ends, which would otherwise wait for their calls."""
    for each in _listening.copy():
        each.stop()


# ---- a controller's side ---------------------------------------------------------------------------------------------


def dialer(access: ClientAccess, pace: Pace | None = None) -> Dial:
    """Return what connects to replicas."""
    patience = pace or Pace()

    async def dial(address: str) -> FlightCarrier:
        there = Address.parse(address)
        access.check(there)
        attempt = _Attempt(there, access, access.authorities(), patience)
        carrier = await attempt.connected()
        try:
            await carrier.greeted(patience.connect_s)
        except BaseException:
            carrier.abort("the attempt to connect was given up")
            raise
        return carrier

    return dial


class _Attempt:
    """One attempt to connect, in a thread: pyarrow blocks until the other end is reached, and cannot be interrupted.

    An attempt that its caller has given up closes what it reaches later.
    """

    def __init__(self, there: Address, access: ClientAccess, authorities: bytes | None, pace: Pace) -> None:
        self._there, self._access, self._authorities, self._pace = there, access, authorities, pace
        self._name = f"the replica at {there}"
        self._lock = threading.Lock()
        self._settled = Latch()
        self._given_up = False
        self._cancel: Callable[[], object] = _nothing
        self._carrier: FlightCarrier | None = None
        self._why = f"{self._name} does not answer"

    async def connected(self) -> FlightCarrier:
        """Return the connection; raise `Disconnected` if there is none within `Pace.connect_s`."""
        start_thread(self._connect, "connecting")
        try:
            await self._settled.waited(self._pace.connect_s)
        except BaseException:
            self._give_up()
            raise
        self._give_up(unless_connected=True)
        if self._carrier is None:
            raise Disconnected(self._why)
        return self._carrier

    def _give_up(self, *, unless_connected: bool = False) -> None:
        with self._lock:
            self._given_up = not (unless_connected and self._carrier is not None)
            if self._given_up and self._carrier is not None:
                self._carrier.abort("the attempt to connect was given up")
            elif self._given_up:
                with suppress(Exception):  # it may be over already
                    self._cancel()

    def _connect(self) -> None:
        try:
            carrier = self._call()
        except Exception as error:  # noqa: BLE001 - whatever pyarrow raises, there is no connection
            with self._lock:
                if not self._given_up:
                    self._why = first_line(error) if isinstance(error, Unproven) else meaning(error, self._name)
        else:
            with self._lock:
                self._carrier = carrier
                if self._given_up:
                    carrier.abort("the attempt to connect was given up")
            start_thread(carrier.run, "reading")
        self._settled.set()

    def _call(self) -> FlightCarrier:
        options = [
            ("grpc.use_local_subchannel_pool", 1),  # a TCP connection of its own, without the back-off of another one
            ("grpc.min_reconnect_backoff_ms", int(self._pace.connect_s * 1000)),  # how long gRPC tries to connect
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX + _OVERHEAD_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES_MAX + _OVERHEAD_BYTES),
            ("grpc.enable_http_proxy", 0),  # nothing is shown to what an environment variable names
        ]
        uri = _uri(self._there, tls=self._authorities is not None)
        client = flight.FlightClient(uri, tls_root_certs=self._authorities, generic_options=options)
        writer, reader = client.do_exchange(_DESCRIPTOR)

        def ended() -> None:
            with suppress(Exception):  # a cut exchange closes with an error, which pyarrow would print later
                writer.close()
            client.close()

        try:
            self._prove(reader, writer)
        except BaseException:
            with self._lock:
                self._cancel = _nothing
            with suppress(Exception):  # it may be over already
                reader.cancel()
            ended()
            raise
        call = Call(reader, writer, ends_at_farewell=False, abort=reader.cancel, ended=ended)
        return FlightCarrier(call, self._name, self._pace)

    def _prove(self, reader: Any, writer: Any) -> None:
        """Return once both ends have proven that they know the token; raise `Unproven` if the other one has not."""
        with self._lock:
            self._cancel = reader.cancel
            if self._given_up:
                raise Unproven("the attempt to connect was given up")
        try:
            prove(reader, writer, self._access.token, self._there.bound if self._authorities is None else "")
        except Unproven:
            ends = "and no token is set here" if self._access.token is None else "or listens at another address"
            raise Unproven(f"the process at {self._there} does not know the token of this location, {ends}") from None


def _uri(address: Address, *, tls: bool) -> str:
    return f"grpc+tls://{address}" if tls else f"grpc+tcp://{address.bound}"


def _nothing() -> None:
    """Do nothing: the call of a server ends when its handler returns."""
