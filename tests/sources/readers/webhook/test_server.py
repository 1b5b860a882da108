"""A webhook answers over a real socket as its table says; what it acknowledged is durable."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
from contextlib import asynccontextmanager

import pytest
from webhook_place import Post

from strandline.errors import CorruptionError, FencedError, Unavailable
from strandline.sources.readers.webhook.inbox import Request
from strandline.sources.readers.webhook.server import HEAD_BYTES_MAX, LINE_BYTES_MAX, WebhookServer


class Site:
    """A server that listens, and what it has stored."""

    def __init__(self, post, inbox, server):
        self.post, self.inbox, self.server = post, inbox, server

    async def connect(self, **options):
        return await asyncio.open_connection("127.0.0.1", self.server.port, **options)

    async def raw(self, data, **options):
        """Send bytes over a connection of their own; return status, headers and body of each answer."""
        reader, writer = await self.connect(**options)
        writer.write(data)
        found = await answers(reader)
        writer.close()
        return found

    async def send(self, body=b'{"n": 1}', *, method="POST", path="/numbers", drop=(), **headers):
        """Send one request; return its answer."""
        given = {"Host": "localhost", "Content-Length": str(len(body)), "Connection": "close"}
        given |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if name not in drop)
        (answer,) = await self.raw(f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        return answer

    def stored(self):
        return [message for _, _, message in self.inbox.messages(0, self.inbox.next)]


async def answers(reader):
    """Read answers to the end of a connection."""
    found = []
    while head := (await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""):
        status, *lines = head.decode().strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await reader.readexactly(int(headers.get("Content-Length", "0")))
        found.append((int(status.split()[1]), headers, json.loads(body) if body else None))
        if headers.get("Connection") == "close":
            break
    return found


@asynccontextmanager
async def site(**options):
    """Run a server with these options."""
    post = Post(**options)
    inbox = await post.inbox()
    server = WebhookServer(inbox, post.options)
    await server.listen()
    try:
        yield Site(post, inbox, server)
    finally:
        server.close()


def run(body, **options):
    """Run a test's body with a server."""

    async def whole():
        async with site(**options) as here:
            await body(here)

    asyncio.run(whole())


def test_an_acknowledged_request_is_durable_and_says_where():
    """Damage: a sender believes what a crash takes away."""

    async def body(here):
        status, _, said = await here.send(b'[{"n": 1}, {"n": 2}]', Content_Type="application/json")
        assert (status, said) == (200, {"offset": 0, "messages": 2})
        status, _, said = await here.send(b'{"n": 3}\n{"n": 4}\n', Content_Type="application/x-ndjson")
        assert (status, said) == (200, {"offset": 2, "messages": 2})
        again = await here.post.inbox()
        assert [m for _, _, m in again.messages(0, 4)] == [b'{"n": 1}', b'{"n": 2}', b'{"n": 3}', b'{"n": 4}']

    run(body)


def test_the_same_key_is_the_same_request():
    """Damage: a retry doubles what it repeats."""

    async def body(here):
        first = await here.send(Idempotency_Key="k")
        again = await here.send(Idempotency_Key="k")
        other = await here.send(b'{"n": 2}', Idempotency_Key="k")
        assert (first[0], first[2]) == (200, {"offset": 0, "messages": 1})
        assert (again[0], again[2]) == (200, {"offset": 0, "messages": 1, "again": True})
        assert other[0] == 422
        assert here.stored() == [b'{"n": 1}']

    run(body)


def test_what_cannot_be_decoded_is_kept():
    """Damage: a sender with a defect ignores its answer, or gets none, and no operator sees that rows are missing."""

    async def body(here):
        deep = b"[" * 2_000 + b"]" * 2_000
        for content in (b"{", b"[1,", b"\xff\xfe", deep):
            assert (await here.send(content, Content_Type="application/json"))[0] == 200
        assert here.stored() == [b"{", b"[1,", b"\xff\xfe", deep]

    run(body, max_request=10_000)


