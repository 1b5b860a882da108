"""Traces: what a collector of OTLP receives, and that without one nothing of it is even imported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from console_shown import BEGUN_MS, Hands
from strandline.console.traces import ENDPOINTS, traces
from strandline.controller.location.config import Config, config_from
from strandline.errors import ConfigError
from strandline.serving.traffic import CHANGE, QUERY, Traffic
from trace_collector import Collector, collecting, told

NS = 1_000_000


@pytest.fixture
def collector() -> Iterator[Collector]:
    """A collector that listens."""
    with collecting() as found:
        yield found


@pytest.mark.parametrize("place", ["", "/", "/v1/traces"])
def test_a_tick_is_a_span_with_its_steps_below_it(collector: Collector, place: str) -> None:
    """Damage: who looks for the view that makes ticks slow sees one long span, or spans without a parent."""
    sent = traces(config_from({"traces": {"endpoint": collector.url + place}}), "/data/strand")
    assert sent is not None
    steps = {
        "by_city": {"at_ms": BEGUN_MS + 20, "ms": 70, "rows_read": 12, "window": "small"},
        "not stepped yet": {"at_ms": 0, "ms": 0, "rows_read": 0, "window": ""},
    }
    sent.tick(BEGUN_MS, BEGUN_MS + 120, steps)
    sent.tick(BEGUN_MS + 1_000, BEGUN_MS + 1_010, steps)
    sent.close()
    assert [path for path, _, _ in collector.posted] == ["/v1/traces"]
    resource = collector.posted[0][2].resource_spans[0].resource
    named = told(resource.attributes)
    assert (named["service.name"], named["strandline.location"]) == ("strandline", "/data/strand")
    ticks = [span for span in collector.spans if span.name == "tick"]
    (step,) = (span for span in collector.spans if span.name == "step")
    assert [(span.start_time_unix_nano, span.end_time_unix_nano) for span in ticks] == [
        (BEGUN_MS * NS, (BEGUN_MS + 120) * NS),
        ((BEGUN_MS + 1_000) * NS, (BEGUN_MS + 1_010) * NS),
    ]
    assert (step.parent_span_id, step.trace_id) == (ticks[0].span_id, ticks[0].trace_id)
    assert ticks[0].trace_id != ticks[1].trace_id
    assert (step.start_time_unix_nano, step.end_time_unix_nano) == ((BEGUN_MS + 20) * NS, (BEGUN_MS + 90) * NS)
    assert told(step.attributes) == {
        "strandline.stage": "by_city",
        "strandline.updates": 12,
        "strandline.window": "small",
    }


def test_a_statement_is_a_span_with_its_steps_below_it(collector: Collector) -> None:
    """Damage: a slow query cannot be told from one that waited for a tick; or its text, with values, is sent away."""
    sent = traces(config_from({"traces": {"endpoint": collector.url}}), None)
    assert sent is not None
    clock = Hands()
    traffic = Traffic(clock)
    traffic.observe = sent.statement
    with traffic.statement(QUERY):
        with traffic.step("wait"):
            clock.ms += 300
        with traffic.statement(QUERY), traffic.step("answer"):  # a call that makes another one is one statement
            clock.ms += 50
    with pytest.raises(ValueError, match="secret"), traffic.statement(CHANGE):
        raise ValueError("secret")
    sent.close()
    query, change = (span for span in collector.spans if span.name == "statement")
    below = [span for span in collector.spans if span.parent_span_id == query.span_id]
    assert [(span.name, (span.end_time_unix_nano - span.start_time_unix_nano) // NS) for span in below] == [
        ("wait", 300),
        ("answer", 50),
    ]
    assert (query.end_time_unix_nano - query.start_time_unix_nano) // NS == 350
    assert told(query.attributes) == {"strandline.kind": "query"}
    assert told(change.attributes) == {"strandline.kind": "change", "error.type": "ValueError"}
    assert (query.status.code, change.status.code) == (0, 2)
    assert all(b"secret" not in request.SerializeToString() for _, _, request in collector.posted)


def test_headers_come_from_their_reference(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a collector that wants a key refuses all spans."""
    monkeypatch.setenv("OTLP_HEADERS", "authorization=Bearer abc, x-team = data")
    sent = traces(config_from({"traces": {"endpoint": collector.url, "headers": "env:OTLP_HEADERS"}}), None)
    assert sent is not None
    sent.tick(BEGUN_MS, BEGUN_MS + 1, {})
    sent.close()
    assert {name: collector.posted[0][1][name] for name in ("authorization", "x-team")} == {
        "authorization": "Bearer abc",
        "x-team": "data",
    }
    monkeypatch.setenv("OTLP_HEADERS", "Bearer abc")
    with pytest.raises(ConfigError, match="no list of NAME=VALUE"):
        traces(config_from({"traces": {"endpoint": collector.url, "headers": "env:OTLP_HEADERS"}}), None)


def test_the_usual_environment_variable_is_heard(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an operator sets what every other program hears, and nothing comes."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    sent = traces(Config(), None)
    assert sent is not None
    sent.tick(BEGUN_MS, BEGUN_MS + 1, {})
    sent.close()
    assert [(path, span.name) for (path, _, _), span in zip(collector.posted, collector.spans, strict=True)] == [
        ("/v1/traces", "tick")
    ]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"url": "http://h:1"}, "traces has no setting 'url'; it has endpoint and headers"),
        ({"headers": "env:H"}, "traces names no endpoint"),
        ({"endpoint": "http://h:1", "headers": "authorization=abc"}, "the headers of traces are a secret"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, str], says: str) -> None:
    """Damage: a secret is stored in a project file, or a mistake in one is silent."""
    with pytest.raises(ConfigError, match=says):
        config_from({"traces": settings})


def test_without_configuration_nothing_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: everyone pays the start and the memory of a library that few use."""
    for name in ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    code = (
        "import sys; import strandline.console; from strandline.console.traces import traces; "
        "from strandline.controller.location.config import Config; assert traces(Config(), None) is None; "
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
