"""The demo's proof: compares the views with plain Spark, and DuckDB and SQLite with the views.

Plain Spark reads the raw files that arrived, applies the corrections and the new name of an airline, and answers the
views' queries; no code of Strandline takes part in that.  Both sides are compared as multisets, both ways: floats to 12
significant digits, all else exactly.
"""

from __future__ import annotations

import math
import os
import sqlite3
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, Final, TypeAlias

import duckdb
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from strandline.cli.demo.data import (
    COLUMNS,
    DATABASE,
    IN_SECOND,
    INCOMING,
    RETRACT,
    SCRATCH,
    SECOND,
    VIEWS,
)
from strandline.cli.terminal.opening import Opener
from strandline.engine.session import class_archive
from strandline.engine.session.start import SHORT_LIVED_JAVA, java_path

SIGNIFICANT_DIGITS: Final = 12
INSTANT: Final = pa.timestamp("us", tz="UTC")
Row: TypeAlias = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """How many rows one side has that the other lacks."""

    what: str
    missing: int
    extra: int

    @property
    def count(self) -> int:
        """All of them."""
        return self.missing + self.extra


def prove(plain: SparkSession, root: Path, airlines: Mapping[str, str]) -> tuple[list[Difference], list[Difference]]:
    """Return how the views differ from plain Spark, and the tables of DuckDB and SQLite from the views.

    ``plain`` is a session that Strandline does not use, in UTC; ``airlines`` maps carrier to name, as the table should
    be at the end.
    """
    wanted = _plain_answers(plain, root, airlines)
    opener = Opener(plain)
    with opener.reading(opener.project(root), sys.stderr.write) as env:
        held = {name: _rows(env.query(f"SELECT * FROM {name}").toArrow()) for name in VIEWS}  # noqa: S608
    stored = _stored(root / DATABASE)
    views = [difference(name, held[name], wanted[name]) for name in VIEWS]
    tables = [difference(name, stored[name], held[name]) for name in VIEWS]
    second = difference(f"{IN_SECOND} in SQLite", _second(root / SECOND), held[IN_SECOND])
    return views, [*tables, second]


def difference(what: str, found: Sequence[Row], wanted: Sequence[Row]) -> Difference:
    """Compare two multisets of rows.

    >>> difference("v", [("a", 0.1 + 0.2), ("b", 1)], [("a", 0.3), ("c", 1), ("c", 1)])
    Difference(what='v', missing=2, extra=1)
    """
    left, right = Counter(found), Counter(wanted)
    groups: defaultdict[Row, tuple[list[Row], list[Row]]] = defaultdict(lambda: ([], []))
    for side, rows in ((0, (left - right).elements()), (1, (right - left).elements())):
        for row in rows:
            groups[tuple(None if isinstance(value, float) else value for value in row)][side].append(row)
    extra = missing = 0
    for many, few in groups.values():
        for row in many:
            close = next((other for other in few if _close(row, other)), None)
            if close is None:
                extra += 1
            else:
                few.remove(close)
        missing += len(few)
    return Difference(what, missing, extra)


def _close(one: Row, other: Row) -> bool:
    """Return whether two rows agree, with floats compared to 12 significant digits."""
    return all(
        math.isclose(a, b, rel_tol=10.0 ** (1 - SIGNIFICANT_DIGITS)) or (math.isnan(a) and math.isnan(b))
        for a, b in zip(one, other, strict=True)
        if isinstance(a, float) and isinstance(b, float)
    ) and all(isinstance(a, float) == isinstance(b, float) for a, b in zip(one, other, strict=True))


def _rows(table: pa.Table) -> list[Row]:
    """Return a table as rows of plain values; instants are compared independent of their zone."""
    columns = []
    for column in table.columns:
        instant = pa.types.is_timestamp(column.type)
        columns.append((column.cast(INSTANT).cast(pa.int64()) if instant else column).to_pylist())
    return list(zip(*columns, strict=True))


def _stored(database: Path) -> dict[str, list[Row]]:
    with duckdb.connect(str(database), read_only=True) as connection:
        return {name: _rows(connection.sql(f'SELECT * FROM "{name}"').to_arrow_table()) for name in VIEWS}  # noqa: S608


def _second(database: Path) -> list[Row]:
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        found = connection.execute("SELECT carrier, day, flights, mean_delay FROM delays").fetchall()
    return [(carrier, date.fromisoformat(day), flights, mean) for carrier, day, flights, mean in found]


# ---- plain Spark -----------------------------------------------------------------------------------------------------


@contextmanager
def plain_spark(root: Path) -> Iterator[SparkSession]:
    """A Spark application of the proof's own; it keeps its scratch files in the demo's directory."""
    settings = {
        "spark.master": "local[*]",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": class_archive.options(java_path(os.environ), SHORT_LIVED_JAVA),
        "spark.sql.shuffle.partitions": "4",  # a few hundred thousand rows
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.local.dir": str(root / SCRATCH),
        "spark.sql.warehouse.dir": str(root / SCRATCH / "warehouse"),
    }
    builder = SparkSession.Builder()
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()


def _plain_answers(spark: SparkSession, root: Path, airlines: Mapping[str, str]) -> dict[str, list[Row]]:
    for name in COLUMNS:
        arrived = sorted((root / INCOMING / name).glob("*.csv"))
        taken_back = [path for path in arrived if path.match(RETRACT)]
        rows = _read(spark, name, [path for path in arrived if path not in taken_back])
        if taken_back:
            rows = rows.exceptAll(_read(spark, name, taken_back))
        rows.cache().createOrReplaceTempView(name)
    named = pa.table({"carrier": list(airlines), "name": list(airlines.values())})
    spark.createDataFrame(named).createOrReplaceTempView("airlines")
    return {name: _rows(spark.sql(query).toArrow()) for name, query in VIEWS.items()}


def _read(spark: SparkSession, name: str, files: Sequence[Path]) -> DataFrame:
    return spark.read.schema(COLUMNS[name]).csv([str(file) for file in files], header=True, nullValue="NA")