@pytest.mark.parametrize(
    ("request_of", "status"),
    [
        ({"method": "GET", "body": b""}, 405),
        ({"path": "/other"}, 404),
        ({"path": "/numbers/"}, 404),
        ({"body": b""}, 400),
        ({"body": b" \n", "Content_Type": "application/x-ndjson"}, 400),
        ({"body": b"[]", "Content_Type": "application/json"}, 400),
        ({"drop": ("Content-Length",), "body": b""}, 411),
        ({"Content_Length": "x"}, 400),
        ({"Content_Length": "+8"}, 400),
        ({"Content_Length": "99999999999"}, 413),
        ({"body": b"x" * 1001}, 413),
        ({"Content_Encoding": "gzip"}, 415),
        ({"Transfer_Encoding": "gzip", "drop": ("Content-Length",)}, 501),
        ({"Transfer_Encoding": "chunked"}, 400),
        ({"Expect": "a miracle"}, 417),
        ({"Idempotency_Key": "x" * 256}, 400),
        ({"Idempotency_Key": ""}, 400),
        ({"Origin": "https://example.org"}, 403),
        ({"Host": "example.org"}, 403),
        ({"drop": ("Host",)}, 400),
        ({"X": "x" * LINE_BYTES_MAX}, 431),
        ({f"X-{n}": "x" for n in range(100)}, 431),
        ({f"X-{n}": "x" * 1000 for n in range(HEAD_BYTES_MAX // 1000 + 1)}, 431),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_not_taken_is_refused_and_not_stored(request_of, status):
    """Damage: a row of the table of answers is wrong; or what is refused is stored."""

    async def body(here):
        answered, headers, said = await here.send(**request_of)
        assert (answered, headers["Connection"]) == (status, "close")
        assert said["error"]
        assert here.stored() == []
        assert (await here.send())[0] == 200, "the server goes on"

    run(body, max_request=1000)


@pytest.mark.parametrize(
    "data",
    [
        b"hello\r\n\r\n",
        b"POST /numbers HTTP/2.0\r\nHost: localhost\r\n\r\n",
        b"POST  /numbers HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /numbers HTTP/1.1\nHost: localhost\n\n" + b" " * LINE_BYTES_MAX + b"\r\n\r\n",
        b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nContent-Length : 1\r\n\r\na",
        b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nA: b\r\n c\r\nContent-Length: 1\r\n\r\na",
        b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nA: b\x00\r\nContent-Length: 1\r\n\r\na",
        b"POST /numbers HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFF\r\n",
    ],
)
def test_what_is_no_request_is_refused(data):
    """Damage: this server and a proxy before it see different requests in the same bytes."""

    async def body(here):
        ((status, headers, _),) = await here.raw(data)
        assert status in {400, 413, 431}
        assert headers["Connection"] == "close"
        assert here.stored() == []

    run(body)


def test_a_connection_carries_many_requests_with_a_length_or_in_chunks():
    """Damage: senders pay for a connection a message; or the second request is read from within the first."""
    one = b'POST /numbers HTTP/1.1\r\nHost: localhost:1\r\nContent-Length: 7\r\n\r\n{"n":1}'
    two = (
        b"POST /numbers?q=1 HTTP/1.1\r\nhost: [::1]:1\r\ntransfer-encoding: Chunked\r\n\r\n"
        b'3;a=b\r\n{"n\r\n4\r\n":2}\r\n0\r\nTrailer: x\r\n\r\n'
    )
    last = b'POST /numbers HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 7\r\n\r\n{"n":3}'

    async def body(here):
        assert [status for status, _, _ in await here.raw(one + two + one + last)] == [200] * 4
        assert here.stored() == [b'{"n":1}', b'{"n":2}', b'{"n":1}', b'{"n":3}']

    run(body)


def test_a_sender_that_waits_for_a_word_gets_it():
    """Damage: clients that send a large body wait a second for each."""

    async def body(here):
        reader, writer = await here.connect()
        writer.write(b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nExpect: 100-continue\r\nContent-Length: 7\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b'{"n":1}')
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()

    run(body)


def test_a_request_that_does_not_arrive_is_given_up():
    """Damage: senders that stop in the middle hold connections for ever."""

    async def body(here):
        ((status, _, _),) = await here.raw(b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{")
        assert status == 408
        assert here.stored() == []

    run(body, timeout=50)


def test_a_request_that_breaks_off_is_not_stored():
    """Damage: half a body is a message."""

    async def body(here):
        _, writer = await here.connect()
        writer.write(b"POST /numbers HTTP/1.1\r\nHost: localhost\r\nContent-Length: 7\r\n\r\n{")
        writer.close()
        await writer.wait_closed()
        assert (await here.send())[0] == 200
        assert here.stored() == [b'{"n": 1}']

    run(body)


def test_with_a_token_no_program_sends_without_it():
    """Damage: any program that reaches the port writes rows."""

    async def body(here):
        for given in (
            {},
            {"Authorization": "Bearer x"},
            {"Authorization": "s3cret"},
            {"Authorization": "Basic s3cret"},
        ):
            status, headers, _ = await here.send(path="/elsewhere", **given)
            assert (status, headers["WWW-Authenticate"]) == (401, "Bearer"), (
                "and it does not learn which paths there are"
            )
        status, _, _ = await here.send(Authorization="Bearer s3cret", Host="example.org")
        assert status == 200

    run(body, token="s3cret")


def test_while_too_much_waits_senders_learn_when_to_come_back():
    """Damage: a source that stands still takes all memory; or a sender is refused for good."""

    async def body(here):
        assert (await here.send(b"x" * 500))[0] == 200
        status, headers, _ = await here.send(b"y" * 500)
        assert (status, headers["Retry-After"]) == (429, "1")
        await here.inbox.forget(1)
        assert (await here.send(b"y" * 500))[0] == 200

    run(body, max_request=1000, max_waiting=1000)


def test_requests_that_come_together_are_stored_together():
    """Damage: a store that takes long for an append limits a source to a few requests a second."""

    async def body(here):
        append = here.inbox._shard.append

        async def slow(*given, **options):
            await asyncio.wait_for(enough.wait(), 120)
            return await append(*given, **options)

        enough = asyncio.Event()
        here.inbox._shard.append = slow
        async with asyncio.TaskGroup() as group:
            sent = [group.create_task(here.send(b'{"n": %d}' % n)) for n in range(20)]
            while here.server._arriving < 20 * 8:
                await asyncio.wait_for(asyncio.shield(asyncio.to_thread(int)), 120)
            enough.set()
        assert sorted(task.result()[2]["offset"] for task in sent) == list(range(20))
        assert here.server._batches.appends <= 3

    run(body)


@pytest.mark.parametrize(
    ("error", "status"), [(Unavailable("away"), 503), (FencedError("fenced"), 503), (CorruptionError("path/of"), 500)]
)
def test_a_request_that_was_not_stored_is_not_acknowledged(error, status):
    """Damage: a sender believes what is lost; or it learns what only the operator should."""

    async def body(here):
        async def failing(*given, **options):
            raise error

        here.inbox._shard.append = failing
        answered, _, said = await here.send()
        assert answered == status
        assert str(error) not in said["error"]
        assert here.server.listening is isinstance(error, Unavailable)
        assert here.server.failed is (None if isinstance(error, Unavailable) else error)

    run(body)


def test_a_successor_takes_the_address_over():
    """Damage: after a take-over no process listens until an operator acts."""

    async def body():
        post = Post()
        older = WebhookServer(await post.inbox(epoch=1), post.options)
        await older.listen()
        here = Site(post, older._inbox, older)
        newer = await post.inbox(epoch=2)
        assert (await here.send())[0] == 503
        assert isinstance(older.failed, FencedError)
        assert not older.listening
        await newer.take([Request((b"x",))])
        older.close()

    asyncio.run(body())


def test_over_tls(tmp_path):
    """Damage: tokens and rows travel in the open."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )

    async def body(here):
        context = ssl.create_default_context(cafile=str(certificate))
        data = b'POST /numbers HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer t\r\nContent-Length: 7\r\n\r\n{"n":1}'
        reader, writer = await here.connect(ssl=context, server_hostname="localhost")
        writer.write(data)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        writer.close()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await here.raw(data)

    run(body, token="t", certificate=str(certificate), certificate_key_file=str(key))
