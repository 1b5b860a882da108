"""The carrier between processes: what it promises beyond the contract, and whom it refuses."""

from __future__ import annotations

import asyncio
import datetime as dt
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from ipaddress import ip_address
from itertools import chain, repeat
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from pyarrow import flight

from strandline.errors import ConfigError, Disconnected, ProtocolViolation
from strandline.instance.carriers.access import ClientAccess, ServerAccess
from strandline.instance.carriers.exchange import (
    MESSAGE_BYTES_MAX,
    PIECE_BYTES,
    VERSION,
    Call,
    FlightCarrier,
    Kind,
    Pace,
    start_thread,
)
from strandline.instance.carriers.flight import FlightListener, dialer
from strandline.instance.carriers.handshake import prove
from strandline.instance.protocol.carrier import FRAME_BYTES_MAX, Carrier, Dial
from strandline.store.clock import SystemClock
from strandline.store.secret import Secret
from strandline.testing.contracts.carrier_contract import SOON_S, CarrierContract, OpenPlace, Place

TEXT = "canary-4711"
TOKEN = Secret(TEXT)
PACE = Pace(heartbeat_s=0.1, silence_s=1, connect_s=SOON_S, close_s=1)
PEER = Path(__file__).with_name("flight_peer.py")


class FlightPlace:
    """A listener whose connections are handed to the test."""

    def __init__(self, access: ServerAccess, shown: ClientAccess, pace: Pace, connections_max: int) -> None:
        self.arrived: asyncio.Queue[Carrier] = asyncio.Queue()
        self.listener = FlightListener("127.0.0.1:0", self._serve, access, pace=pace, connections_max=connections_max)
        self.dial = dialer(shown, pace)

    async def _serve(self, carrier: Carrier) -> None:
        await self.arrived.put(carrier)
        assert isinstance(carrier, FlightCarrier)
        await carrier._over.waited(None)

    async def connect(self) -> tuple[Carrier, Carrier]:
        here = await self.dial(self.listener.address)
        return here, await asyncio.wait_for(self.arrived.get(), SOON_S)

    def cut(self, end: Carrier) -> None:
        assert isinstance(end, FlightCarrier)
        end.abort("a test cut it")


@asynccontextmanager
async def flight_place(
    access: ServerAccess | None = None,
    shown: ClientAccess | None = None,
    pace: Pace = PACE,
    connections_max: int = 4,
) -> AsyncIterator[FlightPlace]:
    """Listen while a test runs."""
    place = FlightPlace(access or ServerAccess(TOKEN), shown or ClientAccess(TOKEN), pace, connections_max)
    await place.listener.start()
    try:
        yield place
    finally:
        await place.listener.close()


@asynccontextmanager
async def contract_place() -> AsyncIterator[Place]:
    """Open a place that is as patient as a slow machine needs."""
    async with flight_place(pace=Pace(heartbeat_s=0.2, silence_s=60, connect_s=SOON_S, close_s=60)) as place:
        yield place


class TestFlightCarrier(CarrierContract):
    """Damage: what works in one process breaks in two."""

    @pytest.fixture
    def open_place(self) -> OpenPlace:
        return contract_place


async def ended(carrier: Carrier) -> str:
    """Wait until the connection has ended and return why."""
    with pytest.raises(Disconnected) as why:
        while await carrier.receive(SOON_S) is not None:
            pass
    return str(why.value)


async def passes(ends: tuple[Carrier, Carrier]) -> None:
    """Expect that the connection works."""
    await ends[0].send(b"works")
    assert await ends[1].receive(SOON_S) == b"works"


# ---- who is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shown", [None, Secret("canary-4712"), Secret("another")], ids=["none", "near", "other"])
def test_a_wrong_token_is_refused_and_shown_nowhere(shown: Secret | None, capfd: pytest.CaptureFixture[str]) -> None:
    """Damage: any local user commands the replica; or its log gives the token away."""

    async def body() -> None:
        async with flight_place(shown=ClientAccess(shown)) as place:
            with pytest.raises(Disconnected, match="does not know the token of this location") as refused:
                await place.connect()
            assert place.arrived.empty()
            assert refused.value.__cause__ is None
            assert "canary" not in str(refused.value)

    asyncio.run(body())
    assert "canary" not in "".join(capfd.readouterr())


