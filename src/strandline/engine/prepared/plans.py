"""The prepared plans of an engine: which are kept, and the run of many of them at once.

A step's plan is prepared when it is first asked for.  Any other plan is prepared the second time, since much of what
is asked for once (an INSERT of an odd shape) is never asked for again; preparing a plan takes as long as planning it
afresh.  The least recently used plans are dropped.  On a cluster each plan is prepared the first time: a prepared one
runs in this process, and a fresh one in a job, which waits for executors.

A failure here costs time and no answer: the caller then runs a fresh plan, which fails as it must.

`small_plan` says which of the frames to be staged a prepared plan can stage: plans over prepared leaves, and small
tables.  `Here` keeps plans over few rows of this process that are not nodes, such as those that decode.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.algebra.nodes import Get, Node, children, rebuilt, stored_columns
from strandline.algebra.schema import DIFF, TIME
from strandline.engine.frames.rows import Behind, Frame, Local, Planned, dataframe
from strandline.engine.prepared.plan import AS_RDD, Leaves, Prepared, compiled, prepare
from strandline.engine.session import start
from strandline.persist.handles.contents import StageRequest

BEFORE: Final = -1
"""The rank of all times before a window's."""


@dataclass(frozen=True, slots=True)
class Moments:
    """The plan ``node``, which names ranks, and the real ``times`` of these; none: its plan names no times.

    Then all times count from ``origin``.

    A plan names the ranks of the times in a window, so one plan serves all windows with the same number of times.
    Ranks are in the order of the times, and a step plan depends on nothing else of them.
    """

    node: Node
    times: tuple[int, ...]
    origin: int

    @staticmethod
    def of(node: Node, origin: int) -> Moments:
        """Return the moments of a plan whose times count from ``origin``.

        >>> from strandline.algebra.nodes import Accumulate, Get
        >>> delta, prior = Get("t", (("n", "n"),)), Get("p", (("n", "n"),))
        >>> def moments(origin, *times):
        ...     return Moments.of(Accumulate(delta, prior, (), (), "n", times), origin)
        >>> one, other = moments(10, 0, 3), moments(20, 0, 7)
        >>> one.times, other.times, one.node == other.node
        ((10, 13), (20, 27), True)
        """
        named = _named(node)
        if len(named) < 2:
            return Moments(node, (), origin)
        ranks = {time: rank for rank, time in enumerate(named)}

        def by_rank(each: Node) -> Node:
            below: Any = rebuilt(each, by_rank)
            own: dict[str, Any] = {}
            if getattr(below, "times", ()):
                own["times"] = tuple(ranks[time] for time in below.times)
            if getattr(below, "start", None) is not None:
                own["start"] = ranks[below.start]
            found: Node = replace(below, **own) if own else below
            return found

        return Moments(by_rank(node), tuple(origin + time for time in named), origin)

    def ranked(self, table: pa.Table) -> pa.Table:
        """Return updates at ranks; each time in ``table`` must be one of the window's, or before all of them.

        What a stage has stored has its own times, which no plan looks at.
        """
        if not self.times:
            return _at(table, table[TIME].to_numpy() - self.origin)
        given, times = table[TIME].to_numpy(), np.array(self.times)
        ranks = np.searchsorted(times, given)
        if len(given) and (ranks.max() == len(times) or not ((times[ranks] == given) | (given < times[0])).all()):
            raise ValueError(f"a window of the times {self.times} holds others")
        return _at(table, np.where(given < times[0], BEFORE, ranks))

    def real(self, table: pa.Table) -> pa.Table:
        """Return updates at ranks as updates at their real times."""
        ranks = table[TIME].to_numpy()
        return _at(table, np.array(self.times)[ranks] if self.times else ranks + self.origin)


def _named(node: Node) -> tuple[int, ...]:
    """Return all times that a plan names, ascending."""
    own = {*getattr(node, "times", ()), getattr(node, "start", None)} - {None}
    return tuple(sorted({*own, *(time for child in children(node) for time in _named(child))}))


def _at(table: pa.Table, times: Any) -> pa.Table:
    column = pa.array(times, pa.int64())
    return table.set_column(table.schema.get_field_index(TIME), TIME, column)


