"""The console of a real `strandline run`: what a person and a scraper see of an environment that lives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import strandline
from strandline.errors import StrandlineError
from trace_collector import Collector, collecting, told

pytestmark = pytest.mark.server
COMMAND = (sys.executable, "-m", "strandline")
WITHIN_S = 120.0


@dataclass
class Running:
    """A process of `strandline run`, who collects its traces, and what its first document said."""

    root: Path
    collector: Collector
    first: dict[str, Any]

    @property
    def url(self) -> str:
        return str(self.first["serving"]["http"])

    def ask(self, path: str) -> str:
        with urllib.request.urlopen(self.url + path, timeout=120) as answer:
            return str(answer.read().decode())

    def until(self, path: str, fits: Any) -> Any:
        """Ask until an answer fits, and return it."""
        end = time.monotonic() + WITHIN_S
        while True:
            found = json.loads(self.ask(path))
            if fits(found):
                return found
            assert time.monotonic() < end, found
            time.sleep(0.3)  # noqa: TID251 - another process works meanwhile


def complete(found: Any) -> bool:
    """Return whether the view is computed, and stored in the endpoint."""
    items = {item["name"]: item for item in found["items"]}
    parts = (items["out"].get("rows_stored"), items["visits"]["errors"], items["by_city"]["step"])
    return bool(found["ready"] and all(parts))


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A project with files that hold a broken line, views, and an endpoint."""
    root = tmp_path_factory.mktemp("project")
    (root / "visits").mkdir()
    (root / "visits" / "a.csv").write_text("id,city,n\n1,oslo,3\n2,rome,x\n3,oslo,4\n")
    (root / "strandline.yml").write_text("location: data\n")
    files = {
        "sources/visits.sql": "CREATE SOURCE visits (id INT, city STRING, n INT) USING files "
        "OPTIONS (path 'visits/*.csv', on_error continue);",
        "views/by_city.sql": "CREATE MATERIALIZED VIEW by_city AS SELECT city, sum(n) AS n FROM visits GROUP BY city;",
        "materializations/out.sql": "CREATE MATERIALIZATION out INTO duckdb OPTIONS (path 'out.duckdb') "
        "AS by_city TO by_city KEY (city);",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(text)
    command = [*COMMAND, "run", "--json", "--tick-ms", "300", "--project", str(root)]
    with (
        collecting() as collector,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "200"},
        ) as process,
    ):
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        try:
            found = Running(root, collector, json.loads(line))
            found.until("/api/environment", complete)
            yield found
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=180)


def test_the_first_document_says_where_the_console_is_and_status_says_the_same(running: Running) -> None:
    """Damage: a script that starts `run` cannot find the metrics that it is to watch."""
    assert running.first["serving"]["http"].startswith("http://127.0.0.1:")
    asked = [*COMMAND, "status", "--json", "--project", str(running.root)]
    said = json.loads(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    assert said["serving"] == running.first["serving"]


def test_each_item_shows_what_it_is(running: Running) -> None:
    """Damage: the page shows an environment that is not the one that runs."""
    items = {item["name"]: item for item in running.until("/api/environment", complete)["items"]}
    assert {name: item["kind"] for name, item in items.items() if name != "cities"} == {
        "visits": "source",
        "by_city": "view",
        "out": "materialization",
    }
    assert items["by_city"]["reads"] == ["visits"]
    assert items["out"]["reads"] == ["by_city"]
    assert items["visits"]["rows"] in {2, 3}, "another test adds one"
    assert (items["visits"]["errors"], items["visits"]["health"]) == (1, "broken")
    assert items["visits"]["done"]["durable_records"] >= 2
    assert items["by_city"]["step"]["updates"] > 0

    shown = json.loads(running.ask("/api/item?name=by_city"))
    assert shown["described"]["definition"].startswith("CREATE MATERIALIZED VIEW by_city AS\nSELECT city")
    assert shown["described"]["columns"] == [["city", "string"], ["n", "bigint"]]
    assert shown["described"]["plan"]["incremental"]
    assert [each["name"] for each in shown["described"]["holders"]]
    assert shown["series"]["rows"]
    broken = json.loads(running.ask("/api/item?name=visits"))["errors"]
    assert broken["rows"] == 1
    assert "a.csv, line 3" in broken["told"][0]


def test_statements_and_ticks_are_counted(running: Running) -> None:
    """Damage: a dashboard shows that clients do nothing while they do."""
    with strandline.connect(str(running.root / "data")) as env:
        env.execute("CREATE TABLE cities (city STRING)")
        env.insert("cities", [{"city": "oslo"}])
        env.execute("INSERT INTO cities VALUES ('rome')")
        env.query("SELECT * FROM cities")
        with pytest.raises(StrandlineError):
            env.query("SELECT * FROM nowhere")
    values = {
        line.rpartition(" ")[0]: float(line.rpartition(" ")[2])
        for line in running.ask("/metrics").splitlines()
        if not line.startswith("#")
    }
    assert values['strandline_statements_total{kind="change",outcome="answered"}'] >= 2
    assert values['strandline_statements_total{kind="query",outcome="answered"}'] >= 1
    assert values['strandline_statements_total{kind="query",outcome="failed"}'] >= 1
    assert values["strandline_tick_seconds_count"] > 0
    assert values['strandline_errors{kind="source",name="visits"}'] == 1
    assert values['strandline_freshness_seconds{kind="view",name="by_city"}'] < WITHIN_S
    assert values['strandline_materialization_rows_total{name="out",operation="stored"}'] >= 1


def test_ticks_and_statements_are_traced(running: Running) -> None:
    """Damage: who looks for what makes a query or a tick slow finds no span of it."""
    with strandline.connect(str(running.root / "data")) as env:
        env.query("SELECT count(*) AS n FROM by_city")
    (running.root / "visits" / "b.csv").write_text("id,city,n\n4,rome,5\n")
    end = time.monotonic() + WITHIN_S
    while True:
        spans = running.collector.spans
        steps = [span for span in spans if span.name == "step" and told(span.attributes)["strandline.updates"]]
        queries = [s for s in spans if s.name == "statement" and told(s.attributes)["strandline.kind"] == "query"]
        if steps and queries:
            break
        assert time.monotonic() < end, sorted({span.name for span in spans})
        time.sleep(0.3)  # noqa: TID251 - another process works meanwhile
    ticks = {span.span_id for span in spans if span.name == "tick"}
    assert {span.parent_span_id for span in steps} <= ticks
    assert any(told(span.attributes)["strandline.stage"] == "by_city" for span in steps)
    below = {span.name for span in spans if span.parent_span_id == queries[-1].span_id}
    assert {"turn", "answer"} <= below
    assert all(b"SELECT" not in request.SerializeToString() for _, _, request in running.collector.posted)
