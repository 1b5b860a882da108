"""The socket side of a webhook: connections, who may send, and what is answered.

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

What a body means is not asked: a message that cannot be decoded is acknowledged, and becomes a row of the error half,
where an operator sees it.  A sender that got 400 would drop it in silence.
"""

from __future__ import annotations

import asyncio
import hmac
import ssl
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from typing import Final

from strandline.errors import FencedError, StrandlineError
from strandline.sources.readers.webhook import http
from strandline.sources.readers.webhook.batches import Batches, may_be_sent_again
from strandline.sources.readers.webhook.bodies import messages
from strandline.sources.readers.webhook.http import Head, Refused
from strandline.sources.readers.webhook.inbox import Full, Inbox, Request, Reused, Taken
from strandline.sources.readers.webhook.options import WebhookOptions, loopback

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
            self._serve, host, port, limit=http.READ_BYTES, ssl=self._tls(), start_serving=True
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
                head = await http.read_head(reader)
                if head is None:
                    return False
                self._admit(head)
                with self._arrives(head):
                    data = await http.read_body(reader, head, self._options.max_request, lambda: _go_on(writer))
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
            writer.write(http.answer(status, body, headers, persistent=persistent))
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
    writer.write(http.CONTINUE)
    await writer.drain()


async def _linger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Read some of what the sender is still sending, so that it comes to read the answer."""
    left = LINGER_BYTES
    with suppress(*_BROKEN):
        if writer.can_write_eof():
            writer.write_eof()
        async with asyncio.timeout(LINGER_S):
            while left > 0 and (read := await reader.read(http.READ_BYTES)):
                left -= len(read)
