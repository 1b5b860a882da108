"""`strandline bench keys`: a tick over many short keys, and over the same with one long key among them.

A view counts rows by a text.  Each tick brings so many rows of short texts; every other tick brings one more row, whose
text has a length that is measured.  All texts are new, so each tick hashes, stores and joins all of them.
"""

from __future__ import annotations

import itertools
import os
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from strandline import client as programs
from strandline.bench.measured import seconds
from strandline.client import Environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LENGTHS: Final = (1_000, 100_000, 5_000_000, 20_000_000, 50_000_000)
WARM: Final = 3
"""So many ticks are not counted, until Spark's own code is compiled."""


def measure_keys(
    session: SparkSession, place: Path, *, rows: int, ticks: int, lengths: Sequence[int]
) -> dict[str, Any]:
    """Return for each length how long a tick takes without such a key, and with one: the median of so many."""
    with programs.open(f"file://{place}", spark=session) as env:
        env.execute("CREATE TABLE words (word STRING)")
        env.execute("CREATE MATERIALIZED VIEW counted AS SELECT word, count(*) AS n FROM words GROUP BY word")
        numbers = itertools.count()
        for _ in range(WARM):
            _ticked(env, numbers, rows)
        found = []
        for length in lengths:
            pairs = [(_ticked(env, numbers, rows), _ticked(env, numbers, rows, length)) for _ in range(ticks)]
            without, beside = (statistics.median(each) for each in zip(*pairs, strict=True))
            found.append(
                {
                    "bytes": length,
                    "without_s": round(without, 2),
                    "with_s": round(beside, 2),
                    "ratio": round(beside / without, 2),
                }
            )
        equal = env.verify("counted").ok
    return {"rows": rows, "lengths": found, "equal": equal, "load": round(os.getloadavg()[0], 1)}


def _ticked(env: Environment, numbers: itertools.count[int], rows: int, length: int = 0) -> float:
    """Insert short texts, and a long one, and return how many seconds the tick takes that follows."""
    first = next(numbers) * rows
    words = [f"word {n}" for n in range(first, first + rows)]
    if length:
        words.append(f"{first} ".ljust(length, "x"))
    env.insert("words", pa.table({"word": pa.array(words, pa.string())}))
    return seconds(env.tick)
