"""Plans over few rows of this process that are no nodes, as those that decode: prepared once, no job, no planning."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.engine.frames.rows import Local, dataframe
from strandline.engine.prepared.leaf import Leaves
from strandline.engine.prepared.plan import Prepared, compiled
from strandline.engine.prepared.plans import CONF
from strandline.engine.session import start

PLANS_MAX: Final = 200
_RAW: Final = "raw"
_log = logging.getLogger(__name__)


class Here:
    """The plans of one session.  Its calls block; one is served at a time, because a plan has one set of leaves."""

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
        while len(self._kept) > PLANS_MAX:
            self._kept.popitem(last=False)
        return self._kept[key]
