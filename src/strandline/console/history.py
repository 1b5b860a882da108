"""History: figures of the last hour, in a fixed number of bytes for each item.

A *series* is one figure of one item.  All series share their times; a value that was not known is NaN.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Final

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
            for field in found:
                if field not in series:
                    series[field] = array("d", [math.nan]) * self._points
            for field, ring in series.items():
                value = found.get(field)
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
