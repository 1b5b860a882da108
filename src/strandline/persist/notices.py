"""Notices: messages to readers that a shard has a new version, so that they need not poll.

A notice names a shard and a seqno, and carries that version's diff if it is small.  A reader at the version before
applies the diff and has the new state without asking Consensus; any other reader takes the notice as a hint to fetch.

Notices are *unreliable by design*: one may come late, twice, after its successor, or never.  So only latency may
depend on them, and every wait for one times out and polls (`persist/handles/read.py`).  They must be *true*: a version
is published only once it is known to be committed.

Within a process `LocalNotifier` delivers them.  Between the processes of one machine they are pushed over TCP on
loopback: the process that writes a location is a `PushServer`, readers are a `PushClient`.  While a client is not
connected, its readers poll.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import stat
import struct
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

import msgspec

from strandline.errors import ProtocolViolation
from strandline.store.clock import Clock, Ids

NOTICES_WAITING_MAX: Final = 64
"""Notices kept for a subscription.  If it falls further behind, the oldest are dropped and the reader fetches."""
DIFF_BYTES_MAX: Final = 256 << 10
"""A larger diff is not carried."""


class Notice(msgspec.Struct, frozen=True, tag="notice"):
    """Version ``seqno`` of ``shard`` is committed; ``diff`` is what Consensus holds for it, or empty: fetch it."""

    shard: str
    seqno: int
    diff: bytes


def notice_of(shard: str, seqno: int, diff: bytes) -> Notice:
    """Return the notice of a version; without its diff if that is large."""
    return Notice(shard, seqno, diff if len(diff) <= DIFF_BYTES_MAX else b"")


class Subscription(Protocol):
    """Notices of one shard, from the moment of subscribing."""

    async def next(self, timeout_s: float) -> Notice | None:
        """Return the next notice; None after ``timeout_s``, or earlier if the reader should fetch."""
        ...

    def close(self) -> None:
        """Stop listening."""
        ...


class Notifier(Protocol):
    """Publishes and delivers notices.  Neither method fails: losing a notice is always allowed."""

    def publish(self, notice: Notice) -> None:
        """Pass the notice to all subscribers, without waiting for any of them."""
        ...

    async def subscribe(self, shard: str) -> Subscription:
        """Listen for the versions of ``shard`` that are published from now on."""
        ...


class Polling:
    """The `Notifier` that delivers nothing: each wait for a notice takes its full timeout."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def publish(self, notice: Notice) -> None:
        """Do nothing."""

    async def subscribe(self, shard: str) -> Subscription:
        """Return a subscription that only waits."""
        return _Waiting(self._clock)


class _Waiting:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    async def next(self, timeout_s: float) -> Notice | None:
        await self._clock.sleep(timeout_s)
        return None

    def close(self) -> None:
        """Nothing was opened."""


class LocalNotifier:
    """The `Notifier` of one process and one event loop."""

    def __init__(self) -> None:
        self._listening: dict[str, list[_Mailbox]] = {}

    def publish(self, notice: Notice) -> None:
        """Deliver the notice to the subscribers of its shard in this process."""
        for mailbox in self._listening.get(notice.shard, ()):
            mailbox.put(notice)

    async def subscribe(self, shard: str) -> Subscription:
        """Listen for the versions of ``shard`` that this process commits or receives notices of."""
        mailbox = _Mailbox(self, shard)
        self._listening.setdefault(shard, []).append(mailbox)
        return mailbox

    def wake_all(self) -> None:
        """Make all subscribers fetch: notices may have been missed."""
        for mailboxes in self._listening.values():
            for mailbox in mailboxes:
                mailbox.wake()

    def leave(self, shard: str, mailbox: _Mailbox) -> None:
        """Remove a subscriber."""
        self._listening[shard].remove(mailbox)
        if not self._listening[shard]:
            del self._listening[shard]


