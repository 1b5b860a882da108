"""The prepared plans of an engine: which are kept, and the run of many of them in one Spark job.

A plan is prepared when it is asked for a second time, since most of what is asked for once (a window of two times, an
INSERT of an odd shape) is never asked for again.  The least recently used plans are forgotten.

Whatever goes wrong here costs time and no answer: the caller then runs a fresh plan, which fails as it must.

Source: design page "compute" (small windows: one plan per wave; prepared plans).
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import pyarrow as pa
from pyspark.sql import SparkSession

from strandline.algebra.nodes import Node
from strandline.engine.frames.rows import later
from strandline.engine.prepared.leaf import AS_RDD, Leaves
from strandline.engine.prepared.plan import Prepared, prepare
from strandline.engine.session import start
from strandline.persist.handles.plane import StageRequest

ROWS_MAX: Final = 50_000
"""More rows than this are better planned for what they are, in as many partitions as there are cores."""
ASKED_MIN: Final = 2
"""A plan is prepared when it is asked for as often as this."""
PLANS_MAX: Final = 500
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
    """A plan that is to be run, for what was asked at ``position``."""

    position: int
    plan: Prepared
    asked: Asked


@dataclass(slots=True)
class Plans:
    """The plans of one engine.  Its calls block; one is served at a time, because a plan has one set of leaves."""

    session: SparkSession
    counters: Counters = field(default_factory=Counters)
    _leaves: Leaves | None = None
    _kept: OrderedDict[_Key, Prepared | str | int] = field(default_factory=OrderedDict)
    """By what is asked for: the plan, or why there is none, or how often it was asked for."""
    _turn: threading.Lock = field(default_factory=threading.Lock)

    @property
    def reasons(self) -> list[str]:
        """Why plans were refused."""
        return [kept for kept in self._kept.values() if isinstance(kept, str)]

    def run(self, asked: Sequence[Asked]) -> list[pa.Table | None]:
        """Return what `parts.stage.small` gives for each, at its real times; None: run a fresh plan."""
        found: list[pa.Table | None] = [None] * len(asked)
        with self._turn:
            try:
                runs: dict[int, _Run] = {}
                for position, each in enumerate(asked):
                    plan = self._plan(each)
                    if plan is not None:
                        runs.setdefault(id(plan), _Run(position, plan, each))
                if runs:
                    for run, table in zip(runs.values(), self._results(list(runs.values())), strict=True):
                        found[run.position] = later(table, run.asked.origin)
            except Exception as error:  # noqa: BLE001 - a fresh plan shows what is the matter
                self.counters.failed += 1
                _log.info("prepared plans failed; fresh ones take their place: %s", error)
                return [None] * len(asked)
        return found

    def _plan(self, asked: Asked) -> Prepared | None:
        """Return the plan of what is asked for; None if there is none, or none yet."""
        key = _key(asked)
        kept = self._kept.get(key, 0)
        if isinstance(kept, int):
            kept = kept + 1 if kept + 1 < ASKED_MIN else self._made(asked)
        self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > PLANS_MAX:
            self._kept.popitem(last=False)
        return kept if isinstance(kept, Prepared) else None

    def _made(self, asked: Asked) -> Prepared | str:
        if self._leaves is None:
            self._leaves = Leaves(start.sibling(self.session, CONF))
        try:
            schemas = {name: table.schema for name, table in asked.tables.items()}
            plan = prepare(self._leaves, asked.node, schemas, asked.request)
        except Exception as refused:  # noqa: BLE001 - a fresh plan shows what is the matter, if it is not this room
            self.counters.refused += 1
            return str(refused)
        self.counters.made += 1
        return plan

    def _results(self, runs: Sequence[_Run]) -> list[pa.Table]:
        """Run all plans in one job."""
        assert self._leaves is not None, "a plan has leaves"
        self._leaves.exchange(
            [
                (leaf, later(run.asked.tables[name], -run.asked.origin))
                for run in runs
                for name, leaf in run.plan.leaves.items()
            ]
        )
        self.counters.runs += len(runs)
        self.counters.jobs += 1
        found = self._leaves.run([run.plan.batches for run in runs])
        return [run.plan.table(batches) for run, batches in zip(runs, found, strict=True)]


def _key(asked: Asked) -> _Key:
    leaves = [(name, *((f.name, str(f.type)) for f in table.schema)) for name, table in sorted(asked.tables.items())]
    request = asked.request
    return (request.shard, asked.node, tuple(leaves), request.schema, request.normalised)
