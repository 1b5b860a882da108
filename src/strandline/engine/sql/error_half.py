"""Questions about error halves: how many errors there are, which come first, since when."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Final

from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses

from strandline.algebra.schema import DIFF, ERROR, TIME
from strandline.engine.frames.rows import Distributed, Frame, Local, Planned, dataframe
from strandline.engine.sql.fragments import literal
from strandline.plane import Errors

SAMPLE_MAX: Final = 5


def tally(frame: Frame, of: str | None) -> Errors:
    """Return how many errors the updates add up to, and the first ones; ``of``: of one collection alone."""
    match frame:
        case Local(table, _):
            sums: Counter[str] = Counter()
            for error, diff in zip(table[ERROR].to_pylist(), table[DIFF].to_pylist(), strict=True):
                sums[error] += diff
            left = {error: n for error, n in sums.items() if n and (of is None or _collection(error) == of)}
            return Errors(sum(left.values()), tuple(sorted(left)[:SAMPLE_MAX]))
        case Planned():
            return tally(frame.distributed(), of)
        case Distributed(lazy):
            wanted = lazy if of is None else lazy.where(f"get_json_object({ERROR}, '$.collection') = {literal(of)}")
            added = wanted.groupBy(ERROR).agg(F.expr(f"sum({DIFF}) AS {DIFF}")).where(f"{DIFF} <> 0")
            total = added.agg(F.sum(DIFF)).collect()[0][0] or 0
            first = added.orderBy(ERROR).limit(SAMPLE_MAX).collect() if total else []
            return Errors(total, tuple(row[0] for row in first))


def weights(frame: Frame, session: SparkSession) -> Mapping[int, int]:
    """Return Σ diff at each time, ascending."""
    if isinstance(frame, Local):
        return weights_here(frame)
    found = dataframe(frame, session).groupBy(TIME).agg(F.expr(f"sum({DIFF}) AS {DIFF}")).orderBy(TIME).collect()
    return {row[0]: row[1] for row in found}


def weights_here(frame: Local) -> Mapping[int, int]:
    """Return Σ diff at each time, ascending, of rows in this process."""
    sums: Counter[int] = Counter()
    for time, diff in zip(frame.table[TIME].to_pylist(), frame.table[DIFF].to_pylist(), strict=True):
        sums[time] += diff
    return dict(sorted(sums.items()))


def _collection(error: str) -> object:
    described = json.loads(error)
    return described.get("collection") if isinstance(described, dict) else None
