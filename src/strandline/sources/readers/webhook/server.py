"""The socket side of a webhook: HTTP/1.1, which senders are let in, and what is answered.

| answer | when |
| --- | --- |
| 200 `{"offset": …, "messages": …}` | the request is durable; `"again": true`: it was before, by its key |
| 400 | it is no request of HTTP/1.1, or its body holds no message |
| 401, 403 | the token is wrong; without a token: a browser sends it, or it names another host than this machine |
| 404, 405, 411, 413, 415, 417, 431, 501 | another path, method, length, size, encoding … than is taken |
| 408 | it did not arrive in time |
| 422 | its `Idempotency-Key` came before with other content |
| 429, `Retry-After` | what waits to be ingested exceeds the limit: nothing was kept |
| 503, `Retry-After` | the store does not answer, or another environment has taken over: send it again |

A body is cut into messages, none of whose bytes is changed; whether a message can be decoded is not asked.  A message
that cannot be decoded is acknowledged, and becomes a row of the error half, where an operator sees it.  A sender that
got 400 would drop it in silence.
"""

from __future__ import annotations

import asyncio
import codecs
import hmac
import re
import ssl
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec

from strandline.errors import FencedError, StrandlineError
from strandline.sources.readers.webhook.inbox import Batches, Full, Inbox, Request, Reused, Taken, may_be_sent_again
from strandline.sources.readers.webhook.options import Body, WebhookOptions, loopback

LINE_BYTES_MAX: Final = 8 << 10
HEADERS_MAX: Final = 64
HEAD_BYTES_MAX: Final = 32 << 10
READ_BYTES: Final = 64 << 10
"""What a stream may buffer: ``asyncio.start_server`` gets it as its limit."""
assert LINE_BYTES_MAX <= HEAD_BYTES_MAX <= READ_BYTES

_REQUEST: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([!-~]+) HTTP/1\.([01])")
_HEADER: Final = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*((?:[\t\x20-\x7e\x80-\xff]*[\x21-\x7e\x80-\xff])?)[ \t]*"
)
_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[\t\x20-\x7e\x80-\xff]*)?")
_LENGTH: Final = re.compile(rb"[0-9]{1,15}")
_ONCE: Final = frozenset(
    {
        "authorization",
        "content-length",
        "content-type",
        "expect",
        "host",
        "idempotency-key",
        "origin",
        "transfer-encoding",
    }
)


class Refused(Exception):
    """The request is answered by ``status``, and its connection is closed."""

    def __init__(self, status: HTTPStatus, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, reason)
        self.status = status
        self.reason = reason
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body.  Names of headers are in lower case; values are bytes as they came."""

    method: str
    target: str
    headers: Mapping[str, bytes]
    persistent: bool

    def text(self, name: str) -> str:
        """Return a header's value, or nothing."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def path(self) -> str:
        """The path of the target, without a query."""
        return self.target.partition("?")[0]

    @property
    def length(self) -> int | None:
        """The length of the body; None if it comes in chunks.  Raises `Refused` if it cannot be told for certain."""
        coding, length = self.headers.get("transfer-encoding"), self.headers.get("content-length")
        if coding is not None:
            if length is not None:
                raise Refused(HTTPStatus.BAD_REQUEST, "the body's length is given in two ways")
            if coding.lower() != b"chunked":
                raise Refused(HTTPStatus.NOT_IMPLEMENTED, "chunked is the one transfer coding that is known")
            return None
        if length is None:
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "the body's length is not given")
        if not _LENGTH.fullmatch(length):
            raise Refused(HTTPStatus.BAD_REQUEST, "Content-Length is no number")
        return int(length)


