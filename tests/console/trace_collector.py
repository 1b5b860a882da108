"""A collector of traces: a receiver of OTLP over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass
class Collector:
    """A receiver of OTLP over HTTP: what was posted, where and with which headers."""

    url: str = ""
    posted: list[tuple[str, dict[str, str], ExportTraceServiceRequest]] = field(default_factory=list)

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for _, _, request in self.posted
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector that listens."""
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            request = ExportTraceServiceRequest.FromString(body)
            found.posted.append((self.path, {name.lower(): value for name, value in self.headers.items()}, request))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()  # noqa: TID251 - a server of a test
        found.url = f"http://127.0.0.1:{server.server_port}"
        yield found
        server.shutdown()


def told(attributes: Any) -> dict[str, Any]:
    """Return attributes as values."""
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
