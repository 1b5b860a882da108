"""Live counters: what only the process that writes knows of sinks and endpoints, by name, for `status` anywhere.

They are plain numbers, named ``sink/<view>/<field of Counters>``, ``moving/<materialization>/<field of Moving>``,
``source/<source or its table>/<field>``, ``first/<item>/<field of Beginning>`` for what is read or computed for the
first time, ``index/<index>/<field>`` for peeks, and ``step/<stage>/<field of Done>``, for the last step of a stage;
what is no number there is part of the name.
The process that writes reads its own; another one asks it over the push connection, together with persist's counters.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Final

from strandline.compute.lookups import Access
from strandline.compute.step import Done
from strandline.instance.beginnings import Beginning
from strandline.instance.indexes.index import Index
from strandline.instance.reports import SourceFigures
from strandline.instance.running.views import Dataflows
from strandline.materialize.splits import Splits

SINK: Final = "sink"
MOVING: Final = "moving"
STEP: Final = "step"
SOURCE: Final = "source"
FIRST: Final = "first"
INDEX: Final = "index"
SENT_BYTES_MAX: Final = 32 * 1024
"""The limit for the names of counters that are sent to other processes: all of them travel in one frame."""

_LIVE: Final = tuple(f"{kind}/" for kind in (SINK, MOVING, STEP, SOURCE, FIRST, INDEX))


def counters(
    dataflows: Dataflows, tasks: Mapping[str, Splits], sources: Mapping[str, SourceFigures], firsts: Iterable[Beginning]
) -> dict[str, int]:
    """Return what the sinks of each view (its internal stages' too) did here, and each last step and transaction.

    And what was done for each of ``sources`` (those that are collections, and tables of others), and the beginnings.
    """
    found = dict(_of_sources(sources, firsts))
    return found | dict(_counters(dataflows, tasks))


def of_indexes(indexes: Mapping[str, Index]) -> dict[str, int]:
    """Return how many peeks each index answered from memory and by reading its shard, and whether it is in memory."""
    return {
        f"{INDEX}/{name}/{field}": count
        for name, index in indexes.items()
        for field, count in {**asdict(index.found), "in_memory": int(index.in_memory)}.items()
    }


def _of_sources(sources: Mapping[str, SourceFigures], firsts: Iterable[Beginning]) -> Iterator[tuple[str, int]]:
    for name, figures in sources.items():
        yield from ((f"{SOURCE}/{name}/{field}", count) for field, count in asdict(figures).items())
    for first in firsts:
        fields = {"rows": first.rows, "about": first.about, "since_ms": first.since_ms}
        yield from ((f"{FIRST}/{first.name}/{field}", n) for field, n in fields.items() if n is not None)


def _counters(dataflows: Dataflows, tasks: Mapping[str, Splits]) -> Iterator[tuple[str, int]]:
    for name, task in tasks.items():
        yield from ((f"{MOVING}/{name}/{field}", count) for field, count in asdict(task.status.moving).items())
    for view in dataflows.views:
        done: Counter[str] = Counter()
        for run in dataflows.runs_of(view):
            done.update(asdict(run.sink.counters))
        yield from ((f"{SINK}/{view}/{field}", count) for field, count in done.items())
    for run in dataflows.runs:
        if run.last is not None:
            yield from ((f"{STEP}/{run.name}/{field}", count) for field, count in _fields(run.last))


def _fields(done: Done) -> Iterator[tuple[str, int]]:
    yield "rows_read", done.rows_read
    yield "ms", done.ms
    yield "at_ms", done.at_ms
    yield from ((f"{field}/{value}", 1) for field in ("window", "plan") if (value := getattr(done, field)))
    yield from ((f"access/{what}", int(access)) for what, access in done.access.items())


def last_step(counted: Mapping[str, int], stage: str) -> Done | None:
    """Return what the last step of a stage did; None if it is not known here.

    >>> done = Done(7, "small", {"t by k": Access.PROBE}, "prepared", 12, 1_700_000_000_000)
    >>> last_step({f"step/s/{name}": count for name, count in _fields(done)}, "s") == done
    True
    """
    fields = of(counted, STEP, stage)
    if "rows_read" not in fields:
        return None
    texts: dict[str, dict[str, int]] = {"window": {}, "plan": {}, "access": {}}
    for name, count in fields.items():
        field, _, value = name.partition("/")
        if field in texts:
            texts[field][value] = count
    window, plan = (next(iter(texts[field]), "") for field in ("window", "plan"))
    access = {what: Access(number) for what, number in texts["access"].items()}
    return Done(fields["rows_read"], window, access, plan, fields.get("ms", 0), fields.get("at_ms", 0))


def last_steps(counted: Mapping[str, int]) -> dict[str, Done]:
    """Return the last step of each stage of which one is known here, by the stage's name."""
    begin, end = f"{STEP}/", "/rows_read"
    stages = sorted(k.removeprefix(begin).removesuffix(end) for k in counted if k.startswith(begin) and k.endswith(end))
    return {stage: done for stage in stages if (done := last_step(counted, stage)) is not None}


def together(counted: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """Return the counters of processes that run the same things: of each the greatest.

    Each record of a source is made durable by one process: these counts add up.  Counters of last steps come
    from the one process that has most of them, because they hold texts that belong together.

    >>> together([{"sink/v/rows": 3, "step/v/plan/a": 1}, {"sink/v/rows": 2, "step/v/plan/b": 1, "step/v/ms": 5}])
    {'sink/v/rows': 3, 'step/v/plan/b': 1, 'step/v/ms': 5}
    """
    found: dict[str, int] = {}
    steps = [{name: count for name, count in each.items() if name.startswith(f"{STEP}/")} for each in counted]
    for each, apart in zip(counted, steps, strict=True):
        for name, count in each.items():
            if name not in apart:
                known = found.get(name, 0)
                found[name] = known + count if _adds_up(name) else max(known, count)
    return found | max(steps, key=len, default={})


def _adds_up(name: str) -> bool:
    return name.startswith(f"{SOURCE}/") and name.endswith(("/durable_records", "/error_records"))


def arrived(counted: Mapping[str, int], now_ms: int) -> dict[str, int]:
    """Return counters of another process that have come at ``now_ms``: since when something goes on is counted from it.

    The clock of that process may be another one.
    """
    return {
        name: now_ms if name.startswith(f"{FIRST}/") and name.endswith("/since_ms") else count
        for name, count in counted.items()
    }


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
    live = {key: count for key, count in counted.items() if key.startswith(_LIVE)}
    return {key: count for key, count in counted.items() if key not in live}, live
