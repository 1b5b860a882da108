"""The handshake: both ends of a connection prove that they know the token, which never crosses.

    client:  HELLO(nonce)
    server:  CHALLENGE(nonce, proof of both nonces)      the server first: another program may have its port
    client:  ANSWER(proof of both nonces)                not before the server's proof was right

These are the first messages of each connection; what comes before the proof is no greeting and no frame.  A proof is
HMAC-SHA256, keyed with the token, over the role of who proves, both nonces, and the address at which the replica
listens.  So an answer cannot be sent back as one's own, nor be used again; and a stranger at one address cannot pass
it all on to a replica at another one.  Under TLS, where the certificate says who listens, the address is left out.

Without a token at either end the proofs prove nothing, but that neither end has one.

Limit: who says HELLO receives a proof, and can then try tokens at leisure.  So a token must be long and by chance.
"""

from __future__ import annotations

import hmac
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from pyarrow import flight

from strandline.errors import StrandlineError
from strandline.instance.carriers.buffer import Latch
from strandline.instance.carriers.exchange import start_thread
from strandline.instance.carriers.severing import sever
from strandline.store.secret import Secret
from strandline.store.system import SystemIds

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
