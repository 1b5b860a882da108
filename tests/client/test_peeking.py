"""A peek gives what a query gives, from memory where an index is, by keys of any type, and beside ticks."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.client import Environment
from strandline.controller.asking import peeking
from strandline.errors import AsOfError, CollectionError, InvalidUsage

pytestmark = pytest.mark.spark

PATIENCE_S = 120.0

COLUMNS = "i INT, l BIGINT, s STRING, d DECIMAL(9,2), at TIMESTAMP, naive TIMESTAMP_NTZ, day DATE, f DOUBLE, b BOOLEAN"
NOON = dt.datetime(2026, 1, 2, 12, tzinfo=dt.UTC)
VALUES: dict[str, list[Any]] = {
    "i": [1, -2, None],
    "l": [1 << 40, 0, None],
    "s": ["", "a", "é" * 20, None],
    "d": [Decimal("1.50"), Decimal("-3.00"), None],
    "at": [NOON, NOON + dt.timedelta(microseconds=1), None],
    "naive": [NOON.replace(tzinfo=None), None],
    "day": [NOON.date(), dt.date(1960, 2, 29), None],
    "f": [0.0, 1.5, float("nan"), None],
    "b": [True, False, None],
}
SQL = {"i": "INT", "l": "BIGINT", "s": "STRING", "d": "DECIMAL(9,2)", "at": "TIMESTAMP", "naive": "TIMESTAMP_NTZ"}
SQL |= {"day": "DATE", "f": "DOUBLE", "b": "BOOLEAN"}
INDEXED = [("i",), ("s",), ("d",), ("at",), ("naive", "b"), ("day", "f"), ("f",), ("l", "s", "i")]


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have an index that a busy machine holds up be waited for: else the collection is read."""
    monkeypatch.setattr(peeking, "ANSWER_S", PATIENCE_S)


def opened(root: Path, spark: SparkSession, **options: Any) -> Environment:
    """Open a location."""
    return strandline.open(f"file://{root}", spark=spark, **options)


def literal(column: str, value: Any) -> str:
    """Return a value as SQL."""
    text = "NULL" if value is None else f"'{value}'"
    return f"CAST({text} AS {SQL[column]})"


def plain(rows: pa.Table) -> Counter[str]:
    """Return rows as they can be compared."""
    return Counter(map(str, rows.to_pylist()))


def asked(env: Environment, name: str, key: Mapping[str, Any], as_of: int | None = None) -> Counter[str]:
    """Return what plain Spark answers."""
    where = " AND ".join(f"{column} <=> {literal(column, value)}" for column, value in key.items())
    return plain(env.answer(f"SELECT * FROM {name} WHERE {where}", as_of)[0].cast(env.peek(name, key, limit=0).schema))


def some(rng: random.Random) -> dict[str, Any]:
    """Return a row."""
    return {column: rng.choice(values) for column, values in VALUES.items()}


def test_keys_of_every_type_find_what_a_query_finds(tmp_path: Path, spark: SparkSession) -> None:
    """Damage: a row is missed because of its key's type, a NULL or a NaN; or one that was withdrawn is found."""
    rng = random.Random(1)
    with opened(tmp_path / "location", spark) as env:
        env.execute(f"CREATE TABLE t ({COLUMNS})")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT * FROM t WHERE i IS NULL OR i < 5")
        for number, columns in enumerate(INDEXED):
            env.execute(f"CREATE INDEX i{number} ON v ({', '.join(columns)})")
        rows = [some(rng) for _ in range(60)]
        env.insert("t", [*rows, *rows[:5]])
        times = [env.tick()]
        gone = rng.sample(rows, 10)
        env.delete("t", [row for row in gone if row["f"] is None or not math.isnan(row["f"])])
        env.insert("t", [some(rng) for _ in range(10)])
        times.append(env.tick())
        before = {name: dict(each["peeks"]) for name, each in env.status()["indexes"].items()}
        for columns in INDEXED:
            for row in rng.sample(rows, 3):
                key = {column: row[column] for column in columns}
                time = rng.choice(times)
                assert plain(env.peek("v", key, as_of=time)) == asked(env, "v", key, time), key
        for name, each in env.status()["indexes"].items():
            assert each["in_memory"], name
            assert each["peeks"]["scanned"] == before[name]["scanned"] == 0
            assert each["peeks"]["memory"] > before[name]["memory"]
        several = [{"i": 1}, {"i": None}]
        assert plain(env.peek("v", several)) == asked(env, "v", several[0]) + asked(env, "v", several[1])
        unindexed = {"l": 0, "b": True}
        assert plain(env.peek("v", unindexed)) == asked(env, "v", unindexed)
        assert env.peek("v", []).num_rows == 0
        for key, why in (
            ({"d": 1.5}, "decimal"),
            ({"at": NOON.date()}, "a date"),
            ({"d": Decimal("1.234")}, "cannot hold"),
        ):
            with pytest.raises(InvalidUsage, match=why):
                env.peek("v", key)
    with opened(tmp_path / "location", spark, read_only=True) as reading:
        key = {"s": "a"}
        assert plain(reading.peek("v", key)) == asked(reading, "v", key), "a process that only reads has no index"


def test_a_peek_waits_for_no_tick_and_for_a_time_that_is_to_come(tmp_path: Path, spark: SparkSession) -> None:
    """Damage: one long tick holds up all who look at a row; or a peek says what is not complete yet."""
    with opened(tmp_path / "location", spark) as env:
        env.execute("CREATE TABLE t (k INT, v STRING)")
        env.execute("CREATE INDEX by_k ON t (k)")
        env.insert("t", [{"k": 1, "v": "a"}])
        env.tick()
        with ThreadPoolExecutor(1) as beside, env._access.turn:  # as a tick has it
            found = beside.submit(env.peek, "t", {"k": 1}).result(PATIENCE_S)
        assert found.to_pylist() == [{"k": 1, "v": "a"}]
        env.insert("t", [{"k": 2, "v": "b"}])
        assert env.peek("t", {"k": 2}).num_rows == 1, "what was inserted is there at once"
        with pytest.raises(AsOfError):
            env.peek("t", {"k": 2}, as_of=1 << 50, timeout=0.1)
        assert env.status()["indexes"]["by_k"]["peeks"]["scanned"] == 0


def test_a_collection_with_errors_is_refused_by_its_index_too(tmp_path: Path, spark: SparkSession) -> None:
    """Damage: a peek shows rows beside which others are missing, where a query would say so."""
    with opened(tmp_path / "location", spark) as env:
        env.execute("CREATE TABLE t (k INT, v INT)")
        env.execute("CREATE MATERIALIZED VIEW w AS SELECT k, 10 / v AS q FROM t")
        env.execute("CREATE INDEX by_k ON w (k)")
        env.insert("t", [{"k": 1, "v": 2}, {"k": 2, "v": 0}])
        env.tick()
        for key in ({"k": 1}, {"q": 5.0}):
            with pytest.raises(CollectionError):
                env.peek("w", key)
        env.delete("t", [{"k": 2, "v": 0}])
        env.tick()
        assert env.peek("w", {"k": 1}).to_pylist() == [{"k": 1, "q": 5.0}]
