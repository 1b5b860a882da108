"""One end of a Flight exchange as a carrier: three threads, since pyarrow's calls block.

*reading* puts what arrives into a buffer, and stops reading while the receiver is slow, so that gRPC holds back the
sender.  *writing* sends frames, and a heartbeat when there are none.  *watching* ends the connection when nothing was
heard for `Pace.silence_s`; it counts its own turns and reads no clock, so a pause of this process is not mistaken for
a silence of the other one.  A connection whose receiver is slow hears nothing and counts nothing.

Messages are the ``app_metadata`` of the exchange; the first byte is the kind.  A long frame crosses in pieces: each is
a sign of life, so a slow network is not mistaken for a dead peer.  Both ends begin with a greeting that names the
version, and end with a farewell that says why.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from math import ceil
from typing import Any, Final

from pyarrow import flight

from strandline.errors import ConfigError, Disconnected, ProtocolViolation, first_line
from strandline.instance.carriers.buffer import Buffer, Latch, check_length
from strandline.instance.protocol.carrier import FRAME_BYTES_MAX

VERSION: Final = b"1"
PIECE_BYTES: Final = 1 << 20
MESSAGE_BYTES_MAX: Final = PIECE_BYTES + 1
_WHY_BYTES_MAX: Final = 1000
_CLOSED: Final = "the connection was closed"


class Kind(IntEnum):
    """What a message is, by its first byte."""

    GREETING = 1
    HEARTBEAT = 2
    PIECE = 3
    LAST_PIECE = 4
    FAREWELL = 5


@dataclass(frozen=True, slots=True)
class Pace:
    """How patient an end is.  Both ends of a connection should have the same heartbeat.

    ``heartbeat_s``: an end that has nothing to send sends a heartbeat this often.  ``silence_s``: the other end counts
    as gone if nothing is heard for so long.  ``connect_s``, ``close_s``: how long these may take.  ``buffer_bytes``: a
    sender waits when this much is not yet sent, or is received and not yet taken.
    """

    heartbeat_s: float = 1.0
    silence_s: float = 5.0
    connect_s: float = 5.0
    close_s: float = 2.0
    buffer_bytes: int = FRAME_BYTES_MAX // 4

    def __post_init__(self) -> None:
        if not 0 < 2 * self.heartbeat_s <= self.silence_s:
            raise ConfigError("`silence_s` must be at least twice `heartbeat_s`: one late heartbeat is no failure")


@dataclass(frozen=True, slots=True)
class Call:
    """A Flight exchange as pyarrow has it.

    ``abort`` ends it from any thread, and then whatever blocks in it returns.  ``ended`` is called once it is over.
    ``ends_at_farewell``: this is the server's side, which ends the exchange once the client has taken its leave.
    Trap: pyarrow's ``done_writing`` is not used, since a reader that reaches the end at that moment does the same, and
    gRPC ends the process if a call is closed twice.
    """

    reader: Any
    writer: Any
    ends_at_farewell: bool
    abort: Callable[[], object]
    ended: Callable[[], object]


class FlightCarrier:
    """One end of a connection.  ``other`` names the other end in messages; `run` reads until the exchange is over."""

    def __init__(self, call: Call, other: str, pace: Pace) -> None:
        self._call, self._other, self._pace = call, other, pace
        self._incoming, self._outgoing = Buffer(pace.buffer_bytes), Buffer(pace.buffer_bytes)
        self._greeted, self._over = Latch(), Latch()
        self._heard = 0
        self._reading = False
        self._accepted = False

    async def send(self, frame: bytes) -> None:
        """See `Carrier.send`.  It waits while the other end is behind by more than the buffers hold."""
        check_length(frame)
        await self._outgoing.put(frame)

    async def receive(self, seconds: float | None) -> bytes | None:
        """See `Carrier.receive`."""
        return await self._incoming.take(seconds)

    async def close(self) -> None:
        """See `Carrier.close`.  Frames sent before are delivered, if the other end takes them within `Pace.close_s`."""
        self._end(_CLOSED)
        if not await self._over.waited(self._pace.close_s):
            self.abort(_CLOSED)
            await self._over.waited(self._pace.close_s)

    async def greeted(self, seconds: float) -> None:
        """Return once the other end has accepted the connection; raise `Disconnected` if it does not."""
        if not await self._greeted.waited(seconds):
            self.abort(f"{self._other} does not answer")
        if not self._accepted:
            raise Disconnected(self._incoming.why or f"{self._other} does not answer")

    def abort(self, why: str) -> None:
        """Cut the connection; frames that were not sent are lost, frames that arrived are not."""
        self._incoming.end(why)
        self._outgoing.end(why, drop=True)
        with suppress(Exception):  # it may be over already
            self._call.abort()

    def run(self) -> None:
        """Read until the exchange is over, and return once no thread uses it."""
        _running.add(self)
        written = start_thread(self._write, "writing")
        start_thread(self._watch, "watching")
        orderly = self._read()
        if not written.wait(self._pace.close_s) or not orderly:
            self.abort(f"the connection to {self._other} was cut")
            written.wait(None)
        with suppress(Exception):  # it may be closed already
            self._call.ended()
        self._greeted.set()
        self._over.set()
        _running.discard(self)

    def wait(self, seconds: float) -> bool:
        """Block until it is over, at most ``seconds``; return whether it is."""
        return self._over.wait(seconds)

    # ---- threads -----------------------------------------------------------------------------------------------------

    def _read(self) -> bool:
        """Read until the exchange ends; return whether the other end kept to the protocol."""
        pieces = bytearray()
        why = f"the connection to {self._other} was cut"
        try:
            while True:
                kind, body = self._next()
                match kind:
                    case Kind.GREETING:
                        self._meet(bytes(body))
                    case Kind.HEARTBEAT:
                        pass
                    case Kind.PIECE | Kind.LAST_PIECE:
                        if len(pieces) + len(body) > FRAME_BYTES_MAX:
                            raise ProtocolViolation(f"a frame is longer than {FRAME_BYTES_MAX} bytes")
                        pieces += body
                        if kind is Kind.LAST_PIECE:
                            self._arrived(bytes(pieces))
                            pieces = bytearray()
                    case Kind.FAREWELL:
                        self._end(self._left(bytes(body).decode(errors="replace")), drop=True)
                        if self._call.ends_at_farewell:
                            return True
        except StopIteration:  # pyarrow's end of the exchange
            self._end(why, drop=True)
        except ProtocolViolation as error:
            self._end(f"{self._other} broke the carrier's protocol: {error}", drop=True)
            return False
        except Exception as error:  # noqa: BLE001 - whatever pyarrow raises, the connection is over
            self._end(meaning(error, self._other), drop=True)
        return True

    def _meet(self, version: bytes) -> None:
        if version != VERSION:
            raise ProtocolViolation(f"the versions differ: here {VERSION!r}, there {version[:9]!r}")
        self._accepted = True
        self._greeted.set()

    def _next(self) -> tuple[Kind, memoryview]:
        """Return the next message."""
        self._reading = True
        chunk = self._call.reader.read_chunk()
        self._reading = False
        self._heard += 1
        if chunk.data is None and chunk.app_metadata is None:
            raise StopIteration
        message = memoryview(b"" if chunk.app_metadata is None else chunk.app_metadata)
        if chunk.data is not None or not 0 < len(message) <= MESSAGE_BYTES_MAX or message[0] not in KINDS:
            raise ProtocolViolation("a message is of no known kind, or too long")
        if (message[0] == Kind.GREETING) != (self._heard == 1):
            raise ProtocolViolation("a connection begins with one greeting")
        return Kind(message[0]), message[1:]

    def _arrived(self, frame: bytes) -> None:
        with suppress(Disconnected):  # closed here: read on until the other end agrees
            self._incoming.put_blocking(frame)

    def _write(self) -> None:
        write = self._call.writer.write_metadata
        try:
            write(bytes([Kind.GREETING]) + VERSION)
            try:
                while True:
                    frame = self._outgoing.take_blocking(self._pace.heartbeat_s)
                    for message in [bytes([Kind.HEARTBEAT])] if frame is None else cut_up(frame):
                        write(message)
            except Disconnected as error:
                write(bytes([Kind.FAREWELL]) + str(error).encode()[:_WHY_BYTES_MAX])
        except Exception as error:  # noqa: BLE001 - whatever pyarrow raises, nothing more can be sent
            self._outgoing.end(meaning(error, self._other), drop=True)

    def _watch(self) -> None:
        quiet = ending = heard = 0
        while not self._over.wait(self._pace.heartbeat_s):
            quiet = quiet + 1 if self._reading and heard == self._heard else 0
            heard = self._heard
            ending = ending + 1 if self._outgoing.why is not None else 0
            if quiet >= ceil(self._pace.silence_s / self._pace.heartbeat_s):
                self.abort(f"{self._other} was silent for {self._pace.silence_s:g} seconds")
            elif ending > ceil(self._pace.close_s / self._pace.heartbeat_s):
                self.abort(f"the connection to {self._other} was cut")

    def _end(self, why: str, *, drop: bool = False) -> None:
        self._incoming.end(why)
        self._outgoing.end(why, drop=drop)

    def _left(self, why: str) -> str:
        return f"{self._other} closed the connection" + (f": {why}" if why != _CLOSED else "")


KINDS: Final = frozenset(Kind)
_running: Final[set[FlightCarrier]] = set()


def cut_up(frame: bytes) -> list[bytes]:
    r"""Return the messages by which a frame crosses.

    >>> cut_up(b"ab"), [len(each) for each in cut_up(bytes(PIECE_BYTES + 1))]
    ([b'\x04ab'], [1048577, 2])
    """
    pieces = [frame[at : at + PIECE_BYTES] for at in range(0, len(frame), PIECE_BYTES)] or [b""]
    kinds = [Kind.PIECE] * (len(pieces) - 1) + [Kind.LAST_PIECE]
    return [bytes([kind]) + piece for kind, piece in zip(kinds, pieces, strict=True)]


def meaning(error: Exception, other: str) -> str:
    """Return what an error of pyarrow means for the connection to ``other``, without what gRPC adds for itself.

    >>> said = "Flight returned unavailable error, with message: no room. gRPC client debug context: a:b"
    >>> meaning(flight.FlightUnavailableError(said), "the replica")
    'the replica is not available: no room'
    >>> meaning(flight.FlightUnavailableError("failed to connect to all addresses; last error: …"), "the replica")
    'the replica does not answer: is it started, and does it listen there?'
    """
    text = spoken(error)
    match error:
        case flight.FlightUnauthenticatedError():
            return (
                f"{other} refuses this process, which does not know the token of that location or is of another version"
            )
        case flight.FlightUnavailableError() if "failed to connect" in text:
            return f"{other} does not answer: is it started, and does it listen there?"
        case flight.FlightUnavailableError() if "Socket closed" not in text:
            return f"{other} is not available: {text}"
    return f"the connection to {other} was cut"


def spoken(error: BaseException) -> str:
    """Return what the other end said of a failure, without what pyarrow and gRPC add to it.

    >>> said = "Flight returned unavailable error, with message: no room. Detail: Unavailable. gRPC client debug: a:b"
    >>> spoken(flight.FlightUnavailableError(said))
    'no room'
    """
    text = first_line(error)
    for added in (". gRPC client debug", ". Client context:", ". Detail:"):
        text = text.partition(added)[0]
    return text.rpartition("error, with message: ")[2]


def start_thread(call: Callable[[], object], name: str) -> Latch:
    """Make ``call`` in a thread that does not keep the process from ending; the latch is set when it has returned."""
    returned = Latch()

    def made() -> None:
        try:
            call()
        finally:
            returned.set()

    # An executor's threads would be waited for at the end of the process.
    threading.Thread(target=made, name=f"strandline-flight-{name}", daemon=True).start()  # noqa: TID251 - calls block
    return returned


@atexit.register
def _cut_all() -> None:
    """Cut all connections before the interpreter ends: gRPC would wait for the calls of a server for ever."""
    open_ones = _running.copy()
    for each in open_ones:
        each.abort("this process ends")
    for each in open_ones:
        each.wait(1)