def test_no_other_call_than_a_connection_is_answered() -> None:
    """Damage: a stranger asks the replica's service for what needs no proof."""

    async def body() -> None:
        async with flight_place() as place:
            client = flight.FlightClient(f"grpc://{place.listener.address}")
            for call in (client.list_flights, client.list_actions):
                with pytest.raises(flight.FlightUnauthenticatedError):
                    await asyncio.to_thread(lambda call=call: list(call()))
            await passes(await place.connect())

    asyncio.run(body())


def test_without_tls_no_address_is_listened_on_or_dialed_that_others_reach() -> None:
    """Damage: a token and all rows cross a network in the clear."""

    async def body() -> None:
        with pytest.raises(ConfigError, match="set `replica_token`, `replica_certificate` and `replica_key`"):
            FlightListener("0.0.0.0:0", None, ServerAccess(TOKEN))
        with pytest.raises(ConfigError, match="set `replica_token` and `replica_authority`"):
            await dialer(ClientAccess(TOKEN))("192.0.2.1:7000")

    asyncio.run(body())


def test_a_listener_takes_a_few_connections_and_no_more() -> None:
    """Damage: a controller that reconnects in a loop takes all threads; or its successor is kept out."""

    async def body() -> None:
        async with flight_place(connections_max=2) as place:
            old, new = await place.connect(), await place.connect()
            with pytest.raises(Disconnected, match="it has 2 connections already"):
                await place.connect()
            await passes(new)
            await old[0].close()
            await ended(old[1])
            await old[1].close()
            await passes(await place.connect())

    asyncio.run(body())


def test_an_address_in_use_is_refused() -> None:
    """Damage: two replicas share a port, and commands go to either."""

    async def body() -> None:
        async with flight_place() as place:
            second = FlightListener(place.listener.address, None, ServerAccess(TOKEN))
            with pytest.raises(ConfigError, match="cannot listen on"):
                await second.start()
            await second.close()

    asyncio.run(body())


def raw_exchange(place: FlightPlace):
    """Return writer and reader of an exchange, as any Flight client has it that knows the token."""
    client = flight.FlightClient(f"grpc://{place.listener.address}")
    writer, reader = client.do_exchange(flight.FlightDescriptor.for_command(b"x"))
    prove(reader, writer, TOKEN, place.listener.address)
    return writer, reader


GREETING = bytes([Kind.GREETING]) + VERSION
LONG_PIECE = bytes([Kind.PIECE]) + bytes(PIECE_BYTES)