class _Mailbox:
    def __init__(self, notifier: LocalNotifier, shard: str) -> None:
        self._notifier = notifier
        self._shard = shard
        self._waiting: deque[Notice] = deque(maxlen=NOTICES_WAITING_MAX)
        self._woken = asyncio.Event()

    def put(self, notice: Notice) -> None:
        self._waiting.append(notice)
        self._woken.set()

    def wake(self) -> None:
        self._woken.set()

    async def next(self, timeout_s: float) -> Notice | None:
        try:
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()
        except TimeoutError:
            return None
        notice = self._waiting.popleft() if self._waiting else None
        if not self._waiting:
            self._woken.clear()
        return notice

    def close(self) -> None:
        self._notifier.leave(self._shard, self)


FRAME_BYTES_MAX: Final = 2 * DIFF_BYTES_MAX
HANDSHAKE_S_MAX: Final = 5.0
CONNECT_S_MAX: Final = 1.0
LISTENERS_MAX: Final = 64
UNSENT_BYTES_MAX: Final = 4 << 20
"""The server drops notices for a listener that has left this much unread, until it has read some of it."""
RETRY_S_MIN: Final = 1.2
RETRY_S_MAX: Final = 16.0
assert DIFF_BYTES_MAX < FRAME_BYTES_MAX <= UNSENT_BYTES_MAX
assert CONNECT_S_MAX < RETRY_S_MIN < RETRY_S_MAX

_HOST: Final = "127.0.0.1"
_LENGTH: Final = struct.Struct(">I")


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The server's first message."""

    nonce: str


class Answer(msgspec.Struct, frozen=True, tag="answer"):
    """The client's only message."""

    nonce: str
    proof: bytes


class Welcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The client is admitted; ``counters``: the counters of the server's process since it began."""

    proof: bytes
    counters: dict[str, int]


class Address(msgspec.Struct, frozen=True):
    """The content of the address file."""

    port: int
    token: str


_decoder: Final = msgspec.msgpack.Decoder(Hello | Answer | Welcome | Notice)


class Frames:
    """Reassembles frames from the pieces that TCP delivers.

    >>> frames = Frames()
    >>> data = frame(Hello("n"))
    >>> list(frames.feed(data[:5])), list(frames.feed(data[5:] + data))
    ([], [Hello(nonce='n'), Hello(nonce='n')])
    """

    def __init__(self) -> None:
        self._unread = bytearray()

    def feed(self, data: bytes) -> list[Hello | Answer | Welcome | Notice]:
        """Return the messages that ``data`` completes.  Raises `ProtocolViolation` for what is no message."""
        self._unread += data
        found = []
        while len(self._unread) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread)
            if length > FRAME_BYTES_MAX:
                raise ProtocolViolation(f"push: a frame of {length} bytes; at most {FRAME_BYTES_MAX} are allowed")
            end = _LENGTH.size + length
            if len(self._unread) < end:
                break
            try:
                found.append(_decoder.decode(bytes(self._unread[_LENGTH.size : end])))
            except msgspec.MsgspecError as error:
                raise ProtocolViolation(f"push: {error}") from error
            del self._unread[:end]
        return found