ROWS_MAX: Final = 1_000_000
"""More rows than this are better planned for what they are, in as many partitions as there are cores."""
BYTES_MAX: Final = 256 << 20
"""The same for rows that are wide: all of them are in the JVM while the plan runs."""
ASKED_MIN: Final = 2
"""A plan is prepared when it is asked for as often as this; one that is sure to come again counts for two."""
PLANS_MAX: Final = 300
"""How many plans are kept, and how many of which it is only known that they were asked for."""

CONF: Final[Mapping[str, str]] = {
    # No exchange and no broadcast: both keep the rows of their first run.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.maxSinglePartitionBytes": "9223372036854775807b",
    "spark.sql.exchange.reuse": "false",
    "spark.sql.defaultSizeInBytes": "100",
    "spark.sql.join.preferSortMergeJoin": "false",
    # Such a union looks for its inputs' partitions by number, and those of leaves have the numbers of their rows.
    "spark.sql.unionOutputPartitioning": "false",
    # It makes a subquery of what is counted more than once in a plan, and a subquery keeps the rows of its first run.
    "spark.sql.optimizer.excludedRules": "org.apache.spark.sql.execution.planmerging.MergeSubplans",
    AS_RDD: "0",
}

KEPT_BYTES_MAX: Final = 1 << 20
"""Rows of more bytes leave the JVM when a plan has run, fewer when their leaf is filled again."""
THREADS: Final = 2
"""So many threads run plans, or prepare them."""
RUNS_MIN: Final = 4
"""So many plans are worth a second thread."""
_LARGE: Final = "fresh, because it reads more than a small window's rows"
_log = logging.getLogger(__name__)
_Key: TypeAlias = tuple[object, ...]


@dataclass
class Counters:
    """What happened: runs of plans, shares that a thread ran, plans made, plans refused, and runs that failed."""

    runs: int = 0
    shares: int = 0
    made: int = 0
    refused: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Asked:
    """What ``node`` gives of ``tables``, staged as ``request`` says.  Its times count from ``origin``."""

    node: Node
    tables: Mapping[str, pa.Table]
    origin: int
    request: StageRequest
    again: bool = False
    """Whether it is sure to be asked for again."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A plan that is to be run over ``tables``, for what was asked at ``position``; ``moments`` are its times."""

    position: int
    plan: Prepared
    tables: Mapping[str, pa.Table]
    moments: Moments


