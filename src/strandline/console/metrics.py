"""Metrics: what Prometheus scrapes, from the last look at the environment.

`DECLARED` has their names, types, labels and meanings.  The names are stable: a name may be added, and none is renamed.
docs/metrics.md is the same for people (a test compares).  A unit is the end of the name, as is Prometheus's custom.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from strandline.console.health import HEALTHS, health
from strandline.console.watch import TICK_BUCKETS, Look, Watch

COUNTER: Final = "counter"
GAUGE: Final = "gauge"
HISTOGRAM: Final = "histogram"


@dataclass(frozen=True, slots=True)
class Declared:
    """A metric."""

    name: str
    type: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def unit(self) -> str:
        """The unit of its values; empty: it counts something.

        >>> Declared("strandline_tick_seconds", GAUGE, (), "").unit, Declared("strandline_rows", GAUGE, (), "").unit
        ('seconds', '')
        """
        return next((unit for unit in ("seconds", "bytes") if unit in self.name.split("_")), "")


def _gauge(name: str, labels: tuple[str, ...], meaning: str) -> Declared:
    return Declared(f"strandline_{name}", GAUGE, labels, meaning)


def _counter(name: str, labels: tuple[str, ...], meaning: str) -> Declared:
    return Declared(f"strandline_{name}", COUNTER, labels, meaning)


def _histogram(name: str, labels: tuple[str, ...], meaning: str) -> Declared:
    return Declared(f"strandline_{name}", HISTOGRAM, labels, meaning)


_N: Final = ("name",)
_NK: Final = ("name", "kind")
_HEALTHS: Final = ", ".join(f"`{each}`" for each in reversed(HEALTHS))
DECLARED: Final = (
    _gauge("generation", (), "the generation of the process: one more with each start"),
    _gauge("look_age_seconds", (), "how old the other figures are: some seconds"),
    _gauge("complete_timestamp_seconds", (), "the last time at which everything is complete that has no problem"),
    _histogram("tick_seconds", (), "how long ticks take; its `_count` is the number of ticks"),
    _counter(
        "statements_total", ("kind", "outcome"), "statements of clients: `query` or `change`, `answered` or `failed`"
    ),
    _counter("statement_seconds_total", ("kind",), "the time that statements of clients took, added up"),
    _gauge("subscribers", (), "subscriptions that are open"),
    _gauge("items", ("kind",), "items that are defined"),
    _gauge("health", (*_NK, "health"), "1 for the health that an item has, 0 for the others: " + _HEALTHS),
    _gauge("standing_still", _NK, "1 if a problem stands in the way of an item"),
    _gauge("waiting", _NK, "1 if an item waits for something that comes by itself"),
    _gauge("freshness_seconds", _NK, "how old the newest complete time of a collection or an endpoint is"),
    _gauge("upper_timestamp_seconds", _NK, "the time before which a collection or an endpoint is complete"),
    _gauge("since_timestamp_seconds", _NK, "the first time at which a collection can be read"),
    _gauge("rows", _NK, "rows of a collection, without rows that have an error"),
    _gauge("updates", _NK, "updates that a collection keeps: its rows and its history"),
    _gauge("parts", _NK, "parts in which the updates lie"),
    _gauge("bytes", _NK, "bytes of the updates that a collection keeps"),
    _gauge("holders", _NK, "readers that keep the past of a collection readable"),
    _gauge("errors", _NK, "rows of a collection that have an error"),
    _gauge("beginning", _NK, "1 while a source takes its snapshot, or a view computes its first result"),
    _gauge("step_seconds", _N, "how long the last step of a view took"),
    _gauge("step_updates", _N, "updates that the last step of a view read"),
    _counter("view_updates_total", _N, "updates that a view has appended since the process began"),
    _gauge(
        "source_lag",
        ("name", "unit"),
        "upstream changes that a source knows of, not yet in the collection, in upstream's unit",
    ),
    _counter("source_records_total", ("name", "outcome"), "records of a source: `read`, `reread`, `durable`, `error`"),
    _gauge("materialization_phase", ("name", "phase"), "1 for the phase that a materialization is in"),
    _counter("materialization_transactions_total", _N, "transactions that an endpoint has acknowledged"),
    _counter(
        "materialization_rows_total",
        ("name", "operation"),
        "rows that an endpoint has acknowledged: `stored` or `deleted`",
    ),
    _gauge("materialization_moving_rows", ("name", "stage"), "rows of the transaction under way: `read` or `sent`"),
    _gauge("index_in_memory", _N, "1 if an index is in memory and answers from there"),
    _counter("index_peeks_total", ("name", "how"), "look-ups that an index answered: from `memory`, or `scanned`"),
    _gauge("replicas", ("instance",), "replicas that an instance has"),
    _gauge("replica_connected", ("instance", "replica"), "1 if a replica is connected and obeys"),
    _gauge("replica_problems", ("instance", "replica"), "items that have a problem in a replica"),
    _counter(
        "store_events_total",
        ("event",),
        "what the process met in its stores: retries, merges, collected garbage and the like",
    ),
)


def page() -> str:
    """Return the table of docs/metrics.md."""
    lines = ["| metric | type | unit | labels | meaning |", "| --- | --- | --- | --- | --- |"]
    for each in DECLARED:
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{each.name}` | {each.type} | {each.unit} | {labels} | {each.meaning} |")
    return "\n".join(lines)


Sample = tuple[tuple[str, ...], float]
Samples = dict[str, list[Sample]]


class Metrics:
    """The registry of one process."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Yield each metric with its samples; before the first look only those of ticks and statements have any."""
        found = self._samples()
        for each in DECLARED:
            if each.type == HISTOGRAM:
                yield self._ticks(each)
            else:
                yield _family(each, found.get(each.name, []))

    def _ticks(self, declared: Declared) -> Metric:
        ticks = self._watch.ticks
        bounds = [*zip(map(str, TICK_BUCKETS), map(float, ticks.buckets), strict=True), ("+Inf", float(ticks.count))]
        family = HistogramMetricFamily(declared.name, declared.meaning)
        family.add_metric([], buckets=bounds, sum_value=ticks.seconds)
        return family

    def _samples(self) -> Samples:
        found: Samples = {}
        for kind, counted in self._watch.traffic.counted.items():
            outcomes = {"answered": counted.answered, "failed": counted.failed}
            _add(found, "strandline_statements_total", {(kind, outcome): many for outcome, many in outcomes.items()})
            _add(found, "strandline_statement_seconds_total", {(kind,): counted.ms / 1000})
        _add(found, "strandline_subscribers", {(): self._watch.traffic.followed})
        if (look := self._watch.latest) is not None:
            self._seen(look, found)
        return found

    def _seen(self, look: Look, found: Samples) -> None:
        figures, now_ms = look.figures, self._watch.now_ms
        age_ms = max(0, now_ms - figures["now_ms"])
        _add(found, "strandline_generation", {(): figures["generation"]})
        _add(found, "strandline_look_age_seconds", {(): age_ms / 1000})
        _add(found, "strandline_complete_timestamp_seconds", {(): figures["complete"] / 1000})
        _add(found, "strandline_store_events_total", {(event,): many for event, many in figures["store"].items()})
        kinds: dict[tuple[str, ...], float] = {}
        for name, item in figures["items"].items():
            kinds[(item["kind"],)] = kinds.get((item["kind"],), 0) + 1
            errors = look.errors_of(name)["rows"]
            _any_item(name, item, health(item, errors, figures["tick_ms"]), age_ms, found)
            for how in (_collection, _materialization, _others):
                how(name, item, errors, found)
        _add(found, "strandline_items", kinds)