def _rows(writer) -> None:
    writer.begin(pa.schema([("a", pa.int64())]))
    writer.write_batch(pa.record_batch({"a": [1]}))


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([bytes([Kind.GREETING]) + b"2"], "the versions differ"),
        ([bytes([Kind.LAST_PIECE])], "begins with one greeting"),
        ([GREETING, GREETING], "begins with one greeting"),
        ([GREETING, b"\xff"], "no known kind"),
        ([GREETING, b""], "no known kind|was cut"),
        ([GREETING, bytes([Kind.LAST_PIECE]) + bytes(MESSAGE_BYTES_MAX)], "too long"),
        ([GREETING, *[LONG_PIECE] * (FRAME_BYTES_MAX // PIECE_BYTES + 1)], "frame is longer"),
        ([GREETING, _rows], "no known kind|was cut"),
    ],
    ids=["version", "no-greeting", "two-greetings", "kind", "empty", "long-message", "long-frame", "rows"],
)
def test_what_breaks_the_protocol_ends_its_connection_alone(messages: list[object], why: str) -> None:
    """Damage: one client of another version stops a replica, or fills its memory."""

    def send(writer) -> None:
        with suppress(flight.FlightError, pa.ArrowException, OSError):
            for each in messages:
                each(writer) if callable(each) else writer.write_metadata(each)

    async def body() -> None:
        async with flight_place() as place:
            ends = await place.connect()
            writer, reader = await asyncio.to_thread(raw_exchange, place)
            await asyncio.to_thread(send, writer)
            assert re.search(why, await ended(await asyncio.wait_for(place.arrived.get(), SOON_S)))
            await passes(ends)
            reader.cancel()
            with suppress(flight.FlightError, pa.ArrowException):
                writer.close()

    asyncio.run(body())


def test_a_stranger_who_speaks_no_flight_disturbs_no_connection() -> None:
    """Damage: a port scan stops a replica."""

    async def body() -> None:
        async with flight_place() as place:
            ends = await place.connect()
            host, _, port = place.listener.address.rpartition(":")
            with socket.create_connection((host, int(port)), SOON_S) as stranger:
                stranger.sendall(b"GET / HTTP/1.1\r\n\r\n" + bytes(1000))
                await passes(ends)

    asyncio.run(body())


# ---- TLS -------------------------------------------------------------------------------------------------------------


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine that is its own authority; return it and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "replica")])
    names = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    began = dt.datetime.fromtimestamp(SystemClock().now_ms() // 1000, dt.UTC) - dt.timedelta(hours=1)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(began)
        .not_valid_after(began + dt.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    (folder / "certificate.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "certificate.pem", folder / "key.pem"


def test_with_tls_only_the_trusted_replica_is_spoken_to(tmp_path: Path) -> None:
    """Damage: a token is sent to another server than the replica, or in the clear."""
    proof, key = certificate(tmp_path / "replica")
    other, _ = certificate(tmp_path / "other")

    async def body() -> None:
        async with flight_place(ServerAccess(TOKEN, proof, key), ClientAccess(TOKEN, proof)) as place:
            ends = await place.connect()
            await passes(ends)
            await passes((ends[1], ends[0]))
            for shown in (ClientAccess(TOKEN, other), ClientAccess(TOKEN)):
                with pytest.raises(Disconnected) as refused:
                    await dialer(shown, PACE)(place.listener.address)
                assert TEXT not in str(refused.value)
            with pytest.raises(Disconnected, match="no token is set here"):
                await dialer(ClientAccess(None, proof), PACE)(place.listener.address)

    asyncio.run(body())


def test_with_a_token_and_tls_every_address_may_be_listened_on(tmp_path: Path) -> None:
    """Damage: replicas on other machines cannot be had at all."""
    proof, key = certificate(tmp_path / "replica")

    async def serve(carrier: Carrier) -> None:
        await carrier.send(await carrier.receive(SOON_S) or b"")

    async def body() -> None:
        listener = FlightListener("0.0.0.0:0", serve, ServerAccess(TOKEN, proof, key), pace=PACE)
        await listener.start()
        port = listener.address.rpartition(":")[2]
        carrier = await dialer(ClientAccess(TOKEN, proof), PACE)(f"127.0.0.1:{port}")
        await carrier.send(b"far")
        assert await carrier.receive(SOON_S) == b"far"
        await carrier.close()
        await listener.close()

    asyncio.run(body())


# ---- peers that die or hang ------------------------------------------------------------------------------------------


@contextmanager
def peer(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run the other end in a process of its own."""
    command = [sys.executable, str(PEER), *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str]) -> str:
    """Wait for the line by which a peer says that it is ready."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _controller_place(body: Callable[[FlightPlace, subprocess.Popen[str], Carrier], Awaitable[None]]) -> None:
    """Run ``body`` with a controller in another process, and the replica's end of its connection."""

    async def inside() -> None:
        async with flight_place(connections_max=1) as place:
            with peer("controller", place.listener.address) as process:
                here = await asyncio.wait_for(place.arrived.get(), SOON_S)
                assert await here.receive(SOON_S) == b"here"
                await body(place, process, here)

    asyncio.run(inside())


def test_a_replica_that_hangs_or_is_killed_is_noticed() -> None:
    """Damage: a controller waits for ever for a replica that is gone, and no other one takes over."""
    dial = dialer(ClientAccess(TOKEN), PACE)

    async def body(address: str, process: subprocess.Popen[str]) -> None:
        for how, why in ((signal.SIGSTOP, "silent for 1 second"), (signal.SIGKILL, "cut|Connection reset")):
            carrier = await dial(address)
            await carrier.send(b"there?")
            assert await carrier.receive(SOON_S) == b"there?"
            process.send_signal(how)
            assert re.search(why, await ended(carrier))
            async with asyncio.timeout(SOON_S):
                await carrier.close()
            process.send_signal(signal.SIGCONT)

    with peer("replica") as process:
        asyncio.run(body(line_of(process), process))


def test_a_replica_that_hangs_is_not_dialed_for_ever() -> None:
    """Damage: a controller that starts waits for one replica and serves nothing."""

    async def body(address: str) -> None:
        with pytest.raises(Disconnected, match="does not answer|is not available"):
            async with asyncio.timeout(SOON_S):
                await dialer(ClientAccess(TOKEN), Pace(heartbeat_s=0.1, silence_s=0.6, connect_s=0.4))(address)

    with socket.create_server(("127.0.0.1", 0)) as hanging:  # it accepts, and says nothing
        asyncio.run(body(f"127.0.0.1:{hanging.getsockname()[1]}"))


def test_a_controller_that_is_killed_is_noticed() -> None:
    """Damage: a replica obeys nothing new, since it believes in its old controller."""

    async def body(place: FlightPlace, process: subprocess.Popen[str], here: Carrier) -> None:
        process.kill()
        await ended(here)

    _controller_place(body)


def test_a_controller_that_hangs_is_noticed_and_its_place_is_free_again() -> None:
    """Damage: controllers that hang take all connections of a replica, and it can be commanded no more."""

    async def body(place: FlightPlace, process: subprocess.Popen[str], here: Carrier) -> None:
        process.send_signal(signal.SIGSTOP)
        assert "silent for 1 second" in await ended(here)
        await here.close()
        await passes(await place.connect())

    _controller_place(body)


def test_closing_does_not_wait_for_a_peer_that_hangs() -> None:
    """Damage: a replica cannot be stopped while its controller hangs."""

    async def body(place: FlightPlace, process: subprocess.Popen[str], here: Carrier) -> None:
        process.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(SOON_S):
            await here.send(bytes(30 << 20))  # more than the sockets hold
            await place.listener.close()

    _controller_place(body)


def test_a_process_ends_with_open_connections() -> None:
    """Damage: a stopped replica or controller stays for ever as a process that does nothing."""
    with peer("replica") as replica:
        address = line_of(replica)
        with peer("controller", address) as controller, peer("controller", address) as hanging:
            assert {line_of(controller), line_of(hanging)} == {"connected"}
            hanging.send_signal(signal.SIGSTOP)
            for process in (controller, replica):
                assert process.stdin is not None
                process.stdin.close()
                assert process.wait(SOON_S) == 0


# ---- peers that are slow ---------------------------------------------------------------------------------------------


def test_a_receiver_that_is_slow_is_not_taken_for_dead() -> None:
    """Damage: a busy controller loses its replicas, and each reconnection makes it busier."""
    frames = [b"%02d" % number * 500_000 for number in range(60)]

    async def flood(sender: Carrier) -> None:
        for frame in frames:
            await sender.send(frame)

    async def body() -> None:
        async with flight_place() as place:
            ends = await place.connect()
            sending = [asyncio.get_running_loop().create_task(flood(end)) for end in ends]
            finished, _ = await asyncio.wait(sending, timeout=2 * PACE.silence_s)
            assert not finished, "60 MB were sent, and none received"
            for end in ends:
                assert [await end.receive(SOON_S) for _ in frames] == frames
            await asyncio.wait(sending)


def test_an_idle_connection_lives_and_costs_little() -> None:
    """Damage: replicas that wait for commands use a core each; or a quiet night cuts all connections."""

    async def body() -> None:
        async with flight_place() as place:
            ends = [await place.connect() for _ in range(3)]
            used = time.process_time()
            assert await ends[0][0].receive(1.5 * PACE.silence_s) is None
            assert time.process_time() - used < 0.5  # 90 heartbeats; a core for each would be nine times as much
            for each in ends:
                await passes(each)

    asyncio.run(body())


def test_connections_that_end_at_any_moment_leave_nothing_behind() -> None:
    """Damage: gRPC ends the whole process if both threads of an end close it; or threads and sockets pile up."""
    chance = random.Random(35)

    async def use(carrier: Carrier) -> None:
        with suppress(Disconnected):
            for _ in range(chance.randrange(8)):
                await carrier.send(bytes(chance.choice([1, 100, 300_000])))
                await carrier.receive(0.001)
        assert isinstance(carrier, FlightCarrier)
        if chance.random() < 0.3:
            carrier.abort("planted")
        await carrier.close()

    async def connect(dial: Dial, address: str) -> None:
        with suppress(TimeoutError, Disconnected):
            await use(await asyncio.wait_for(dial(address), chance.choice([0.002, SOON_S])))

    async def body() -> None:
        listener = FlightListener("127.0.0.1:0", use, ServerAccess(TOKEN), pace=PACE, connections_max=20)
        await listener.start()
        for _ in range(15):
            dial = dialer(ClientAccess(TOKEN), PACE)
            async with asyncio.TaskGroup() as group:
                for _ in range(4):
                    group.create_task(connect(dial, listener.address))
        await listener.close()
        async with asyncio.timeout(SOON_S):
            while any(each.name.startswith("strandline-flight") for each in threading.enumerate()):
                await SystemClock().sleep(0.01)

    asyncio.run(body())


def test_what_serve_raises_ends_its_connection_and_is_reported() -> None:
    """Damage: a bug in serving one connection is silent, or ends the listener."""
    reported: list[dict[str, object]] = []

    async def serve(carrier: Carrier) -> None:
        raise ProtocolViolation("planted")

    async def body() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        listener = FlightListener("127.0.0.1:0", serve, ServerAccess(tokenless=True), pace=PACE)
        await listener.start()
        dial = dialer(ClientAccess(), PACE)
        for _ in range(2):
            await ended(await dial(listener.address))
        await listener.close()

    asyncio.run(body())
    assert [str(each["exception"]) for each in reported] == ["planted", "planted"]


def test_a_heartbeat_that_is_late_once_is_no_failure() -> None:
    """Damage: settings are accepted under which a healthy connection is cut."""
    with pytest.raises(ConfigError, match="twice"):
        Pace(heartbeat_s=1, silence_s=1.5)


class Held:
    """An exchange in whose place a test stands: it says what arrives, and how what is sent fares."""

    def __init__(self, arrives: Callable[[], bytes], sends: Callable[[bytes], object]) -> None:
        self.aborted = threading.Event()
        self._arrives, self._sends = arrives, sends
        pace = Pace(heartbeat_s=0.05, silence_s=SOON_S, close_s=0.1)
        call = Call(self, self, ends_at_farewell=False, abort=self.aborted.set, ended=lambda: None)
        self.carrier = FlightCarrier(call, "the replica", pace)

    def read_chunk(self) -> SimpleNamespace:
        """See pyarrow's."""
        if self.aborted.wait(0.01):
            raise OSError("aborted")
        return SimpleNamespace(data=None, app_metadata=self._arrives())

    def write_metadata(self, message: bytes) -> None:
        """See pyarrow's."""
        self._sends(message)


def test_an_end_that_can_send_nothing_more_ends_though_it_still_hears() -> None:
    """Damage: a replica that cannot be told anything is taken for alive, and never dialed again."""
    messages = chain([bytes([Kind.GREETING]) + VERSION], repeat(bytes([Kind.HEARTBEAT])))

    def fails(_: bytes) -> None:
        raise OSError("no stream any longer")

    held = Held(lambda: next(messages), fails)
    ended = start_thread(held.carrier.run, "running")
    try:
        assert held.aborted.wait(SOON_S)
    finally:
        held.aborted.set()
        assert ended.wait(SOON_S)


def test_what_was_not_sent_before_a_cut_is_never_sent() -> None:
    """Damage: a replica obeys a command of a connection that its controller has given up."""
    sent: list[int] = []
    begun, goes_on = threading.Event(), threading.Event()

    def slow(message: bytes) -> None:
        sent.append(message[0])
        begun.set()
        goes_on.wait(SOON_S)

    def nothing() -> bytes:
        raise OSError("cut")

    held = Held(nothing, slow)
    ended = start_thread(held.carrier._write, "writing")
    assert begun.wait(SOON_S)
    asyncio.run(held.carrier.send(b"a command"))
    held.carrier.abort("a test cut it")
    goes_on.set()
    assert ended.wait(SOON_S)
    assert sent == [Kind.GREETING, Kind.FAREWELL]
