"""The metrics: their names are a promise, and what they say is what the environment is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from console_shown import Console, Hands, Shown, figures_of, item, shown
from strandline.console.metrics import COUNTER, DECLARED, HISTOGRAM, Metrics, page
from strandline.console.watch import Watch
from strandline.serving.traffic import CHANGE, QUERY, Traffic

ROOT = Path(__file__).resolve().parents[2]
DASHBOARD = json.loads((ROOT / "docs" / "grafana" / "strandline.json").read_text())
SUFFIXES = {HISTOGRAM: ("_bucket", "_sum", "_count"), COUNTER: ("",), "gauge": ("",)}
SERIES = {f"{each.name}{suffix}": each for each in DECLARED for suffix in SUFFIXES[each.type]}


def scraped(console: Console) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Return what a scraper reads: by the name of the series and its labels, its value."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(console.ask("/metrics")[2]):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def of(found: Any, name: str, /, **labels: str) -> float:
    """Return the value of one series."""
    return float(found[name][tuple(sorted(labels.items()))])


def test_the_page_has_each_metric_and_no_other() -> None:
    """Damage: an alert is written for a metric that there is not, and never fires."""
    text = (ROOT / "docs" / "metrics.md").read_text()
    assert page() in text, "write the table of docs/metrics.md anew (strandline.console.metrics.page)"
    named = set(re.findall(r"\bstrandline_\w+", text))
    assert named <= SERIES.keys() | {each.name for each in DECLARED}


def test_what_is_scraped_is_what_is_declared(console: Console) -> None:
    """Damage: a metric has other labels, another type or another name than the page says."""
    console.watch.ticks.note(0.2)
    families = {each.name: each for each in Metrics(console.watch).registry.collect()}
    assert len(families) == len(DECLARED)
    for each in DECLARED:
        family = families[each.name.removesuffix("_total") if each.type == COUNTER else each.name]
        assert (family.type, family.documentation) == (each.type, each.meaning)
        assert family.samples, f"{each.name} has no sample here: the pipeline of this test is to have one"
        for sample in family.samples:
            assert SERIES[sample.name] is each
            assert set(sample.labels) - {"le"} == set(each.labels)
    assert scraped(console).keys() == SERIES.keys()


def test_figures_are_those_of_the_environment(console: Console) -> None:
    """Damage: a dashboard is green while a view stands still."""
    for seconds in (0.2, 0.3, 7.0):
        console.watch.ticks.note(seconds)
    traffic = console.watch.traffic
    with traffic.statement(QUERY):
        console.clock.ms += 40
    with pytest.raises(ValueError, match="wrong"), traffic.statement(CHANGE):
        raise ValueError("wrong")
    with traffic.subscription():
        found = scraped(console)
    view = {"name": "revenue by city", "kind": "view"}
    assert of(found, "strandline_freshness_seconds", **view) == pytest.approx(1.94), "it grew since the look"
    assert of(found, "strandline_rows", name="clicks", kind="source") == 51_900
    assert of(found, "strandline_errors", name="clicks", kind="source") == 3
    assert of(found, "strandline_source_lag", name="clicks", unit="messages") == 12
    assert of(found, "strandline_standing_still", name="warehouse", kind="materialization") == 1
    assert of(found, "strandline_standing_still", name="dashboard", kind="materialization") == 0
    assert of(found, "strandline_health", **view, health="fresh") == 1
    assert of(found, "strandline_health", **view, health="broken") == 0
    assert of(found, "strandline_beginning", name="cohorts", kind="view") == 1
    assert of(found, "strandline_materialization_phase", name="dashboard", phase="StoreSent") == 1
    assert of(found, "strandline_materialization_rows_total", name="dashboard", operation="deleted") == 120
    assert of(found, "strandline_index_peeks_total", name="balances_by_account", how="memory") == 96_000
    assert of(found, "strandline_replica_connected", instance="wide", replica="b") == 0
    assert of(found, "strandline_items", kind="view") == 5
    assert of(found, "strandline_tick_seconds_count") == 3
    assert of(found, "strandline_tick_seconds_bucket", le="0.25") == 1
    assert of(found, "strandline_tick_seconds_bucket", le="+Inf") == 3
    assert of(found, "strandline_statements_total", kind="query", outcome="answered") == 1
    assert of(found, "strandline_statements_total", kind="change", outcome="failed") == 1
    assert of(found, "strandline_statement_seconds_total", kind="query") == pytest.approx(0.04)
    assert of(found, "strandline_subscribers") == 1
    assert of(found, "strandline_look_age_seconds") == pytest.approx(0.04)


def test_what_is_not_known_has_no_sample() -> None:
    """Damage: a view that cannot be read yet is shown as complete since 1970."""
    env = Shown(Hands(), {"v": item("view", phase="hydrating", upper=None, since=None, lag={"ms": None, "rows": 0})})
    with shown(env) as console:
        console.watch.look()
        found = scraped(console)
        for name in ("strandline_freshness_seconds", "strandline_upper_timestamp_seconds", "strandline_step_seconds"):
            assert name not in found


def test_a_scrape_makes_the_environment_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a scraper every second starts jobs, or waits for a tick that takes minutes."""
    env = figures_of(Hands())
    watch = Watch(env, env.clock, Traffic(env.clock))
    watch.look()
    for call in ("figures", "errors", "described"):
        monkeypatch.setattr(env, call, lambda *_: pytest.fail("the environment was asked"))
    assert sum(len(family.samples) for family in Metrics(watch).registry.collect()) > 100


@pytest.mark.parametrize("name", ['a"b\\c\nd', "<script>alert(1)</script>", "é" * 300])
def test_names_cannot_break_the_text(name: str) -> None:
    """Damage: one odd name makes Prometheus refuse the whole scrape."""
    with shown(Shown(Hands(), {name: item("table", rows=5)})) as console:
        console.watch.look()
        assert of(scraped(console), "strandline_rows", name=name, kind="table") == 5


def expressions() -> list[str]:
    """Return what the dashboard asks Prometheus."""
    asked = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return asked + [each["query"] for each in DASHBOARD["templating"]["list"] if each["type"] == "query"]


@pytest.mark.parametrize("expression", expressions())
def test_each_query_of_the_dashboard_asks_for_what_there_is(expression: str) -> None:
    """Damage: a panel says "no data" for ever."""
    named = re.findall(r"\bstrandline_\w+", expression)
    assert named
    for name in named:
        known = {*SERIES[name].labels, "job", "instance", "le"}
        inside = re.search(re.escape(name) + r"\{([^}]*)\}", expression)
        labels = set(re.findall(r"(\w+)\s*=", inside[1])) if inside else set()
        by = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
        assert labels | by <= known
        if SERIES[name].type != "gauge":
            assert "rate(" in expression, "a counter is shown by its rate"


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    """Damage: the imported dashboard hides a panel behind another one."""
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