def _any_item(name: str, item: Mapping[str, Any], word: str, age_ms: int, found: Samples) -> None:
    key = (name, item["kind"])
    _add(found, "strandline_health", {(*key, each): each == word for each in HEALTHS})
    _add(found, "strandline_standing_still", {key: item["problem"] is not None})
    _add(found, "strandline_waiting", {key: bool(item["waiting"])})
    ms = (item.get("lag") or {}).get("ms")
    if ms is not None:  # it grew since the look, unless the item is complete for ever
        _add(found, "strandline_freshness_seconds", {key: (ms + age_ms if item.get("upper") else 0) / 1000})
    for figure in ("upper", "since"):
        if item.get(figure) is not None:
            _add(found, f"strandline_{figure}_timestamp_seconds", {key: item[figure] / 1000})


def _collection(name: str, item: Mapping[str, Any], errors: int, found: Samples) -> None:
    if "rows" not in item:
        return
    key, done, step = (name, item["kind"]), item["done"], item["step"]
    _add(found, "strandline_rows", {key: item["rows"] - errors})
    for figure in ("updates", "parts", "bytes", "holders"):
        _add(found, f"strandline_{figure}", {key: item[figure]})
    _add(found, "strandline_errors", {key: errors})
    _add(found, "strandline_beginning", {key: item["phase"] != "following"})
    if step is not None:
        _add(found, "strandline_step_seconds", {(name,): step["ms"] / 1000})
        _add(found, "strandline_step_updates", {(name,): step["updates"]})
    if item["kind"] == "view" and "rows" in done:
        _add(found, "strandline_view_updates_total", {(name,): done["rows"]})
    figures = {(name, each): done.get(f"{each}_records") for each in ("read", "reread", "durable", "error")}
    records: dict[tuple[str, ...], float] = {labels: many for labels, many in figures.items() if many is not None}
    _add(found, "strandline_source_records_total", records)
    if item["kind"] in {"source", "source table"} and item["lag"].get(item["unit"]) is not None:
        _add(found, "strandline_source_lag", {(name, item["unit"]): item["lag"][item["unit"]]})


