"""Live counters: what only the process that writes knows of sinks and endpoints, by name, for `status` anywhere.

They are plain numbers, named ``sink/<view>/<field of Counters>`` and ``moving/<materialization>/<field of Moving>``.
The process that writes reads its own; another one asks it over the push connection, together with persist's counters.

Source: design pages "environment" (status) and "compute" (sink).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Final

from strandline.instance.dataflows import Dataflows
from strandline.materialize.runtime import Task

SINK: Final = "sink"
MOVING: Final = "moving"
SENT_BYTES_MAX: Final = 32 * 1024
"""The limit for the names of counters that are sent to other processes: all of them travel in one frame."""


def counters(dataflows: Dataflows, tasks: Mapping[str, Task]) -> dict[str, int]:
    """Return what the sinks of each view (its internal stages' too) did here, and how far each transaction is."""
    return dict(_counters(dataflows, tasks))


def _counters(dataflows: Dataflows, tasks: Mapping[str, Task]) -> Iterator[tuple[str, int]]:
    for name, task in tasks.items():
        yield from ((f"{MOVING}/{name}/{field}", count) for field, count in asdict(task.status.moving).items())
    for view in dataflows.views:
        done: Counter[str] = Counter()
        for run in dataflows.runs_of(view):
            done.update(asdict(run.sink.counters))
        yield from ((f"{SINK}/{view}/{field}", count) for field, count in done.items())


def sendable(counted: Mapping[str, int]) -> dict[str, int]:
    """Return as many counters as may be sent to other processes: all those of the first items."""
    kept: dict[str, int] = {}
    left = SENT_BYTES_MAX
    for name, count in counted.items():
        left -= len(name.encode())
        if left < 0:
            break
        kept[name] = count
    return kept


def of(counted: Mapping[str, int], kind: str, name: str) -> dict[str, int]:
    """Return the counters of one item, by field; none if they are not known here.

    >>> of({"sink/a/rows": 1, "sink/b/rows": 2, "moving/a/read": 3}, "sink", "a")
    {'rows': 1}
    """
    begin = f"{kind}/{name}/"
    return {key.removeprefix(begin): count for key, count in counted.items() if key.startswith(begin)}


def split(counted: Mapping[str, int]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the counters that are persist's, and those that are live ones."""
    live = {key: count for key, count in counted.items() if key.startswith((f"{SINK}/", f"{MOVING}/"))}
    return {key: count for key, count in counted.items() if key not in live}, live