def frame(message: msgspec.Struct) -> bytes:
    """Return a message as a frame."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def proof(token: str, role: str, server_nonce: str, client_nonce: str) -> bytes:
    """Return the proof by ``role`` ("client" or "server") that it knows ``token``, for these two nonces."""
    return hmac.digest(token.encode(), f"{role}/{server_nonce}/{client_nonce}".encode(), "sha256")


class PushServer:
    """The `Notifier` of the process that writes: notifies its own readers and, once it serves, remote listeners.

    It leaves an *address file* in the location, readable by its user alone, with a port and a token.  Other processes
    of that user listen (`PushClient`); a client sends nothing but the proof that it knows the token, so it cannot
    disturb the server or other clients.

        server:  Hello(nonce)                         the client must prove that it has read the address file
        client:  Answer(nonce, proof of both nonces)
        server:  Welcome(proof of both, counters)     the server must prove it too: another process may own the port now
        server:  Notice …                             until either end goes away

    The token itself never travels.  A frame is a length (4 bytes, big-endian) and that many bytes of msgpack; a frame
    longer than `FRAME_BYTES_MAX`, or any other message, ends the connection.  A listener that does not keep up loses
    notices and never slows the server down.

    Warning: the file modes of the address file are its only protection; on a file system without modes, do not serve.
    """

    def __init__(self, file: Path, ids: Ids) -> None:
        self.local = LocalNotifier()
        self.token = ids.fresh("push")
        self.ids = ids
        self.counters: Callable[[], Mapping[str, int]] = dict
        self.listeners: set[_Listener] = set()
        self._file = file
        self._written = b""
        self._server: asyncio.Server | None = None

    async def serve(self, counters: Callable[[], Mapping[str, int]]) -> None:
        """Accept listeners, which receive ``counters``; if the port or file fails, only local readers get notices."""
        self.counters = counters
        with contextlib.suppress(OSError):
            self._server = await asyncio.get_running_loop().create_server(lambda: _Listener(self), _HOST, 0)
            port = self._server.sockets[0].getsockname()[1]
            self._written = msgspec.json.encode(Address(port, self.token))
            _write_private(self._file, self._written)

    def publish(self, notice: Notice) -> None:
        """Pass a notice to all listeners, in this process and in others."""
        self.local.publish(notice)
        if self.listeners:
            data = frame(notice)
            for listener in self.listeners:
                listener.send(data)

    async def subscribe(self, shard: str) -> Subscription:
        """Listen for what this process commits."""
        return await self.local.subscribe(shard)

    def close(self) -> None:
        """Stop serving, and delete the address file if it is still this server's."""
        if self._server is not None:
            self._server.close()
        for listener in list(self.listeners):
            listener.close()
        with contextlib.suppress(OSError):
            if self._file.read_bytes() == self._written:
                self._file.unlink()


