"""Both ends prove that they know the token, and neither shows it: what strangers learn, and what they are refused."""

from __future__ import annotations

import asyncio
import socket
import threading
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight
from tests.instance.carriers.test_flight import GREETING, PACE, TEXT, TOKEN, FlightPlace, flight_place, passes

from strandline.errors import Disconnected
from strandline.instance.carriers import handshake
from strandline.instance.carriers.access import Address, ClientAccess, ServerAccess
from strandline.instance.carriers.exchange import Kind, Pace
from strandline.instance.carriers.flight import dialer
from strandline.instance.carriers.handshake import ANSWER, CHALLENGE, HELLO, NONCE_BYTES, PROOF_BYTES, prove, sever
from strandline.store.clock import SystemClock
from strandline.store.secret import Secret
from strandline.testing.contracts.carrier_contract import SOON_S

DESCRIPTOR = flight.FlightDescriptor.for_command(b"x")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a client prove itself as slowly as a busy machine makes it."""
    monkeypatch.setattr(handshake, "HANDSHAKE_S_MAX", 10 * SOON_S)


class Stranger(flight.FlightServerBase):
    """Another program at a replica's port: keeps all that it is shown, and answers as a test says."""

    def __init__(self, answer: Any) -> None:
        self.shown: list[bytes] = []
        self.answer = answer
        super().__init__("grpc+tcp://127.0.0.1:0", middleware={"all": _Headers(self.shown)})

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with suppress(flight.FlightError, pa.ArrowException, OSError, StopIteration):
            self.answer(_Kept(reader, self.shown), writer)


class _Headers(flight.ServerMiddlewareFactory):
    def __init__(self, shown: list[bytes]) -> None:
        self.shown = shown

    def start_call(self, info: Any, headers: Any) -> None:
        self.shown.append(repr(sorted(headers.items())).encode())


class _Kept:
    """A reader that keeps what it reads."""

    def __init__(self, reader: Any, shown: list[bytes]) -> None:
        self.reader, self.shown = reader, shown

    def read_chunk(self) -> Any:
        chunk = self.reader.read_chunk()
        self.shown.append(bytes(chunk.app_metadata))
        return chunk


def exchange(address: str, *headers: tuple[bytes, bytes]) -> tuple[Any, Any]:
    """Return writer and reader of an exchange as any program can have it."""
    client = flight.FlightClient(f"grpc+tcp://{address}")
    return client.do_exchange(DESCRIPTOR, flight.FlightCallOptions(headers=list(headers)))


def said(reader: Any) -> bytes:
    """Return the next message."""
    return bytes(reader.read_chunk().app_metadata)


def everything(reader: Any) -> None:
    """Read until the exchange ends."""
    while reader.read_chunk().app_metadata is not None:
        pass


def greets(reader: Any, writer: Any) -> None:
    """Be a replica of an earlier version, which proves nothing."""
    writer.write_metadata(GREETING)
    everything(reader)


def guesses(reader: Any, writer: Any) -> None:
    """Answer with a proof that is none."""
    reader.read_chunk()
    writer.write_metadata(CHALLENGE + bytes(NONCE_BYTES + PROOF_BYTES))
    everything(reader)


