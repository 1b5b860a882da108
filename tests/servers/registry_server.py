"""A schema registry of our own: the few calls of Confluent's API that reading takes, over real HTTP, in a thread."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event
from typing import Any
from unittest.mock import patch
from urllib.parse import unquote, urlsplit

from strandline.sources.readers.kafka import reader
from strandline.sources.readers.kafka import registry as client

PATIENCE_S = 120.0
USER, PASSWORD = "reader", "not-a-secret"


@dataclass
class RegistryServer:
    """A running registry.  ``asked`` are the paths of all requests, in order.

    ``guarded``: it wants `USER` and `PASSWORD`.  ``broken``: it answers with this status.  ``answers``: while it is
    cleared nothing is answered.
    """

    port: int
    schemas: dict[int, str] = field(default_factory=dict)
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    guarded: bool = False
    broken: int | None = None
    answers: Event = field(default_factory=Event)

    def __post_init__(self) -> None:
        """Answer at first."""
        self.answers.set()

    @property
    def url(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def register(self, subject: str, schema: str) -> int:
        """Give a subject a new version; return the schema's id."""
        known = next((each for each, text in self.schemas.items() if text == schema), None)
        number = known if known is not None else len(self.schemas) + 1
        self.schemas[number] = schema
        self.subjects.setdefault(subject, []).append(number)
        return number

    def answer(self, path: str) -> tuple[int, Any]:
        """Return the status and the body of the answer to a GET."""
        self.asked.append(path)
        self.answers.wait()
        if self.broken is not None:
            return self.broken, {"error_code": self.broken, "message": "out of order"}
        match [unquote(part) for part in urlsplit(path).path.strip("/").split("/")]:
            case ["schemas", "ids", number] if int(number) in self.schemas:
                return 200, {"schema": self.schemas[int(number)]}
            case ["schemas", "ids", _]:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            case ["subjects"]:
                return 200, sorted(self.subjects)
            case ["subjects", subject, "versions"] if subject in self.subjects:
                return 200, list(range(1, len(self.subjects[subject]) + 1))
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                ids = self.subjects[subject]
                at = len(ids) if version == "latest" else int(version)
                return 200, {"subject": subject, "version": at, "id": ids[at - 1], "schema": self.schemas[ids[at - 1]]}
            case ["subjects", *_]:
                return 404, {"error_code": 40401, "message": "Subject not found"}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}


@contextmanager
def running() -> Iterator[RegistryServer]:
    """Run a registry that knows nothing yet, and whose answers a reader waits for, however late they are."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wanted = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
            status, body = registry.answer(self.path)
            if registry.guarded and self.headers["Authorization"] != wanted:
                status, body = 401, {"error_code": 401, "message": "Unauthorized"}
            data = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry = RegistryServer(server.server_port)
        with ThreadPoolExecutor(1) as threads:
            threads.submit(server.serve_forever, 0.02)
            with (
                patch.object(reader, "REGISTRY_SECONDS_MAX", PATIENCE_S),
                patch.object(client, "ANSWER_SECONDS_MAX", PATIENCE_S),
            ):
                yield registry
            server.shutdown()
