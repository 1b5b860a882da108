"""Watch: looks at the environment every few seconds, and keeps the last look and the figures of the last hour.

So a scrape, or a hundred open pages, cost the environment nothing more, and none of them waits for a tick.  Rows with
errors are counted only where some came or went: that may take a job, for a collection one in `COUNT_EVERY_MS` at most.

The history takes a fixed number of bytes for each item.  A *series* is one figure of one item.  All series share their
times; an unknown value is NaN.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, Protocol

from strandline.errors import StrandlineError
from strandline.serving.traffic import Traffic
from strandline.store.clock import Clock

POINTS: Final = 360
EVERY_MS: Final = 10_000
"""The time between two points.  Together with `POINTS`: one hour."""
ITEMS_MAX: Final = 500
"""So many items have a history: the first ones."""
assert POINTS * EVERY_MS == 3_600_000


class History:
    """Points of many series.

    >>> history = History(points=3)
    >>> for time in (1, 2, 3, 4):
    ...     history.note(time, {"v": {"rows": 10.0 * time}})
    >>> history.of("v")
    ([2, 3, 4], {'rows': [20.0, 30.0, 40.0]})
    >>> history.note(5, {"w": {"rows": 1.0}})
    >>> history.of("v"), history.of("w")
    (([3, 4, 5], {}), ([3, 4, 5], {'rows': [None, None, 1.0]}))
    """

    def __init__(self, points: int = POINTS) -> None:
        self._points = points
        self._times = array("q", [0]) * points
        self._series: dict[str, dict[str, array[float]]] = {}
        self._noted = 0

    def note(self, time: int, figures: Mapping[str, Mapping[str, float | None]]) -> None:
        """Add a point to the series of each item; an item that is not among ``figures`` has none from now on."""
        at = self._noted % self._points
        self._times[at] = time
        self._noted += 1
        for name in sorted(self._series.keys() - figures.keys()):
            del self._series[name]
        for name, found in figures.items():
            if name not in self._series and len(self._series) >= ITEMS_MAX:
                continue
            series = self._series.setdefault(name, {})
            for figure in found:
                if figure not in series:
                    series[figure] = array("d", [math.nan]) * self._points
            for figure, ring in series.items():
                value = found.get(figure)
                ring[at] = math.nan if value is None else value

    def of(self, name: str) -> tuple[list[int], dict[str, list[float | None]]]:
        """Return the times, oldest first, and the series of an item; None: not known then."""
        series = self._series.get(name, {})
        times = [int(time) for time in self._ordered(self._times)]
        return times, {
            field: [None if math.isnan(value) else value for value in self._ordered(ring)]
            for field, ring in series.items()
        }

    def _ordered(self, ring: array[int] | array[float]) -> Iterator[int | float]:
        if self._noted <= self._points:
            return iter(ring[: self._noted])
        at = self._noted % self._points
        return chain(ring[at:], ring[:at])


LOOK_S: Final = 2.0
"""The time between two looks."""
COUNT_EVERY_MS: Final = 10_000
DESCRIBED_MS: Final = 5_000
"""For so long the description of an item is kept."""
DESCRIBED_MAX: Final = 64
TICK_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the histogram of ticks, in seconds."""
NO_ERRORS: Final[Mapping[str, Any]] = MappingProxyType({"rows": 0, "first": [], "since": None, "told": []})


class Observed(Protocol):
    """What is watched: the environment that writes; see `Environment`, whose calls these are."""

    def figures(self) -> dict[str, Any]:
        """Return how each item is."""
        ...

    def errors(self, name: str) -> dict[str, Any]:
        """Return the errors of a collection."""
        ...

    def described(self, name: str) -> dict[str, Any] | None:
        """Return what an item is."""
        ...

    def queries(self) -> list[dict[str, Any]]:
        """Return the queries that are answered now."""
        ...