class Plans:
    """The plans of one engine.  Its calls block; one is served at a time, because a plan has one set of leaves."""

    def __init__(self, session: SparkSession, *, at_once: bool = False) -> None:
        """``at_once``: prepare a plan when it is first asked for."""
        self.session = session
        self._asked_min = 1 if at_once else ASKED_MIN
        self.counters = Counters()
        self._leaves: Leaves | None = None
        self._kept: OrderedDict[_Key, Prepared | str | int] = OrderedDict()
        # by what is asked for: the plan, or why there is none, or how often it was asked for
        self._turn = threading.Lock()  # held by the call that is served
        self._told: dict[str, str] = {}  # how each shard was planned the last time
        self._workers = ThreadPoolExecutor(THREADS, thread_name_prefix="strandline-wave")

    def close(self) -> None:
        """Prepare and run nothing more."""
        self._workers.shutdown()

    @property
    def reasons(self) -> list[str]:
        """Why plans were refused."""
        with self._turn:
            return [kept for kept in self._kept.values() if isinstance(kept, str)]

    def told(self, shard: str) -> str:
        """Return how the rows of a shard were planned that were asked for last, for people; empty: none were."""
        return self._told.get(shard, "")

    def note(self, shards: Iterable[str]) -> None:
        """Note that the rows of these shards are not for prepared plans."""
        self._told |= dict.fromkeys(shards, _LARGE)

    def run(self, asked: Sequence[Asked]) -> list[pa.Table | None]:
        """Return what `parts.staging.small` gives for each, at its real times; None: run a fresh plan."""
        found: list[pa.Table | None] = [None] * len(asked)
        with self._turn:
            try:
                moments = [Moments.of(each.node, each.origin) for each in asked]
                ranked = [_ranked(each, own) for each, own in zip(asked, moments, strict=True)]
                runs: dict[int, _Run] = {}
                for position, (each, plan) in enumerate(zip(ranked, self._plans(ranked), strict=True)):
                    if plan is not None:
                        runs.setdefault(id(plan), _Run(position, plan, each.tables, moments[position]))
                tables = self._results(list(runs.values())) if runs else []
                for run, table in zip(runs.values(), tables, strict=True):
                    found[run.position] = None if table is None else run.moments.real(table)
            except Exception as error:  # noqa: BLE001 - a fresh plan shows what is the matter
                self._failed(error)
                return [None] * len(asked)
        return found

    def _plans(self, asked: Sequence[Asked]) -> list[Prepared | None]:
        """Return the plan of each; None if it has none, or none yet."""
        keys = [_key(each) for each in asked]
        due = {key: each for key, each in zip(keys, asked, strict=True) if self._is_due(key, each)}
        if due:
            if self._leaves is None:
                self._leaves = Leaves(start.sibling(self.session, CONF))
            self._kept |= zip(due, self._workers.map(partial(self._made, self._leaves), due.values()), strict=True)
        found = [self._kept[key] for key in keys]
        while len(self._kept) > PLANS_MAX:
            self._kept.popitem(last=False)
        self._told |= {each.request.shard: _told(plan) for each, plan in zip(asked, found, strict=True)}
        return [plan if isinstance(plan, Prepared) else None for plan in found]

    def _is_due(self, key: _Key, asked: Asked) -> bool:
        """Count that it is asked for; return whether its plan is to be prepared now."""
        kept = self._kept.setdefault(key, 0)
        self._kept.move_to_end(key)
        if not isinstance(kept, int):
            return False
        self._kept[key] = kept + (2 if asked.again else 1)
        return kept + (2 if asked.again else 1) >= self._asked_min

    def _made(self, leaves: Leaves, asked: Asked) -> Prepared | str:
        """Return the plan of what is asked for, or why there is none."""
        schemas = {name: table.schema for name, table in asked.tables.items()}
        try:
            made = prepare(leaves, asked.node, schemas, asked.request)
        except Exception as refused:  # noqa: BLE001 - a fresh plan shows what is the matter, if it is not this room
            self.counters.refused += 1
            return str(refused)
        self.counters.made += 1
        return made

    def _results(self, runs: Sequence[_Run]) -> list[pa.Table | None]:
        """Run all plans, each thread its share of them, or one after the other if one of these fails."""
        self.counters.runs += len(runs)
        shares = [runs[n::THREADS] for n in range(THREADS)] if len(runs) >= RUNS_MIN else [runs]
        try:
            return self._ran(runs, shares)
        except Exception as error:  # noqa: BLE001 - see `run`
            self._failed(error)
        return [self._alone(run) for run in runs] if len(runs) > 1 else [None]

    def _alone(self, run: _Run) -> pa.Table | None:
        """Return what a plan gives; None if it fails."""
        try:
            (table,) = self._ran([run], [[run]])
        except Exception:  # noqa: BLE001 - see `run`
            return None
        return table

    def _ran(self, runs: Sequence[_Run], shares: Sequence[Sequence[_Run]]) -> list[pa.Table | None]:
        """Run the plans as ``shares`` has them."""
        assert self._leaves is not None, "a plan has leaves"
        leaves = self._leaves
        leaves.exchange([(leaf, run.tables[name]) for run in runs for name, leaf in run.plan.leaves.items()])
        self.counters.shares += len(shares)
        found: dict[int, list[bytes]] = {}
        lists = self._workers.map(lambda share: leaves.run([run.plan.batches for run in share]), shares)
        for share, batches in zip(shares, lists, strict=True):
            found |= dict(zip((run.position for run in share), batches, strict=True))
        leaves.clear([run.plan.leaves[name] for run in runs for name, rows in run.tables.items() if _are_many(rows)])
        return [run.plan.table(found[run.position]) for run in runs]

    def _failed(self, error: Exception) -> None:
        self.counters.failed += 1
        _log.info("prepared plans failed; fresh ones take their place: %s", error)


def are_few(tables: Iterable[pa.Table]) -> bool:
    """Return whether a prepared plan may read all of ``tables``."""
    read = tuple(tables)
    rows, size = sum(each.num_rows for each in read), sum(each.nbytes for each in read)
    return bool(rows <= ROWS_MAX and size <= BYTES_MAX)


