"""Plain Spark, which answers each view's text anew over the same contents: what a tick is measured beside.

It reads the contents' own files, one for each table, Parquet as PyArrow writes it (compact, nothing deleted in it), and
hands its answer to Python; nothing is stored.  That is the least that a recompute can cost: one that is to be read by
others writes its answer as well.  Its session has Spark's own configuration (adaptive execution on), with as many
shuffle partitions as there are cores.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from strandline.bench.tpch.contents import Contents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SIGNIFICANT_DIGITS: Final = 12
CONF: Final = {"spark.sql.adaptive.enabled": "true", "spark.sql.session.timeZone": "UTC"}


class Peer:
    """A session of its own over the tables' contents."""

    def __init__(self, session: SparkSession) -> None:
        self._spark = session.newSession()
        cores = session.sparkContext.defaultParallelism
        for key, value in {**CONF, "spark.sql.shuffle.partitions": str(cores)}.items():
            self._spark.conf.set(key, value)

    def follow(self, contents: Contents, tables: Iterable[str]) -> None:
        """Read from now on what ``contents`` holds, of which ``tables`` have changed."""
        for name in tables:
            path = contents.files[name].as_uri()
            self._spark.read.schema(_ddl(contents, name)).parquet(path).createOrReplaceTempView(name)

    def answer(self, query: str) -> tuple[pa.Table, float]:
        """Return the rows of ``query``, and how many milliseconds Spark took from its text to them."""
        begun = time.perf_counter()
        rows = self._spark.sql(query).toArrow()
        return rows, (time.perf_counter() - begun) * 1000


def columns(contents: Contents, table: str) -> str:
    """Return the columns of a table as Spark declares them."""
    return _ddl(contents, table)


def _ddl(contents: Contents, table: str) -> str:
    from pyspark.sql.pandas.types import from_arrow_type

    fields = contents.schema(table)
    return ", ".join(f"{field.name} {from_arrow_type(field.type).simpleString()}" for field in fields)


def differences(ours: pa.Table, theirs: pa.Table) -> tuple[int, int]:
    """Return how many rows ours lacks and how many it has too many, as multisets; floats to `SIGNIFICANT_DIGITS`.

    >>> one = pa.table({"a": [1, 1, 2], "b": [0.1, 0.1, 0.2]})
    >>> differences(one, pa.table({"a": [2, 1, 3], "b": [0.1 + 0.1, 0.1 + 1e-14, 0.3]}))
    (1, 1)
    """
    have, want = _multiset(ours), _multiset(theirs)
    return (want - have).total(), (have - want).total()


def _multiset(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(_values(column.to_pylist()) for column in rows.columns), strict=True))


def _values(values: Iterable[Any]) -> list[Any]:
    return [f"{each:.{SIGNIFICANT_DIGITS}g}" if isinstance(each, float) else each for each in values]
