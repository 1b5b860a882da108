"""HTTP/1.1 as a server reads it: one request from a stream, strictly, within limits of size.

What a message means must not be a matter of opinion between this server and a proxy before it.  So a request is refused
that gives its length twice or in two ways, folds or repeats what may stand once, or ends lines by anything but CRLF.
Nothing here holds more of a request than its limit, or waits: the caller has the clock.

Source: RFC 9112 (HTTP/1.1: message syntax, section 6.3 on length, 11.2 on smuggling), RFC 9110.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

import msgspec

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
