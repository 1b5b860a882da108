"""Traces: each tick and each statement as a span of OpenTelemetry, with its steps below it, sent by OTLP over HTTP.

Nothing of OpenTelemetry is imported where nothing is configured.  A span holds kinds, names of views, counts and times:
no text of a statement, and no row.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

from strandline import extras
from strandline.controller.location.config import Config
from strandline.errors import ConfigError
from strandline.options import resolve_reference
from strandline.serving.traffic import Statement

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""The environment variables that say where traces go, where the configuration does not."""
PATH: Final = "/v1/traces"
FLUSH_MS: Final = 2_000
"""For so long the end of the process waits for spans to be sent."""
_NS: Final = 1_000_000
_Child: TypeAlias = tuple[str, int, int, dict[str, Any]]
"""A span below another one: its name, when it began and ended, and its attributes."""


class Traces(Protocol):
    """Where spans go."""

    def statement(self, made: Statement) -> None:
        """Send a statement."""
        ...

    def tick(self, begun_ms: int, ended_ms: int, steps: Mapping[str, Mapping[str, Any]]) -> None:
        """Send a tick; ``steps``: what the last step of each stage did, by its name, as `figures` has it."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


def traces(config: Config, location: str | None) -> Traces | None:
    """Return where spans go; None: nowhere.  ``location``: what the environment is named by in each span.

    Raises `ConfigError` if they are to be sent, and the library for that is missing, or the headers cannot be read.
    """
    configured = config.traces.get("endpoint")
    if configured is None and not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    extras.require("`traces`" if configured else ENDPOINTS[1], [extras.TRACES])
    return _Sent(configured, _headers(config), location)


def _headers(config: Config) -> dict[str, str] | None:
    if "headers" not in config.traces:
        return None
    text = resolve_reference(config.traces["headers"], base=Path())
    pairs = [each.partition("=") for each in text.split(",")]
    if not all(name.strip() and equals for name, equals, _ in pairs):
        raise ConfigError("the headers of `traces` are no list of NAME=VALUE, separated by commas")
    return {name.strip(): value.strip() for name, _, value in pairs}


class _Sent:
    """Spans in batches, sent beside everything else."""

    def __init__(self, endpoint: str | None, headers: dict[str, str] | None, location: str | None) -> None:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        whole = None if endpoint is None else endpoint.rstrip("/").removesuffix(PATH) + PATH
        named = {"service.name": "strandline", **({} if location is None else {"strandline.location": location})}
        self._provider = TracerProvider(resource=Resource.create(named), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=whole, headers=headers)))
        self._tracer = self._provider.get_tracer("strandline")
        self._trace = trace
        self._stepped: dict[str, int] = {}  # when the last step of each stage that was sent began

    def statement(self, made: Statement) -> None:
        """See `Traces.statement`."""
        steps: list[_Child] = [(each.name, each.begun_ms, each.begun_ms + each.ms, {}) for each in made.steps]
        how = {"strandline.kind": made.kind, **({} if made.error is None else {"error.type": made.error})}
        self._send("statement", made.begun_ms, made.begun_ms + made.ms, how, steps, failed=made.error is not None)

    def tick(self, begun_ms: int, ended_ms: int, steps: Mapping[str, Mapping[str, Any]]) -> None:
        """See `Traces.tick`.  A step that took longer than the tick in which it was begun belongs to a later one."""
        fresh = {
            stage: done for stage, done in steps.items() if done["at_ms"] and self._stepped.get(stage) != done["at_ms"]
        }
        self._stepped |= {stage: done["at_ms"] for stage, done in fresh.items()}
        children = [
            (
                "step",
                done["at_ms"],
                done["at_ms"] + done["ms"],
                {
                    "strandline.stage": stage,
                    "strandline.updates": done["rows_read"],
                    "strandline.window": done["window"],
                },
            )
            for stage, done in fresh.items()
        ]
        self._send("tick", begun_ms, ended_ms, {"strandline.steps": len(children)}, children)

    def close(self) -> None:
        """See `Traces.close`."""
        self._provider.force_flush(FLUSH_MS)
        self._provider.shutdown()

    def _send(
        self,
        name: str,
        begun_ms: int,
        ended_ms: int,
        how: dict[str, Any],
        children: list[_Child],
        *,
        failed: bool = False,
    ) -> None:
        whole = self._tracer.start_span(name, start_time=begun_ms * _NS, attributes=how)
        if failed:
            whole.set_status(self._trace.StatusCode.ERROR)
        below = self._trace.set_span_in_context(whole)
        for child, begun, ended, said in children:
            self._tracer.start_span(child, below, start_time=begun * _NS, attributes=said).end(ended * _NS)
        whole.end(ended_ms * _NS)
