"""What a notebook shows of the public objects, and what it may insert."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import strandline

pytestmark = pytest.mark.spark


def test_objects_say_what_they_are_where_a_notebook_shows_them(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: a person at a notebook sees an address in memory, and not whether the commit happened."""
    with strandline.open(str(tmp_path / "data"), spark=spark) as env:
        assert repr(env) == "<Environment: writes; nothing is defined>"
        env.execute("CREATE TABLE t (id INT, name STRING)")
        env.execute("CREATE TABLE u (id INT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT id FROM t")
        assert repr(env) == "<Environment: writes; 2 tables, 1 view>"
        with env.transaction() as transaction:
            transaction.insert("t", [{"id": 1, "name": "a"}])
            assert repr(transaction) == "<Transaction of 1 change, not committed>"
        assert repr(transaction) == f"<Transaction of 1 change, committed at {transaction.timestamp}>"
        found = env.collection("t")
        assert repr(found) == f"<Collection t (`id` int, `name` string): times {found.since} to before {found.upper}>"
    assert repr(env) == "<Environment: closed>"
    with strandline.open(str(tmp_path / "data"), spark=spark, read_only=True) as reading:
        reading.collection("t")
        assert repr(reading) == "<Environment: mode read; 2 tables, 1 view>"


def test_a_frame_of_polars_is_inserted(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: a person who works in polars has to find out how rows become Arrow."""
    polars = pytest.importorskip("polars")
    with strandline.open(str(tmp_path / "data"), spark=spark) as env:
        env.execute("CREATE TABLE t (id INT, name STRING, tags ARRAY<STRING>)")
        env.insert("t", polars.DataFrame({"name": ["a", None], "id": [1, 2], "tags": [["x"], None]}))
        rows, _ = env.answer("SELECT * FROM t ORDER BY id")
        assert rows.to_pylist() == [{"id": 1, "name": "a", "tags": ["x"]}, {"id": 2, "name": None, "tags": None}]