def reflects(reader: Any, writer: Any) -> None:
    """Answer with what the other end says."""
    nonce = said(reader)[1:]
    writer.write_metadata(CHALLENGE + nonce + nonce * (PROOF_BYTES // NONCE_BYTES))
    everything(reader)


def shouts(reader: Any, writer: Any) -> None:
    """Answer with far more than any proof."""
    writer.write_metadata(CHALLENGE + bytes(900_000))
    everything(reader)


# ---- a stranger's server ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [greets, guesses, reflects, shouts])
def test_a_strangers_server_is_shown_nothing_that_it_could_use(answer: Any) -> None:
    """Damage: a replica restarts, another user takes its port, and has the token within seconds."""

    async def body() -> None:
        with Stranger(answer) as stranger:
            with pytest.raises(Disconnected, match=f"the process at {stranger.address} does not .* token of this loc"):
                await dialer(ClientAccess(TOKEN), PACE)(stranger.address)
            shown = b" ".join(stranger.shown)
            assert TEXT.encode() not in shown
            assert ANSWER not in {each[:1] for each in stranger.shown}, "the server proves first"
            assert b"authorization" not in shown

    asyncio.run(body())


def test_a_strangers_server_that_asks_the_real_replica_connects_neither() -> None:
    """Damage: at the port of one replica, another user passes all on to another one, and reads and changes it."""

    async def body() -> None:
        async with flight_place() as place:

            def passes_on(reader: Any, writer: Any) -> None:
                there, back = exchange(place.listener.address)
                for _ in range(3):
                    there.write_metadata(said(reader))
                    writer.write_metadata(said(back))

            with Stranger(passes_on) as stranger, pytest.raises(Disconnected, match="does not know the token"):
                await dialer(ClientAccess(TOKEN), PACE)(stranger.address)
            assert place.arrived.empty()
            await passes(await place.connect())

    asyncio.run(body())


def test_a_server_that_says_nothing_is_given_up() -> None:
    """Damage: each attempt to connect to a stranger leaves a thread and a socket behind."""

    async def body() -> None:
        held = threading.Event()
        with Stranger(lambda reader, writer: held.wait(SOON_S)) as stranger:
            before = threading.active_count()
            for _ in range(5):
                with pytest.raises(Disconnected, match="does not answer"):
                    await dialer(ClientAccess(TOKEN), Pace(heartbeat_s=0.1, silence_s=0.6, connect_s=0.3))(
                        stranger.address
                    )
            async with asyncio.timeout(SOON_S):
                while any(each.name == "strandline-flight-connecting" for each in threading.enumerate()):
                    await SystemClock().sleep(0.01)
            assert threading.active_count() <= before
            held.set()

    asyncio.run(body())


# ---- a stranger's client ---------------------------------------------------------------------------------------------


def refusal(place: FlightPlace, *messages: bytes) -> str:
    """Say ``messages`` to a replica; return why it ends the exchange."""
    writer, reader = exchange(place.listener.address)
    with pytest.raises(flight.FlightUnauthenticatedError) as refused:
        for each in messages:
            writer.write_metadata(each)
        said(reader)
        said(reader)
    return str(refused.value)


@pytest.mark.parametrize(
    "messages",
    [
        [GREETING, GREETING],
        [HELLO + bytes(NONCE_BYTES), GREETING],
        [HELLO + bytes(NONCE_BYTES), ANSWER + bytes(PROOF_BYTES)],
        [HELLO + bytes(NONCE_BYTES), ANSWER],
        [HELLO + bytes(NONCE_BYTES - 1)],
        [HELLO + bytes(3_000_000)],
        [b""],
        [b"\xff"],
    ],
    ids=["greeting", "no-proof", "guess", "short", "short-nonce", "long", "empty", "kind"],
)
def test_a_strangers_client_is_refused(messages: list[bytes], caplog: pytest.LogCaptureFixture) -> None:
    """Damage: any local user commands a replica."""

    async def body() -> None:
        async with flight_place() as place:
            why = await asyncio.to_thread(refusal, place, *messages)
            assert "does not know the token of this location" in why
            assert place.arrived.empty()
            await passes(await place.connect())

    asyncio.run(body())
    assert "does not know the token of this location" in caplog.text
    assert TEXT not in caplog.text


def test_a_proof_of_the_server_is_none_of_a_client() -> None:
    """Damage: a stranger sends back what the replica has proven, and is let in."""

    async def body() -> None:
        async with flight_place() as place:

            def mirror() -> None:
                writer, reader = exchange(place.listener.address)
                writer.write_metadata(HELLO + bytes(NONCE_BYTES))
                writer.write_metadata(ANSWER + said(reader)[-PROOF_BYTES:])
                said(reader)

            with pytest.raises(flight.FlightUnauthenticatedError):
                await asyncio.to_thread(mirror)
            assert place.arrived.empty()

    asyncio.run(body())


class _Noted:
    """A writer that keeps what it writes."""

    def __init__(self, writer: Any) -> None:
        self.writer, self.said = writer, []

    def write_metadata(self, message: bytes) -> None:
        self.said.append(message)
        self.writer.write_metadata(message)


def test_a_handshake_that_is_said_again_is_refused() -> None:
    """Damage: who has read one connection opens the next one."""

    async def body() -> None:
        async with flight_place() as place:
            there = Address.parse(place.listener.address)

            def once() -> list[bytes]:
                writer, reader = exchange(place.listener.address)
                noted = _Noted(writer)
                prove(reader, noted, TOKEN, there.bound)
                assert said(reader) == GREETING
                reader.cancel()
                return noted.said

            recorded = await asyncio.to_thread(once)
            assert [each[:1] for each in recorded] == [HELLO, ANSWER]
            await asyncio.wait_for(place.arrived.get(), SOON_S)
            assert "does not know" in await asyncio.to_thread(refusal, place, *recorded)
            assert place.arrived.empty()

    asyncio.run(body())


def test_an_earlier_client_that_sends_the_token_learns_why_it_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    """Damage: after an update of one end, an operator looks for a wrong token."""

    async def body() -> None:
        async with flight_place() as place:

            def earlier() -> None:
                writer, reader = exchange(place.listener.address, (b"authorization", f"Bearer {TEXT}".encode()))
                writer.write_metadata(GREETING)
                said(reader)

            with pytest.raises(flight.FlightUnavailableError, match="an earlier version.*same version at both ends"):
                await asyncio.to_thread(earlier)
            assert place.arrived.empty()

    asyncio.run(body())
    assert TEXT not in caplog.text


def test_clients_that_prove_nothing_keep_no_other_one_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: another user opens a few connections, and the controller never gets one; or threads pile up."""
    monkeypatch.setattr(handshake, "HANDSHAKES_MAX", 8)

    def silent(place: FlightPlace) -> list[tuple[Any, Any]]:
        found = [exchange(place.listener.address) for _ in range(7)]
        for writer, _ in found:
            writer.write_metadata(HELLO + bytes(NONCE_BYTES))
        return found  # whoever lets go of a writer closes its connection

    async def body() -> None:
        async with flight_place(connections_max=2) as place:
            held = silent(place)
            await passes(await place.connect())
            del held
        monkeypatch.setattr(handshake, "HANDSHAKE_S_MAX", 0.5)
        async with flight_place(connections_max=2) as place:
            for _, reader in silent(place):
                with pytest.raises((flight.FlightError, pa.ArrowException, OSError)):
                    await asyncio.wait_for(asyncio.to_thread(everything, reader), SOON_S)

    asyncio.run(body())


def test_of_many_clients_that_prove_nothing_the_first_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: another user opens as many connections as there may be, and keeps the controller out."""
    monkeypatch.setattr(handshake, "HANDSHAKES_MAX", 3)

    async def body() -> None:
        async with flight_place() as place:
            silent = []
            for _ in range(5):
                silent.append(exchange(place.listener.address))
                silent[-1][0].write_metadata(HELLO + bytes(NONCE_BYTES))
                await asyncio.to_thread(said, silent[-1][1])
            await passes(await place.connect())
            for _, reader in silent[:2]:
                with pytest.raises((flight.FlightError, pa.ArrowException, OSError)):
                    await asyncio.to_thread(everything, reader)

    asyncio.run(body())


def test_a_listener_closes_while_a_client_proves_nothing() -> None:
    """Damage: a replica cannot be stopped as long as a stranger is connected."""

    async def body() -> None:
        async with flight_place(pace=replace(PACE, close_s=SOON_S / 2)) as place:  # while it waits it is not closed
            writer, _ = exchange(place.listener.address)
            writer.write_metadata(HELLO + bytes(NONCE_BYTES))
            await SystemClock().sleep(0.2)  # the server reads it
            await place.listener.close()
            assert not [each.name for each in threading.enumerate() if each.name == "strandline-flight-stopping"]

    asyncio.run(body())


# ---- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "shown"),
    [
        (ServerAccess(TOKEN), ClientAccess(Secret("canary-4712"))),
        (ServerAccess(TOKEN), ClientAccess(None)),
        (ServerAccess(tokenless=True), ClientAccess(TOKEN)),
    ],
    ids=["other", "none-here", "none-there"],
)
def test_both_ends_say_that_the_tokens_differ(
    access: ServerAccess, shown: ClientAccess, caplog: pytest.LogCaptureFixture
) -> None:
    """Damage: an operator with two locations does not see which of two tokens is wrong; or a log shows one."""

    async def body() -> None:
        async with flight_place(access, shown) as place:
            with pytest.raises(Disconnected, match="does not know the token of this location|no token is set here"):
                await place.connect()
            async with asyncio.timeout(SOON_S):
                while "does not know the token of this location" not in caplog.text:
                    await SystemClock().sleep(0.01)

    asyncio.run(body())
    assert "canary" not in caplog.text


def test_localhost_is_one_address_at_both_ends() -> None:
    """Damage: a project that says `localhost` cannot reach a replica that listens on 127.0.0.1."""

    async def body() -> None:
        async with flight_place() as place:
            port = place.listener.address.rpartition(":")[2]
            here = await dialer(ClientAccess(TOKEN), PACE)(f"localhost:{port}")
            await passes((here, await asyncio.wait_for(place.arrived.get(), SOON_S)))

    asyncio.run(body())


def test_the_messages_of_the_handshake_are_none_of_a_connection() -> None:
    """Damage: an end of an earlier version takes a proof for a frame."""
    assert not {HELLO[0], CHALLENGE[0], ANSWER[0]} & set(Kind)


def test_of_all_connections_that_one_is_cut_which_is_meant() -> None:
    """Damage: a client that has proven itself loses its connection with the stranger's."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as one, socket.create_connection(("127.0.0.1", port)) as two:
            ends = {end.getpeername()[1]: end for end in (server.accept()[0], server.accept()[0])}
            peer = one.getsockname()[1]
            assert not sever(f"ipv4:127.0.0.1:{peer}", port + 1)
            assert not sever(f"ipv4:127.0.0.2:{peer}", port)
            assert sever(f"ipv4:127.0.0.1:{peer}", port)
            assert one.recv(1) == b""
            ends[two.getsockname()[1]].sendall(b"x")
            assert two.recv(1) == b"x"
            for end in ends.values():
                end.close()
