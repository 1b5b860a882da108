"""The introspection relations: their columns, and their rows from the current state of an environment.

They are computed when a query asks for them, from what `controller.asking.status` returns at that moment.  They are no
collections: if they were, an idle environment would write each interval how far everything is.  So they have no
history, and nothing that needs one can read them (`naming`).  Names of items are as they were defined, so the relations
can be joined by them.

`errors(collection)` returns a collection's rows without a value, and the records that could not be decoded.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import pyarrow as pa

from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.algebra.types import parse
from strandline.compute.lookups import Access
from strandline.controller.commanded import place_of
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Collected, Item, Materialization, View, kind_of
from strandline.instance import live
from strandline.instance.error_half import described
from strandline.persist.handles.contents import Half
from strandline.persist.handles.read import ReadHandle, read_definitely
from strandline.plane import Engine

Row: TypeAlias = tuple[Any, ...]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_999
"""The last time that a calendar has: the end of the year 9999."""


@dataclass(frozen=True)
class Known:
    """What is known of an environment at one moment.

    ``status``: as `controller.asking.status` returns it; ``counted``: the live counters of the process that writes,
    none if it cannot be asked; ``queries``: what this process answers, as `Query.told` says it.
    """

    status: Mapping[str, Any]
    catalog: Catalog
    counted: Mapping[str, int]
    queries: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Relation:
    """A relation that queries read: its columns, and its rows, each a value for each column."""

    schema: Schema
    rows: Callable[[Known], Iterator[Row]]

    def table(self, known: Known) -> pa.Table:
        """Return the rows as Arrow has them; a column that has NULL alone is of no type yet."""
        rows = list(self.rows(known))
        return pa.table({name: pa.array([row[n] for row in rows]) for n, name in enumerate(self.schema.names)})


def _frontiers(known: Known) -> Iterator[Row]:
    """How far each collection and each materialization is.

    ``upper`` is 0 before anything is complete, and NULL if the item is complete for ever.
    """
    for item in known.catalog.items.values():
        named = (item.name, kind_of(item), _instance(item, known.catalog))
        if isinstance(item, Collected):
            found = known.status["collections"][item.name]
            upper = found["upper"] if found["lag"]["ms"] is not None else 0
            lag = found["lag"]
            yield *named, found["phase"], found["since"], upper, _at(upper), lag["ms"], lag["rows"]
        elif isinstance(item, Materialization):
            found = known.status["materializations"][item.name]
            upper = found["position"]
            yield *named, None, None, upper, _at(upper), found["lag"]["ms"], None


def _steps(known: Known) -> Iterator[Row]:
    """What the last step of each stage cost; NULL where that is not known here."""
    for item in known.catalog.items.values():
        if isinstance(item, View):
            for stage in (*item.stages, item.name.lower()):
                done = live.last_step(known.counted, stage)
                named = (item.name, _instance(item, known.catalog), stage)
                if done is None:
                    yield *named, *([None] * 7)
                else:
                    ways = [*done.access.values()]
                    counts = map(ways.count, (Access.PROBE, Access.PRUNE, Access.SCAN))
                    yield *named, done.rows_read, done.ms, done.window, done.plan, *counts


def _errors(known: Known) -> Iterator[Row]:
    """The collections that hold errors now: how many, since when, and the first of them."""
    for item in known.catalog.items.values():
        if isinstance(item, Collected) and (found := known.status["collections"][item.name]["errors"])["rows"]:
            since, examples = found["since"], found["first"]
            example = described(examples[0]) if examples else None
            yield item.name, kind_of(item), found["rows"], since, _at(since), example


def _problems(known: Known) -> Iterator[Row]:
    """What stands in the way of each item, or of something that is none, which has no kind."""
    for name, problem in known.status["problems"].items():
        yield *_named(name, known.catalog), problem


def _states(known: Known) -> Iterator[Row]:
    """What is said of each item: a problem, what it is waiting for, or a notice; see `words`."""
    for state, said in (("problem", known.status["problems"]), ("waiting", known.status["waiting"])):
        for name, what in said.items():
            yield *_named(name, known.catalog), state, what
    for name, item in known.catalog.items.items():
        for group in ("collections", "sources", "materializations"):
            if found := known.status[group].get(item.name):
                yield from ((*_named(name, known.catalog), "notice", each) for each in found.get("notices", ()))
                break


def _named(name: str, catalog: Catalog) -> Row:
    item = catalog.find(name)
    return (name, None, None) if item is None else (item.name, kind_of(item), _instance(item, catalog))


def _queries(known: Known) -> Iterator[Row]:
    """The queries that the process that is asked answers now, with the one that asks."""
    for each in known.queries:
        yield each["number"], each["who"], each["since"], _at(each["since"]), each["ms"], each["stage"], each["text"]


def _replicas(known: Known) -> Iterator[Row]:
    """The replicas: whether each is connected and runs what it is to run, and if not, why."""
    for instance, replica, found in _each_replica(known):
        problem = found.get("problem") or None
        yield instance, replica, found["address"], bool(found.get("obeys")), problem, found.get("incarnation") or None


def _reconciliations(known: Known) -> Iterator[Row]:
    """What each replica made of what it ran when the environment last connected to it."""
    for instance, replica, found in _each_replica(known):
        yield instance, replica, "reused", None, found.get("reused", 0)
        for reason, count in found.get("replaced", {}).items():
            yield instance, replica, "replaced", reason, count
        for outcome in ("dropped", "created"):
            yield instance, replica, outcome, None, found.get(outcome, 0)


def _each_replica(known: Known) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for instance, each in known.status["instances"].items():
        for replica, found in each["replicas"].items():
            yield instance, replica, found


def _instance(item: Item, catalog: Catalog) -> str | None:
    """Return the instance that ``item`` runs in, as it was defined; None: the process of the environment."""
    instance = catalog.find(place_of(item, catalog))
    return None if instance is None else instance.name


def _at(ms: int | None) -> datetime | None:
    """Return a time of the environment as a calendar has it; None if none has it.

    >>> str(_at(1_500)), _at(0), _at(2**62)
    ('1970-01-01 00:00:01.500000+00:00', None, None)
    """
    return _EPOCH + timedelta(milliseconds=ms) if ms and ms <= _LAST_MS else None


def _schema(**columns: str) -> Schema:
    return Schema(tuple(Column(name, type_) for name, type_ in columns.items()))


RELATIONS: Final[Mapping[str, Relation]] = {
    "frontiers": Relation(
        _schema(
            name="string",
            kind="string",
            instance="string",
            phase="string",
            since="bigint",
            upper="bigint",
            upper_at="timestamp",
            lag_ms="bigint",
            lag_rows="bigint",
        ),
        _frontiers,
    ),
    "steps": Relation(
        _schema(
            view="string",
            instance="string",
            stage="string",
            rows_read="bigint",
            ms="bigint",
            how="string",
            plan="string",
            probes="bigint",
            prunes="bigint",
            scans="bigint",
        ),
        _steps,
    ),
    "errors": Relation(
        _schema(name="string", kind="string", count="bigint", since="bigint", since_at="timestamp", example="string"),
        _errors,
    ),
    "problems": Relation(_schema(name="string", kind="string", instance="string", problem="string"), _problems),
    "states": Relation(
        _schema(name="string", kind="string", instance="string", state="string", what="string"), _states
    ),
    "replicas": Relation(
        _schema(
            instance="string",
            replica="string",
            address="string",
            running="boolean",
            problem="string",
            incarnation="string",
        ),
        _replicas,
    ),
    "reconciliations": Relation(
        _schema(instance="string", replica="string", outcome="string", reason="string", count="bigint"),
        _reconciliations,
    ),
    "queries": Relation(
        _schema(
            number="bigint",
            who="string",
            since="bigint",
            since_at="timestamp",
            ms="bigint",
            stage="string",
            text="string",
        ),
        _queries,
    ),
}
"""The relations, each by its name behind ``strandline.``."""


ERRORS: Final = Schema(
    (
        Column("reason", "string"),
        Column("file", "string"),
        Column("line", "bigint"),
        Column("place", "string"),
        Column("raw", "string"),
        Column("key", "string"),
        Column("since", "bigint"),
        Column("count", "bigint"),
    )
)
"""``raw``: the text that cannot be decoded, or the row that an expression has no value for; ``since``: a time."""


async def erring(engine: Engine, handle: ReadHandle, time: int) -> pa.Table:
    """Return the errors that a collection has at ``time``, each once with its count.  Raises `AsOfError`."""
    await handle.wait_beyond(time, timeout_s=0)
    if not any(batch.errors for batch in handle.state.batches):
        return _table([])
    contents, rows = await read_definitely(engine, handle, partial(handle.history, time + 1, half=Half.ERR))
    try:
        updates = await engine.collect(rows)
    finally:
        handle.release(contents)
    changes: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for error, at, diff in zip(*(updates[name].to_pylist() for name in (ERROR, TIME, DIFF)), strict=True):
        changes[error][at] += diff
    return _table([row for error, by_time in sorted(changes.items()) if (row := _row(error, by_time)) is not None])


def _row(error: str, changes: dict[int, int]) -> dict[str, Any] | None:
    """Return an error as a row of `ERRORS`; None: it has left.

    >>> _row('{"place": "t@1", "reason": "it is no JSON", "raw": "x"}', {5: 1, 7: -1, 9: 2})["since"]
    9
    """
    count, since = 0, 0
    for at, change in sorted(changes.items()):
        since = at if not count else since
        count += change
    if not count:
        return None
    said = json.loads(error)
    found = {name: said.get(name) for name in ("reason", "file", "line", "place", "raw", "key")}
    if "reason" not in said:
        found["reason"] = described(said)
    if "raw" not in said and "row" in said:
        found["raw"] = json.dumps(said["row"])
    return {**found, "since": since, "count": count}


def _table(rows: list[dict[str, Any]]) -> pa.Table:
    kinds = {column.name: arrow(parse(column.name, column.type)) for column in ERRORS}
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})