async def read_head(stream: asyncio.StreamReader) -> Head | None:
    """Return the next request's head; None if the other side has ended the connection between requests.

    Raises `Refused` for what is no request, or too much of one, and ``asyncio.IncompleteReadError`` if it breaks off.

    This server and a proxy before it must understand a message alike.  So a request is refused that gives its length
    twice or in two ways, folds or repeats a header that may be there once, or ends lines by anything but CRLF.  Reading
    holds no more of a request than its limit, and sets no time limit: the caller has the clock.

    Source: RFC 9112 (HTTP/1.1: message syntax, section 6.3 on length, 11.2 on smuggling), RFC 9110.
    """
    first = await _line(stream, or_end=True)
    if first is None:
        return None
    found = _REQUEST.fullmatch(first)
    if found is None:
        raise Refused(HTTPStatus.BAD_REQUEST, "this is no request of HTTP/1.1")
    headers, read = dict[str, bytes](), len(first)
    while line := await _line(stream):
        read += len(line)
        if len(headers) == HEADERS_MAX or read > HEAD_BYTES_MAX:
            raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "there are too many headers")
        header = _HEADER.fullmatch(line)
        if header is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "a line is no header")
        name, value = header[1].decode().lower(), header[2]
        if name in headers:
            if name in _ONCE:
                raise Refused(HTTPStatus.BAD_REQUEST, f"header {name} is there twice")
            value = headers[name] + b", " + value
        headers[name] = value
    method, target, minor = found[1].decode(), found[2].decode(), found[3]
    if minor == b"1" and "host" not in headers:
        raise Refused(HTTPStatus.BAD_REQUEST, "header host is missing")
    if minor == b"0" and "transfer-encoding" in headers:
        raise Refused(HTTPStatus.BAD_REQUEST, "HTTP/1.0 knows no transfer coding")
    options = {each.strip() for each in headers.get("connection", b"").lower().split(b",")}
    return Head(method, target, headers, minor == b"1" and b"close" not in options)


async def read_body(stream: asyncio.StreamReader, head: Head, most: int, go_on: Callable[[], Awaitable[None]]) -> bytes:
    """Return the body of a request; ``go_on`` is called where its sender waits for a word before it sends one.

    Raises `Refused` if it has more than ``most`` bytes, as soon as that is known, and as `read_head` does.
    """
    length = head.length
    if length is not None and length > most:
        raise _too_large(most)
    if expected := head.headers.get("expect"):
        if expected.lower() != b"100-continue":
            raise Refused(HTTPStatus.EXPECTATION_FAILED, "100-continue is the one expectation that is known")
        await go_on()
    if length is not None:
        return await stream.readexactly(length)
    body = bytearray()
    while size := _size(await _line(stream)):
        if len(body) + size > most:
            raise _too_large(most)
        body += await stream.readexactly(size)
        if await stream.readexactly(2) != b"\r\n":
            raise Refused(HTTPStatus.BAD_REQUEST, "a chunk is longer than it says")
    trailing = 0
    while line := await _line(stream):
        trailing += len(line)
        if trailing > HEAD_BYTES_MAX:
            raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "there are too many trailers")
    return bytes(body)


def answer(status: HTTPStatus, body: Mapping[str, object], headers: Mapping[str, str], *, persistent: bool) -> bytes:
    """Return a whole response; its body is JSON."""
    content = msgspec.json.encode(body) + b"\n"
    lines = {
        "Content-Type": "application/json",
        "Content-Length": str(len(content)),
        "Connection": "keep-alive" if persistent else "close",
        **headers,
    }
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status.value} {status.phrase}\r\n{head}\r\n".encode("latin-1") + content


CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


async def _line(stream: asyncio.StreamReader, *, or_end: bool = False) -> bytes | None:
    try:
        line = await stream.readuntil(b"\r\n")
    except asyncio.IncompleteReadError as error:
        if or_end and not error.partial:
            return None
        raise
    except asyncio.LimitOverrunError:
        line = b""
    if not line or len(line) > LINE_BYTES_MAX:
        raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "a line is too long")
    return line[:-2]


def _size(line: bytes | None) -> int:
    found = _CHUNK.fullmatch(line or b"")
    if found is None:
        raise Refused(HTTPStatus.BAD_REQUEST, "a chunk has no size")
    return int(found[1], 16)


def _too_large(most: int) -> Refused:
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have {most} bytes; send several")


_elements = msgspec.json.Decoder(list[msgspec.Raw])


def messages(body: bytes, how: Body, content_type: str) -> tuple[bytes, ...]:
    r"""Return the messages of a body; none if it holds none.

    >>> messages(b'[{"a": 1}, {"a":2}]', Body.AUTO, "application/json; charset=utf-8")
    (b'{"a": 1}', b'{"a":2}')
    >>> messages(b'{"a":1}\r\n\n{"a":2}', Body.AUTO, "application/x-ndjson"), messages(b"[1", Body.JSON, "")
    ((b'{"a":1}', b'{"a":2}'), (b'[1',))
    >>> messages(b"\xef\xbb\xbf1,a\n2,b", Body.LINES, ""), messages(b"\xef\xbb\xbf[1,2]", Body.JSON, "")
    ((b'1,a', b'2,b'), (b'1', b'2'))

    A byte order mark before a body that is cut belongs to no message.  A body that cannot be cut as the source says is
    one message as a whole, and then one error, with its bytes, in the source's error half.
    """
    cut = how if how is not Body.AUTO else of_type(content_type)
    if cut is not Body.WHOLE:
        body = body.removeprefix(codecs.BOM_UTF8)
    match cut:
        case Body.LINES:
            return tuple(line.removesuffix(b"\r") for line in body.split(b"\n") if line.strip())
        case Body.JSON if body.lstrip()[:1] == b"[":
            try:
                return tuple(bytes(element) for element in _elements.decode(body))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):  # the last: it is nested too deep
                return (body,)
        case Body.JSON:
            return (body,) if body.strip() else ()
        case _:
            return (body,) if body else ()


