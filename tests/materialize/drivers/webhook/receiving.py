"""A receiver of webhooks, over real HTTP, in threads: it keeps what it took, and answers as a test says."""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from strandline.materialize.drivers.webhook.driver import WebhookDriver
from strandline.materialize.drivers.webhook.options import WebhookEndpoint
from strandline.materialize.protocol.task import Checkpoint
from strandline.testing.contracts.drivers.push_contract import Pushed
from strandline.testing.doubles import HandClock


@dataclass(frozen=True)
class Answer:
    """What becomes of a request; ``status`` None: the connection is cut; ``taken``: its changes are kept."""

    status: int | None = 204
    headers: Mapping[str, str] = field(default_factory=dict)
    text: str = ""
    taken: bool = True


TAKEN = Answer()
CUT = Answer(None, taken=False)
CUT_AFTER = Answer(None)


@dataclass(frozen=True)
class Got:
    """A request."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def id(self) -> str:
        """The key by which it is dropped if it comes again."""
        return self.headers["Idempotency-Key"]

    @property
    def said(self) -> Any:
        """Its body as JSON."""
        return json.loads(self.body)


@dataclass
class Receiver:
    """A running receiver.  ``got``: all requests; ``taken``: those whose changes it kept."""

    port: int
    scheme: str = "http"
    got: list[Got] = field(default_factory=list)
    taken: list[Got] = field(default_factory=list)
    answer: Callable[[int], Answer] = lambda _: TAKEN

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"{self.scheme}://localhost:{self.port}/hooks?of=shop"

    def take(self, request: Got) -> Answer:
        """Keep a request; return the answer."""
        answer = self.answer(len(self.got))
        self.got.append(request)
        if answer.taken:
            self.taken.append(request)
        return answer


@contextmanager
def receiving(certificate: Path | None = None) -> Iterator[Receiver]:
    """Run a receiver that takes everything; ``certificate``: it speaks TLS, and this file has its key, too."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = receiver.take(Got(self.path, dict(self.headers), body))
            if answer.status is None:
                self.close_connection = True
                return
            data = answer.text.encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            server.handle_error = lambda *_: None  # type: ignore[method-assign]  # clients that do not trust it
        receiver = Receiver(server.server_port, "http" if certificate is None else "https")
        with ThreadPoolExecutor(1) as threads:
            threads.submit(server.serve_forever, 0.02)
            yield receiver
            server.shutdown()


class Hooks:
    """A receiver for the contract of pushes; requests are small, so that a transaction has several."""

    exactly_once = False
    stride = 3

    def __init__(self, receiver: Receiver, **options: Any) -> None:
        self.receiver = receiver
        self.clock = HandClock(1_700_000_000_000)
        self.options = WebhookEndpoint(**{"url": receiver.url, "batch_rows": 2, "retry_backoff": 100, **options})
        self._before = len(receiver.taken)

    def driver(self) -> WebhookDriver:
        """Return one more driver to the receiver."""
        return WebhookDriver(self.options, self.clock)

    def pushed(self, resource: str) -> list[Pushed]:
        """Return the changes of a resource, in the order in which they were taken."""
        found = []
        for said in (request.said for request in self.receiver.taken[self._before :]):
            if said["resource"] == resource:
                for place, change in enumerate(said["changes"], said["ordinal"]):
                    identity = (said["task"], said["data"], said["transaction"], place)
                    found.append(Pushed(identity, change.get("key"), change["value"]))
        return found

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return None: the runtime's log keeps it."""
        return None