class _Listener(asyncio.Protocol):
    """One connection, on the server's side."""

    def __init__(self, service: PushServer) -> None:
        self._service = service
        self._frames = Frames()
        self._nonce = service.ids.fresh("nonce")
        self._transport: asyncio.Transport | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S_MAX, self.close)
        transport.write(frame(Hello(self._nonce)))

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._frames.feed(data)
        except ProtocolViolation:
            self.close()
            return
        for message in messages:
            self._answered(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._service.listeners.discard(self)
        if self._deadline is not None:
            self._deadline.cancel()

    def send(self, data: bytes) -> None:
        assert self._transport is not None, "a listener is connected"
        if self._transport.get_write_buffer_size() <= UNSENT_BYTES_MAX:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _answered(self, message: msgspec.Struct) -> None:
        service = self._service
        known = self in service.listeners or len(service.listeners) >= LISTENERS_MAX
        if known or not isinstance(message, Answer):
            self.close()
            return
        if not hmac.compare_digest(message.proof, proof(service.token, "client", self._nonce, message.nonce)):
            self.close()
            return
        assert self._transport is not None, "an answer comes over a connection"
        assert self._deadline is not None, "a connection has a deadline"
        self._deadline.cancel()
        service.listeners.add(self)
        said = proof(service.token, "server", self._nonce, message.nonce)
        self._transport.write(frame(Welcome(said, dict(service.counters()))))


class PushClient:
    """The `Notifier` of a process that reads: passes notices from the location's server to its own readers.

    It connects at the first subscription, and reconnects, with back-off, when a reader waits.
    """

    def __init__(self, file: Path, clock: Clock, ids: Ids) -> None:
        self._file = file
        self._clock = clock
        self._ids = ids
        self._local = LocalNotifier()
        self._connection: _Connection | None = None
        self._retry_s = RETRY_S_MIN
        self._retry_at_ms = 0
        self.counters: dict[str, int] | None = None
        """The counters of the server's process when it admitted this one; None if it never did."""

    @property
    def connected(self) -> bool:
        """Whether notices come now."""
        return self._connection is not None

    def publish(self, notice: Notice) -> None:
        """Pass a notice to the readers of this process."""
        self._local.publish(notice)

    async def subscribe(self, shard: str) -> Subscription:
        """Listen for what the server's process and this one commit."""
        await self.connect()
        return _Pushed(self, await self._local.subscribe(shard))

    async def connect(self) -> bool:
        """Connect if there is no connection and a retry is due; return whether a new connection was made."""
        if self.connected or self._clock.now_ms() < self._retry_at_ms:
            return False
        # Set before the attempt, so that only one of several waiting tasks tries.
        self._retry_at_ms = self._clock.now_ms() + round(self._retry_s * 1000)
        self._retry_s = min(RETRY_S_MAX, self._retry_s * 2)
        address = _read_private(self._file)
        if address is None or await self._dial(address) is None:
            return False
        self._retry_s = RETRY_S_MIN
        return True

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    def admitted(self, connection: _Connection, counters: dict[str, int]) -> None:
        """Keep the connection, whose server has proved that it knows the token."""
        self._connection = connection
        self.counters = counters

    def lost(self, connection: _Connection) -> None:
        """Forget a connection that ended, and wake the waiting readers so that they poll."""
        if self._connection is connection:
            self._connection = None
            self._local.wake_all()

    async def _dial(self, address: Address) -> _Connection | None:
        loop = asyncio.get_running_loop()
        connection = _Connection(self, address.token, self._ids.fresh("nonce"), loop.create_future())
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await loop.create_connection(lambda: connection, _HOST, address.port)
                return connection if await connection.welcomed else None
        except (OSError, TimeoutError):
            connection.close()
            return None


class _Pushed:
    """A subscription that reconnects while it waits."""

    def __init__(self, client: PushClient, inner: Subscription) -> None:
        self._client = client
        self._inner = inner

    async def next(self, timeout_s: float) -> Notice | None:
        if await self._client.connect():
            return None  # notices published without a connection are lost: the reader must fetch
        return await self._inner.next(timeout_s)

    def close(self) -> None:
        self._inner.close()


class _Connection(asyncio.Protocol):
    """One connection, on the client's side."""

    def __init__(self, client: PushClient, token: str, nonce: str, welcomed: asyncio.Future[bool]) -> None:
        self._client = client
        self._token = token
        self._nonce = nonce
        self._server_nonce = ""
        self._frames = Frames()
        self._transport: asyncio.Transport | None = None
        self.welcomed = welcomed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._received(message)
        except ProtocolViolation:
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.welcomed.done():
            self.welcomed.set_result(False)
        self._client.lost(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _received(self, message: msgspec.Struct) -> None:
        admitted = self.welcomed.done()
        match message:
            case Hello(nonce) if not self._server_nonce and nonce:
                self._server_nonce = nonce
                assert self._transport is not None, "a greeting comes over a connection"
                said = proof(self._token, "client", nonce, self._nonce)
                self._transport.write(frame(Answer(self._nonce, said)))
            case Welcome(said, counters) if self._server_nonce and not admitted:
                if not hmac.compare_digest(said, proof(self._token, "server", self._server_nonce, self._nonce)):
                    raise ProtocolViolation("push: the server does not know the token")
                self._client.admitted(self, counters)
                self.welcomed.set_result(True)
            case Notice() if admitted:
                self._client.publish(message)
            case _:
                raise ProtocolViolation(f"push: {type(message).__name__} out of turn")


def _write_private(file: Path, data: bytes) -> None:
    """Replace ``file`` by one that no other user can read at any moment."""
    temporary = file.with_name(file.name + "~")
    temporary.unlink(missing_ok=True)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, stat.S_IRUSR | stat.S_IWUSR)
    with os.fdopen(descriptor, "wb") as opened:
        opened.write(data)
    temporary.replace(file)


def _read_private(file: Path) -> Address | None:
    """Return the address in ``file`` if only this user can access it; otherwise another user could push notices."""
    try:
        with file.open("rb") as opened:
            status = os.fstat(opened.fileno())
            if status.st_uid != os.getuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
                return None
            return msgspec.json.decode(opened.read(FRAME_BYTES_MAX), type=Address)
    except (OSError, msgspec.MsgspecError):
        return None