def of_type(content_type: str) -> Body:
    """Return how a body of this type is cut.

    >>> [of_type(each).value for each in ("application/json", "application/vnd.x+json", "text/csv", "text/plain", "")]
    ['json', 'json', 'lines', 'whole', 'whole']
    """
    kind = content_type.partition(";")[0].strip().lower()
    if kind in {"application/x-ndjson", "application/jsonl", "application/ndjson", "text/csv"}:
        return Body.LINES
    return Body.JSON if kind == "application/json" or kind.endswith("+json") else Body.WHOLE


CONNECTIONS_MAX: Final = 256
KEY_CHARS_MAX: Final = 255
RETRY_AFTER_S: Final = 1
LINGER_S: Final = 1.0
LINGER_BYTES: Final = 1 << 20
"""What is read of a request that was refused, so that its sender reads the answer: a reset would take it away."""
_RETRY: Final = {"Retry-After": str(RETRY_AFTER_S)}
_BROKEN: Final = (ConnectionError, asyncio.IncompleteReadError, ssl.SSLError, TimeoutError)


class WebhookServer:
    """Listens for one source.  ``failed``: why it stopped for good."""

    def __init__(self, inbox: Inbox, options: WebhookOptions) -> None:
        self._inbox = inbox
        self._options = options
        self._batches = Batches(inbox)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._arriving = 0  # bytes of requests that are being read or stored
        self.failed: StrandlineError | None = None

    @property
    def listening(self) -> bool:
        """Whether it accepts connections."""
        return self._server is not None

    @property
    def port(self) -> int:
        """The port that it listens on."""
        assert self._server is not None, "it listens"
        return int(self._server.sockets[0].getsockname()[1])

    async def listen(self) -> None:
        """Begin to accept connections.  Raises `OSError` if the address, or the certificate, cannot be used."""
        host, port = self._options.place
        self._server = await asyncio.start_server(
            self._serve, host, port, limit=READ_BYTES, ssl=self._tls(), start_serving=True
        )

    def close(self) -> None:
        """Stop: nothing is acknowledged from now on."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._open):
            writer.transport.abort()

    def _tls(self) -> ssl.SSLContext | None:
        certificate, key = self._options.certificate, self._options.certificate_key_file
        if certificate is None or key is None:
            return None
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        return context

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except _BROKEN:
            pass  # the sender knows: it has no answer
        finally:
            self._open.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer the next request of a connection; return whether another may follow."""
        persistent, headers = False, dict[str, str]()
        status, body = HTTPStatus.OK, dict[str, object]()
        try:
            async with asyncio.timeout(self._options.timeout / 1000):
                head = await read_head(reader)
                if head is None:
                    return False
                self._admit(head)
                with self._arrives(head):
                    data = await read_body(reader, head, self._options.max_request, lambda: _go_on(writer))
            with self._counted(len(data)):
                body = await self._taken(self._request(head, data))
            persistent = head.persistent and self.listening
        except Refused as refused:
            status, body, headers = refused.status, {"error": refused.reason}, dict(refused.headers)
        except TimeoutError:
            status, body = HTTPStatus.REQUEST_TIMEOUT, {"error": "the request did not arrive in time"}
        except StrandlineError as error:
            status, body, headers = self._not_kept(error)
        async with asyncio.timeout(self._options.timeout / 1000):
            writer.write(answer(status, body, headers, persistent=persistent))
            await writer.drain()
        if not persistent and status is not HTTPStatus.OK:
            await _linger(reader, writer)
        return persistent

    def _admit(self, head: Head) -> None:
        """Raise `Refused` unless such a request may be sent here; its body is not read yet."""
        options = self._options
        if len(self._open) > CONNECTIONS_MAX:
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE, "there are too many connections", _RETRY)
        if options.token is not None:
            given = head.headers.get("authorization", b"")
            if not hmac.compare_digest(given, b"Bearer " + options.token.encode()):
                why = "the token is another one" if given else "there is no token (Authorization: Bearer …)"
                raise Refused(HTTPStatus.UNAUTHORIZED, why, {"WWW-Authenticate": "Bearer"})
        elif "origin" in head.headers or not _of_this_machine(head.text("host")):
            # A page in a browser of this machine can reach loopback, also under a name of its own.
            raise Refused(HTTPStatus.FORBIDDEN, "without a token, programs of this machine alone may send, by its name")
        if head.path != options.path:
            raise Refused(HTTPStatus.NOT_FOUND, "the source at this address has another path")
        if head.method != "POST":
            raise Refused(HTTPStatus.METHOD_NOT_ALLOWED, "send by POST", {"Allow": "POST"})
        if head.text("content-encoding").strip().lower() not in {"", "identity"}:
            raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "send the body as it is, without Content-Encoding")
        key = head.text("idempotency-key")
        if "idempotency-key" in head.headers and not (0 < len(key) <= KEY_CHARS_MAX and key.isascii()):
            raise Refused(HTTPStatus.BAD_REQUEST, f"an Idempotency-Key has 1 to {KEY_CHARS_MAX} ASCII characters")

    @contextmanager
    def _arrives(self, head: Head) -> Iterator[None]:
        """Reserve room for a body that is about to be read; raise `Refused` if there is none."""
        length = head.length
        most = self._options.max_request if length is None else min(length, self._options.max_request)
        if self._inbox.waiting + self._arriving + most > max(self._options.max_waiting, most):
            raise _full(self._inbox.waiting)
        with self._counted(most):
            yield

    @contextmanager
    def _counted(self, size: int) -> Iterator[None]:
        self._arriving += size
        try:
            yield
        finally:
            self._arriving -= size

    def _request(self, head: Head, body: bytes) -> Request:
        found = messages(body, self._options.body, head.text("content-type"))
        if not found:
            raise Refused(HTTPStatus.BAD_REQUEST, "the body holds no message")
        kept = tuple((name, head.headers[name]) for name in self._options.kept_headers if name in head.headers)
        return Request(found, head.text("idempotency-key"), kept)

    async def _taken(self, request: Request) -> dict[str, object]:
        """Make a request durable; return the body of the answer."""
        if self.failed is not None:
            raise self.failed
        match await self._batches.offer(request):
            case Taken(first, count, again):
                return {"offset": first, "messages": count, **({"again": True} if again else {})}
            case Full(waiting):
                raise _full(waiting)
            case Reused():
                raise Refused(HTTPStatus.UNPROCESSABLE_ENTITY, "this Idempotency-Key came before with other content")

    def _not_kept(self, error: StrandlineError) -> tuple[HTTPStatus, dict[str, object], dict[str, str]]:
        """Return the answer where a store failed; its message may name what is no sender's business."""
        if isinstance(error, FencedError):
            self._stop(error)
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error": "another environment has taken over"}, dict(_RETRY)
        if may_be_sent_again(error):
            said = "the store does not answer: whether the request was kept is not known"
            return HTTPStatus.SERVICE_UNAVAILABLE, {"error": said}, dict(_RETRY)
        self._stop(error)
        return HTTPStatus.INTERNAL_SERVER_ERROR, {"error": "the source cannot be written"}, {}

    def _stop(self, error: StrandlineError) -> None:
        """Accept nothing more, so that a successor can listen; those that are connected get an answer."""
        self.failed = error
        if self._server is not None:
            self._server.close()
            self._server = None


def _full(waiting: int) -> Refused:
    return Refused(HTTPStatus.TOO_MANY_REQUESTS, f"{waiting} bytes wait to be ingested; send it again", _RETRY)


def _of_this_machine(host: str) -> bool:
    """Tell whether a Host header names this machine; it may have a port."""
    name, separator, port = host.strip().rpartition(":")
    return loopback((name if separator and port.isdecimal() else host.strip()).strip("[]").lower())


async def _go_on(writer: asyncio.StreamWriter) -> None:
    writer.write(CONTINUE)
    await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read some of what the sender is still sending, so that it comes to read the answer."""
    left = LINGER_BYTES
    with suppress(*_BROKEN):
        if writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (read := await reader.read(READ_BYTES)):
                left -= len(read)
