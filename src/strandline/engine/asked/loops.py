"""Loops: an answer whose tasks notice soon that they are cancelled, also where each row of theirs takes long.

A task looks whether it is cancelled when it takes a row from a scan, a range or a shuffle.  Code that Spark generates
for whole stages takes rows by thousands, and looks once for all of them.  That is a moment, unless each row meets all
rows of another relation (a nested loop), or becomes many rows (a generator): then it is minutes.  So an answer with
such a step is planned without that code.  Its inner loops are products, whose rows of one side are kept as a sort keeps
them: it looks at each of these, too, so loops may be nested.

A product has a task for each pair of its sides' partitions, and Spark takes no slot away from a task that runs: three
inputs of a partition per core would take all slots until they end.  So what is looped over has so few partitions that a
loop has a task per core at most.

Limit: a loop that is no inner join, or a generator, inside of another one.

This is Spark's inside: no public call plans a frame of one session in another.
"""

from __future__ import annotations

import re
import threading
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from strandline.engine.session.start import sibling

_LOOP: Final = re.compile(r"^[\s:+\-*()\d]*(BroadcastNestedLoopJoin|CartesianProduct|Generate)\b", re.MULTILINE)
"""A line of Spark's text of a plan for a step that may make many rows, or comparisons, of one row."""
_GENERATOR: Final = "Generate"
"""How the line of such a step begins that is no product."""
_CONF: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.cartesianProductExec.buffer.in.memory.threshold": "1",
}
_PARTITIONS: Final = (
    "spark.sql.leafNodeDefaultParallelism",
    "spark.sql.shuffle.partitions",
    "spark.sql.files.minPartitionNum",
    "spark.sql.files.maxPartitionNum",
)
"""What says how many partitions a relation in memory, a shuffle and a scan have."""


def partitions(cores: int, inputs: int) -> int:
    """Return how many partitions each of so many inputs has, so that all combinations are no more than the cores.

    >>> [partitions(*each) for each in ((2, 2), (8, 2), (8, 3), (64, 3), (2, 9))]
    [1, 2, 2, 4, 1]
    """
    return max(parts for parts in range(1, cores + 1) if parts**inputs <= cores)


class Loops:
    """Plans answers of one session.  Calls may come from any thread."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._others: dict[int, SparkSession] = {}
        """By how many partitions each input has."""

    def interruptible(self, rows: DataFrame) -> DataFrame:
        """Return ``rows``, or the same rows planned otherwise."""
        execution: Any = rows._jdf.queryExecution()  # noqa: SLF001
        loops = _LOOP.findall(execution.executedPlan().toString())
        if not loops:
            return rows
        parts = partitions(self._session.sparkContext.defaultParallelism, 1 + len(loops) - loops.count(_GENERATOR))
        with self._lock:
            if parts not in self._others:
                few = dict.fromkeys(_PARTITIONS, str(parts))
                self._others[parts] = sibling(self._session, _CONF | few)
            other: Any = self._others[parts]
        dataset = getattr(getattr(other._jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")  # noqa: SLF001
        return DataFrame(dataset.ofRows(other._jsparkSession, execution.analyzed()), other)  # noqa: SLF001
