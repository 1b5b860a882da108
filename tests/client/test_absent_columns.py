"""Inserted rows may leave columns out, which are NULL; a column that the table does not have is refused by its name."""

from __future__ import annotations

import pandas as pd
import pyarrow as pa
import pytest

import strandline
from strandline.errors import InvalidUsage

pytestmark = pytest.mark.spark

GIVEN = {
    "dicts": lambda spark, name: [{"id": 1, name: "tea"}],
    "arrow": lambda spark, name: pa.table({"id": [1], name: ["tea"]}),
    "batch": lambda spark, name: pa.record_batch({"id": [1], name: ["tea"]}),
    "pandas": lambda spark, name: pd.DataFrame({"id": [1], name: ["tea"]}),
    "spark": lambda spark, name: spark.createDataFrame(pd.DataFrame({"id": [1], name: ["tea"]})).selectExpr(
        "CAST(id AS INT) AS id", name
    ),
}
"""Rows of an id and one more column.  A record batch comes as polars and DuckDB hand over theirs."""


@pytest.fixture(scope="module")
def env(spark):
    """An environment in memory."""
    with strandline.open("memory://", spark=spark) as env:
        env.execute("CREATE TABLE t (id INT, name STRING, at TIMESTAMP, deep STRUCT<a: INT, b: ARRAY<STRING>>)")
        yield env


def rows(env):
    """What the table holds; it is emptied."""
    env.tick()
    found = env.answer("SELECT * FROM t")[0].to_pylist()
    env.execute("DELETE FROM t")
    return found


@pytest.mark.parametrize("kind", GIVEN)
def test_a_column_that_is_left_out_is_null(env, spark, kind):
    """Damage: a table cannot get a column without a change of every program that inserts into it."""
    env.insert("t", GIVEN[kind](spark, "Name"))
    assert rows(env) == [{"id": 1, "name": "tea", "at": None, "deep": None}]
    with pytest.raises(InvalidUsage, match="unknown: nmae"):
        env.insert("t", GIVEN[kind](spark, "nmae"))
    assert rows(env) == []


def test_a_row_to_delete_is_given_whole(env):
    """Damage: a row that was left half unsaid is deleted, though another one was meant."""
    with pytest.raises(InvalidUsage, match="missing: at, deep"):
        env.delete("t", [{"id": 1, "name": "tea"}])


@pytest.mark.parametrize("values", ["VALUES (1, 'tea')", "SELECT 1, concat('t', 'ea')"])
def test_insert_with_a_list_of_columns_leaves_the_others_null(env, values):
    """Damage: as above, in SQL; literals come in without Spark, and must mean the same."""
    env.execute(f"INSERT INTO t (id, name) {values}")
    assert rows(env) == [{"id": 1, "name": "tea", "at": None, "deep": None}]
