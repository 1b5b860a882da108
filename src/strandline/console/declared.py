"""The metrics: their names, types and labels, and what each says.

The names are stable: one may be added, and none is renamed.  docs/metrics.md says the same to people (a test compares).
A unit is the end of the name, as is Prometheus's custom.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from strandline.console.health import HEALTHS

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
