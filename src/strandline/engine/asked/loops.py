"""Loops: an answer whose tasks notice soon that they are cancelled, also where each row of theirs takes long.

A task looks whether it is cancelled when it takes a row from a scan, a range or a shuffle.  Code that Spark generates
for whole stages takes rows by thousands, and looks once for all of them.  That is a moment, unless each row meets all
rows of another relation (a nested loop), or becomes many rows (a generator): then it is minutes.  So an answer with
such a step is planned without that code.  Its inner loops are products, whose rows of one side are kept as a sort keeps
them: it looks at each of these, too, so loops may be nested.

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
_CONF: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.cartesianProductExec.buffer.in.memory.threshold": "1",
}


class Loops:
    """Plans answers of one session.  Calls may come from any thread."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self._lock = threading.Lock()
        self._other: SparkSession | None = None

    def interruptible(self, rows: DataFrame) -> DataFrame:
        """Return ``rows``, or the same rows planned otherwise."""
        execution: Any = rows._jdf.queryExecution()  # noqa: SLF001
        if _LOOP.search(execution.executedPlan().toString()) is None:
            return rows
        with self._lock:
            if self._other is None:
                self._other = sibling(self._session, _CONF)
            other: Any = self._other
        dataset = getattr(getattr(other._jvm.org.apache.spark.sql.classic, "Dataset$"), "MODULE$")  # noqa: SLF001
        return DataFrame(dataset.ofRows(other._jsparkSession, execution.analyzed()), other)  # noqa: SLF001
