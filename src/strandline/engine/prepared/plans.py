"""The prepared plans of an engine: which are kept, and the run of many of them in one Spark job.

A plan is prepared when it is asked for a second time, since much of what is asked for once (an INSERT of an odd shape)
is never asked for again; and it is prepared beside the ticks, which run fresh plans until it is ready.  The least
recently used plans are forgotten.

Whatever goes wrong here costs time and no answer: the caller then runs a fresh plan, which fails as it must.

Source: design page "compute" (small windows: one plan per wave; prepared plans).
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from strandline.algebra.nodes import Node
from strandline.engine.prepared.leaf import AS_RDD, Leaves
from strandline.engine.prepared.moments import Moments
from strandline.engine.prepared.plan import Prepared, prepare
from strandline.engine.session import start
from strandline.persist.handles.plane import StageRequest

ROWS_MAX: Final = 50_000
"""More rows than this are better planned for what they are, in as many partitions as there are cores."""
ASKED_MIN: Final = 2
"""A plan is prepared when it is asked for as often as this."""
PLANS_MAX: Final = 300
"""How many plans are kept, and how many of which it is only known that they were asked for."""

CONF: Final[Mapping[str, str]] = {
    # No exchange and no broadcast: both keep the rows of their first run.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
    "spark.sql.maxSinglePartitionBytes": "9223372036854775807b",
    "spark.sql.defaultSizeInBytes": "100",
    "spark.sql.join.preferSortMergeJoin": "false",
    # Such a union looks for its inputs' partitions by number, and those of leaves have the numbers of their rows.
    "spark.sql.unionOutputPartitioning": "false",
    AS_RDD: "0",
}

JOBS: Final = 2
RUNS_MIN: Final = 4
"""So many plans are worth a second job beside the first."""
_BEING_MADE: Final = "it is being made"
_log = logging.getLogger(__name__)
_Key: TypeAlias = tuple[object, ...]


@dataclass
class Counters:
    """What happened: runs of prepared plans, jobs of them, plans made, plans refused, and runs that failed."""

    runs: int = 0
    jobs: int = 0
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


@dataclass(frozen=True, slots=True)
class _Run:
    """A plan that is to be run over ``tables``, for what was asked at ``position``; ``moments`` are its times."""

    position: int
    plan: Prepared
    tables: Mapping[str, pa.Table]
    moments: Moments


class Plans:
    """The plans of one engine.  Its calls block; one is served at a time, because a plan has one set of leaves."""

    def __init__(self, session: SparkSession) -> None:
        self.session = session
        self.counters = Counters()
        self._leaves: Leaves | None = None
        self._kept: OrderedDict[_Key, Prepared | str | int] = OrderedDict()
        # by what is asked for: the plan, or why there is none, or how often it was asked for
        self._guard = threading.Lock()  # held for moments, over what is kept
        self._turn = threading.Lock()
        self._preparer = ThreadPoolExecutor(1, thread_name_prefix="strandline-prepare")
        self._runners = ThreadPoolExecutor(JOBS, thread_name_prefix="strandline-wave")

    def close(self) -> None:
        """Prepare nothing more."""
        self._preparer.shutdown(cancel_futures=True)
        self._runners.shutdown()

    @property
    def reasons(self) -> list[str]:
        """Why plans were refused."""
        with self._guard:
            return [kept for kept in self._kept.values() if isinstance(kept, str) and kept != _BEING_MADE]

    def run(self, asked: Sequence[Asked]) -> list[pa.Table | None]:
        """Return what `parts.staging.small` gives for each, at its real times; None: run a fresh plan."""
        found: list[pa.Table | None] = [None] * len(asked)
        with self._turn:
            try:
                runs: dict[int, _Run] = {}
                for position, each in enumerate(asked):
                    moments = Moments.of(each.node, each.origin)
                    tables = {name: moments.ranked(table) for name, table in each.tables.items()}
                    plan = self._plan(replace(each, node=moments.node, tables=tables))
                    if plan is not None:
                        runs.setdefault(id(plan), _Run(position, plan, tables, moments))
                if runs:
                    for run, table in zip(runs.values(), self._results(list(runs.values())), strict=True):
                        found[run.position] = run.moments.real(table)
            except Exception as error:  # noqa: BLE001 - a fresh plan shows what is the matter
                self.counters.failed += 1
                _log.info("prepared plans failed; fresh ones take their place: %s", error)
                return [None] * len(asked)
        return found

    def _plan(self, asked: Asked) -> Prepared | None:
        """Return the plan of what is asked for; None if there is none, or none yet."""
        key = _key(asked)
        with self._guard:
            times = self._kept.get(key, 0)
            due = isinstance(times, int) and times + 1 >= ASKED_MIN
            if isinstance(times, int):
                self._kept[key] = _BEING_MADE if due else times + 1
            self._kept.move_to_end(key)
            while len(self._kept) > PLANS_MAX:
                self._kept.popitem(last=False)
        if due:
            self._spawn(partial(self._make, key, asked))
        kept = self._kept.get(key)
        return kept if isinstance(kept, Prepared) else None

    def _spawn(self, call: Callable[[], None]) -> None:
        """Do it beside the caller, whom a fresh plan serves meanwhile."""
        self._preparer.submit(call)

    def _make(self, key: _Key, asked: Asked) -> None:
        """Prepare what is asked for, and run it once over nothing: that compiles what it needs."""
        made: Prepared | str
        try:
            if self._leaves is None:
                self._leaves = Leaves(start.sibling(self.session, CONF))
            schemas = {name: table.schema for name, table in asked.tables.items()}
            made = prepare(self._leaves, asked.node, schemas, asked.request)
            self._leaves.exchange([(made.leaves[name], table.slice(0, 0)) for name, table in asked.tables.items()])
            self._leaves.run([made.batches])
            self.counters.made += 1
        except Exception as refused:  # noqa: BLE001 - a fresh plan shows what is the matter, if it is not this room
            self.counters.refused += 1
            made = str(refused)
        with self._guard:
            if key in self._kept:
                self._kept[key] = made

    def _results(self, runs: Sequence[_Run]) -> list[pa.Table]:
        """Run all plans: in one job, or in as many as there are cores to serve them."""
        assert self._leaves is not None, "a plan has leaves"
        leaves = self._leaves
        leaves.exchange([(leaf, run.tables[name]) for run in runs for name, leaf in run.plan.leaves.items()])
        jobs = [runs[n::JOBS] for n in range(JOBS)] if len(runs) >= RUNS_MIN else [runs]
        self.counters.runs += len(runs)
        self.counters.jobs += len(jobs)
        found: dict[int, list[bytes]] = {}
        for job, lists in zip(
            jobs, self._runners.map(lambda job: leaves.run([run.plan.batches for run in job]), jobs), strict=True
        ):
            found |= {run.position: batches for run, batches in zip(job, lists, strict=True)}
        return [run.plan.table(found[run.position]) for run in runs]


def _key(asked: Asked) -> _Key:
    leaves = [(name, *((f.name, str(f.type)) for f in table.schema)) for name, table in sorted(asked.tables.items())]
    request = asked.request
    return (request.shard, asked.node, tuple(leaves), request.schema, request.normalised)