def _materialization(name: str, item: Mapping[str, Any], _errors: int, found: Samples) -> None:
    if "transactions" not in item:
        return
    _add(found, "strandline_materialization_phase", {(name, item["phase"]): 1})
    _add(found, "strandline_materialization_transactions_total", {(name,): item["transactions"]})
    for operation in ("stored", "deleted"):
        _add(found, "strandline_materialization_rows_total", {(name, operation): item[f"rows_{operation}"]})
    for stage in ("read", "sent"):
        _add(found, "strandline_materialization_moving_rows", {(name, stage): item["moving"][stage]})


def _others(name: str, item: Mapping[str, Any], _errors: int, found: Samples) -> None:
    index, replicas = item.get("index") or {}, item.get("replicas")
    if "in_memory" in index:
        _add(found, "strandline_index_in_memory", {(name,): index["in_memory"]})
        _add(found, "strandline_index_peeks_total", {(name, how): index[how] for how in ("memory", "scanned")})
    if replicas is not None:
        _add(found, "strandline_replicas", {(name,): len(replicas)})
        for replica, each in replicas.items():
            _add(found, "strandline_replica_connected", {(name, replica): each["obeys"]})
            _add(found, "strandline_replica_problems", {(name, replica): len(each.get("problems", {}))})


def _add(found: Samples, name: str, samples: Mapping[tuple[str, ...], float]) -> None:
    found.setdefault(name, []).extend((labels, float(value)) for labels, value in samples.items())


def _family(declared: Declared, samples: list[Sample]) -> Metric:
    counts = declared.type == COUNTER
    make = CounterMetricFamily if counts else GaugeMetricFamily
    family = make(
        declared.name.removesuffix("_total") if counts else declared.name, declared.meaning, labels=declared.labels
    )
    for labels, value in samples:
        family.add_metric(labels, value)
    return family