def _are_many(rows: pa.Table) -> bool:
    """Return whether ``rows`` take room that a leaf should not keep until it is used again."""
    return bool(rows.nbytes > KEPT_BYTES_MAX)


def _told(kept: Prepared | str | int) -> str:
    match kept:
        case str():
            return f"fresh, because {kept.splitlines()[0]}"
        case int():
            return "fresh, because it was asked for the first time"
        case _:
            return "prepared"


def _ranked(asked: Asked, moments: Moments) -> Asked:
    tables = {name: moments.ranked(table) for name, table in asked.tables.items()}
    return replace(asked, node=moments.node, tables=tables)


def _key(asked: Asked) -> _Key:
    leaves = [(name, *((f.name, str(f.type)) for f in table.schema)) for name, table in sorted(asked.tables.items())]
    request = asked.request
    return (request.shard, asked.node, tuple(leaves), request.schema, request.normalised)


_GIVEN: Final = "given"


def only(updates: pa.Table, columns: Collection[str]) -> pa.Table:
    """Return updates with these columns, their times and diffs."""
    return updates.select([name for name in updates.column_names if name in columns or name in (TIME, DIFF)])


def small_plan(frame: Frame, request: StageRequest, given: Mapping[int, pa.Table]) -> Asked | None:
    """Return what a prepared plan is to stage in place of ``frame``; None: a fresh plan is better.

    ``given``: what other plans gave, by the identities of their frames.
    """
    if not request.small:
        return None
    match frame:
        case Planned(origin=origin, behind=Behind(node, of)) if all(id(each) in given for each in of.values()):
            read = stored_columns(node)
            tables = {name: only(given[id(each)], read.get(name, frozenset())) for name, each in of.items()}
            return Asked(node, tables, origin, request, again=True)
        case Planned(node, tables, origin):
            return Asked(node, tables, origin, request, again=True)
        case Local(table, _) if table.num_rows and are_few([table]):
            names = [name for name in table.column_names if name not in (TIME, DIFF)]
            return Asked(Get(_GIVEN, tuple((name, name) for name in names)), {_GIVEN: table}, 0, request)
        case _:
            return None


HERE_PLANS_MAX: Final = 200
_RAW: Final = "raw"


class Here:
    """The plans of one session.  Its calls block; one is served at a time, because a plan has one set of leaves.

    Each is prepared once, and runs without a job and without planning.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._leaves: Leaves | None = None
        self._kept: OrderedDict[tuple[object, ...], Prepared | None] = OrderedDict()
        self._turn = threading.Lock()
        self.failed = 0  # how often a fresh plan had to take the place of a prepared one

    def run(self, key: tuple[object, ...], table: pa.Table, rows: Callable[[DataFrame], DataFrame]) -> pa.Table:
        """Return what ``rows`` makes of ``table``; ``key`` tells such functions apart.  Raises what Spark raises."""
        with self._turn:
            try:
                plan = self._plan(
                    (*key, *((field.name, str(field.type)) for field in table.schema)), table.schema, rows
                )
                if plan is not None and self._leaves is not None:
                    self._leaves.exchange([(plan.leaves[_RAW], table)])
                    return plan.table(self._leaves.run([plan.batches])[0])
            except Exception as error:  # noqa: BLE001 - a fresh plan shows what is the matter
                self.failed += 1
                _log.info("a prepared plan failed; a fresh one takes its place: %s", error)
        return rows(dataframe(Local(table, plain=True), self._session)).toArrow()

    def _plan(
        self, key: tuple[object, ...], schema: pa.Schema, rows: Callable[[DataFrame], DataFrame]
    ) -> Prepared | None:
        if key not in self._kept:
            if self._leaves is None:
                self._leaves = Leaves(start.sibling(self._session, CONF))
            self._kept[key] = None  # what cannot be prepared is not tried again
            leaf = self._leaves.leaf(schema)
            self._kept[key] = compiled(self._leaves, {_RAW: leaf}, rows(leaf.frame))
        self._kept.move_to_end(key)
        while len(self._kept) > HERE_PLANS_MAX:
            self._kept.popitem(last=False)
        return self._kept[key]