@dataclass(slots=True)
class Ticks:
    """The ticks so far: how many, how many seconds they took, and how many took no more than each bound."""

    count: int = 0
    seconds: float = 0.0
    last: float | None = None
    buckets: list[int] = field(default_factory=lambda: [0] * len(TICK_BUCKETS))

    def note(self, seconds: float) -> None:
        """Count a tick."""
        self.count += 1
        self.seconds += seconds
        self.last = seconds
        for number, bound in enumerate(TICK_BUCKETS):
            self.buckets[number] += seconds <= bound


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen at one moment; ``errors``: by collection, where it has or had any.

    ``queries``: those that were answered then, as `Environment.queries` returns them.
    """

    figures: Mapping[str, Any]
    errors: Mapping[str, Mapping[str, Any]]
    queries: Sequence[Mapping[str, Any]] = ()

    def errors_of(self, name: str) -> Mapping[str, Any]:
        """Return the errors of a collection, as they were counted last."""
        return self.errors.get(name, NO_ERRORS)


class Watch:
    """See the module.  Any thread may ask; `look` is for one."""

    def __init__(self, env: Observed, clock: Clock, traffic: Traffic) -> None:
        self._env = env
        self._clock = clock
        self.traffic = traffic
        self.ticks = Ticks()
        self.latest: Look | None = None
        """What was seen last; None: nothing yet."""
        self._history = History()
        self._lock = threading.Lock()
        self._noted_ms = 0
        self._counted: dict[str, tuple[str | None, int, Mapping[str, Any]]] = {}  # by collection: seen, when, errors
        self._described: dict[str, tuple[int, dict[str, Any] | None]] = {}

    @property
    def now_ms(self) -> int:
        """Return the time now."""
        return self._clock.now_ms()

    def look(self) -> None:
        """Look once.  Raises what the environment raises."""
        found, queries = self._env.figures(), self._env.queries()
        self.latest = Look(found, {name: counted for name, (_, _, counted) in self._counted.items()}, queries)
        self._count(found["items"])
        self.latest = Look(found, {name: counted for name, (_, _, counted) in self._counted.items()}, queries)
        if found["now_ms"] - self._noted_ms >= EVERY_MS or found["now_ms"] < self._noted_ms:
            self._noted_ms = found["now_ms"]
            with self._lock:
                self._history.note(found["now_ms"], self._points(self.latest))

    def follow(self, stop: threading.Event) -> None:
        """Look again and again until ``stop`` is set; what cannot be seen now is seen later."""
        while not stop.is_set():
            with suppress(Exception):  # one that is not ours either, such as Spark's, must not end the looks
                self.look()
            stop.wait(LOOK_S)

    def history(self, name: str) -> tuple[list[int], dict[str, list[float | None]]]:
        """Return the figures of an item over the last hour; the empty name is the environment's own."""
        with self._lock:
            return self._history.of(name)

    def described(self, name: str) -> dict[str, Any] | None:
        """Return what an item is; None if there is no such item.  Raises what the environment raises."""
        now_ms = self._clock.now_ms()
        with self._lock:
            known = self._described.get(name)
        if known is not None and 0 <= now_ms - known[0] < DESCRIBED_MS:
            return known[1]
        found = self._env.described(name)
        with self._lock:
            if len(self._described) >= DESCRIBED_MAX:
                self._described.clear()
            self._described[name] = (now_ms, found)
        return found

    def _count(self, items: Mapping[str, Mapping[str, Any]]) -> None:
        now_ms = self._clock.now_ms()
        for name in sorted(self._counted.keys() - items.keys()):
            del self._counted[name]
        for name, item in items.items():
            seen, known = item.get("seen"), self._counted.get(name)
            if seen is None:
                self._counted.pop(name, None)
            elif not (known is not None and (known[0] == seen or now_ms - known[1] < COUNT_EVERY_MS)):
                with suppress(StrandlineError):
                    self._counted[name] = (seen, now_ms, self._env.errors(name))

    def _points(self, look: Look) -> dict[str, dict[str, float | None]]:
        """Return a point of each series; the figures of the environment itself are under the empty name."""
        items = look.figures["items"]
        followed = [item["lag"]["ms"] for item in items.values() if item.get("lag") and item.get("refresh") is None]
        lags = [ms for ms in followed if ms is not None]
        counted = self.traffic.counted
        own = {
            "freshness": max(lags, default=0) / 1000,
            "tick": self.ticks.last,
            "statements": float(sum(each.answered + each.failed for each in counted.values())),
        }
        return {"": own} | {name: _points(item, look.errors_of(name)) for name, item in items.items()}


def _points(item: Mapping[str, Any], errors: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the figures of an item that have a history; ``done`` only grows: it is shown as a rate."""
    lag, done, step = item.get("lag") or {}, item.get("done") or {}, item.get("step")
    found: dict[str, float | None] = {}
    if "lag" in item:
        found["freshness"] = None if lag["ms"] is None else lag["ms"] / 1000
    if "rows" in item:
        found |= {"rows": item["rows"] - errors["rows"], "bytes": item["bytes"], "errors": errors["rows"]}
        found["done"] = done.get("durable_records", done.get("rows"))
    if item.get("unit") and item["kind"] in {"source", "source table"}:
        found["behind"] = lag.get(item["unit"])
    if "rows_stored" in item:
        found["done"] = item["rows_stored"] + item["rows_deleted"]
    if step is not None:
        found["step"] = step["ms"] / 1000
    return found
