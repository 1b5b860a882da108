"""The handshake: both ends of a connection prove that they know the token, which never crosses.

    client:  HELLO(nonce)
    server:  CHALLENGE(nonce, proof of both nonces)      the server first: another program may have its port
    client:  ANSWER(proof of both nonces)                not before the server's proof was right

These are the first messages of each connection; messages before the proof are neither greetings nor frames.  A proof is
HMAC-SHA256, keyed with the token, over the prover's role, both nonces, and the address at which the replica listens.
So an answer cannot be sent back as one's own, nor be used again; and a stranger at one address cannot pass everything
on to a replica at another one.  Under TLS, where the certificate says who listens, the address is left out.

Without a token at either end the proofs prove only that neither end has one.

Limit: a client that says HELLO receives a proof, and can then try tokens at leisure.  So a token must be long and
random.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
import time
from collections.abc import Callable
from ipaddress import IPv6Address, ip_address
from typing import Any, Final
from urllib.parse import unquote

from pyarrow import flight

from strandline.errors import StrandlineError
from strandline.instance.carriers.buffer import Latch
from strandline.instance.carriers.exchange import start_thread
from strandline.store.clock import SystemIds
from strandline.store.secret import Secret


def sever(peer: str, port: int) -> bool:
    """Shut down this process's connection from ``peer``, as gRPC names it, to the local ``port``.

    Return whether there was one.  The descriptor is duplicated before its ends are compared, so a descriptor that is
    closed and reused meanwhile is not cut by mistake.

    pyarrow gives a Flight server no way to end a call whose client hangs: its handler would wait for as long as the
    socket is open.  So the server shuts the socket down from outside the library that owns it, and the library sees
    what a cut cable looks like.
    """
    import psutil

    wanted = _endpoint(peer)
    for found in psutil.Process().net_connections("tcp"):
        if not found.raddr or found.raddr.port != wanted[1] or found.laddr.port != port or found.fd < 0:
            continue
        try:
            connection = socket.socket(fileno=os.dup(found.fd))
        except OSError:
            continue  # closed meanwhile
        with connection:
            if _shut(connection, wanted, port):
                return True
    return False


def _shut(connection: socket.socket, wanted: tuple[str, int], port: int) -> bool:
    try:
        host, remote = connection.getpeername()[:2]
        if (_plain(host), remote) != wanted or connection.getsockname()[1] != port:
            return False
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        return False  # cut meanwhile
    return True


def _endpoint(peer: str) -> tuple[str, int]:
    """Return host and port of a peer as gRPC names it.

    >>> _endpoint("ipv4:127.0.0.1:4000"), _endpoint("ipv6:%5B::1%5D:4000")
    (('127.0.0.1', 4000), ('::1', 4000))
    """
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _plain(host.strip("[]")), int(port)


def _plain(host: str) -> str:
    """Return an address as text; one of IPv4 in the clothes of IPv6 as one of IPv4."""
    address = ip_address(host.partition("%")[0])
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return str(mapped or address)


HELLO: Final = b"\x10"
CHALLENGE: Final = b"\x11"
ANSWER: Final = b"\x12"
NONCE_BYTES: Final = 16
PROOF_BYTES: Final = 32
HANDSHAKE_S_MAX: Final = 5.0
"""How long a client may take, as seen from the server."""
HANDSHAKES_MAX: Final = 64
"""How many clients may be at it at once: for one more, the first of them is cut.  Who knows the token is soon done."""
SAID_EVERY_S: Final = 60.0
"""How often at most it is said that clients are refused: they may be many."""
_LABEL: Final = b"strandline replica 1"


class Unproven(StrandlineError):
    """The other end has not proven that it knows the token."""


def admit(reader: Any, writer: Any, token: Secret | None, bound: str) -> None:
    """Prove the token to a client, and return once it has proven it, too.

    ``bound``: see `Address.bound`.  Raises `Unproven`, and whatever pyarrow raises.
    """
    theirs = _body(reader, HELLO, NONCE_BYTES)
    ours = _nonce()
    writer.write_metadata(CHALLENGE + ours + _proof(token, b"server", bound, theirs, ours))
    answer = _body(reader, ANSWER, PROOF_BYTES)
    if not hmac.compare_digest(answer, _proof(token, b"client", bound, theirs, ours)):
        raise Unproven("the proof is wrong")


def prove(reader: Any, writer: Any, token: Secret | None, bound: str) -> None:
    """Prove the token to a server, once it has proven it.  Raises as `admit`; then the server was shown no proof."""
    ours = _nonce()
    writer.write_metadata(HELLO + ours)
    said = _body(reader, CHALLENGE, NONCE_BYTES + PROOF_BYTES)
    theirs, proof = said[:NONCE_BYTES], said[NONCE_BYTES:]
    if not hmac.compare_digest(proof, _proof(token, b"server", bound, ours, theirs)):
        raise Unproven("the proof is wrong")
    writer.write_metadata(ANSWER + _proof(token, b"client", bound, ours, theirs))


def _body(reader: Any, kind: bytes, length: int) -> bytes:
    """Return what the next message holds behind its kind.  Raises `Unproven` for any other message, or none."""
    try:
        chunk = reader.read_chunk()
    except StopIteration:
        raise Unproven("the exchange has ended") from None
    message = memoryview(b"" if chunk.app_metadata is None else chunk.app_metadata)
    if chunk.data is not None or len(message) != 1 + length or message[:1] != kind:
        raise Unproven("this is no message of the handshake")
    return bytes(message[1:])


def _nonce() -> bytes:
    return bytes.fromhex(SystemIds().fresh("nonce").rpartition("-")[2])


def _proof(token: Secret | None, role: bytes, bound: str, client_nonce: bytes, server_nonce: bytes) -> bytes:
    """Return the proof by ``role`` for these nonces, which have one length each."""
    key = b"" if token is None else token.reveal().encode()
    return hmac.digest(key, b"\n".join((_LABEL, role, bound.encode(), client_nonce + server_nonce)), "sha256")


class Doorkeeper:
    """Admits clients of a listener, each in the thread of its call; ``say`` takes a sentence for the operator."""

    def __init__(self, token: Secret | None, say: Callable[[str], None]) -> None:
        self._token = token
        self._tell = say
        self._lock = threading.Lock()
        self._proving: dict[str, None] = {}  # a set, in the order in which they came
        self._closed = False
        self._said_at: float | None = None

    def admit(self, peer: str, port: int, bound: str, reader: Any, writer: Any) -> None:
        """Return once ``peer`` has proven that it knows the token; it is cut if that takes too long.

        Raises what pyarrow tells the client.
        """
        with self._lock:
            if self._closed or peer in self._proving:
                raise flight.FlightUnavailableError("it is closing, or has not done with this client's last call")
            first = next(iter(self._proving)) if len(self._proving) >= HANDSHAKES_MAX else None
            if first is not None:
                del self._proving[first]
            self._proving[peer] = None
        if first is not None:
            sever(first, port)
        proven = Latch()

        def cut() -> None:
            if not proven.wait(HANDSHAKE_S_MAX):
                sever(peer, port)

        start_thread(cut, "proving")
        try:
            admit(reader, writer, self._token, bound)
        except Exception:  # noqa: BLE001 - whatever it is, nothing is proven
            why = f"the process at {peer} does not know the token of this location, or did not prove it in time"
            self._say(f"{why}: it is refused")
            raise flight.FlightUnauthenticatedError(why) from None
        finally:
            proven.set()
            with self._lock:
                self._proving.pop(peer, None)

    def close(self, port: int) -> None:
        """Cut all that have proven nothing yet, and admit no more."""
        with self._lock:
            self._closed, proving = True, list(self._proving)
        for peer in proving:
            sever(peer, port)

    def _say(self, message: str) -> None:
        now = time.monotonic()
        with self._lock:
            if self._closed or (self._said_at is not None and now < self._said_at + SAID_EVERY_S):
                return
            self._said_at = now
        self._tell(message)
