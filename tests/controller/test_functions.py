"""Views call functions of the user's that are marked as deterministic; others are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses
from pyspark.sql.types import LongType, StringType

import strandline
from strandline.engine.frames.failures import as_ours
from strandline.errors import CollectionError, ConfigError, DefinitionError

pytestmark = pytest.mark.spark

MODULE = """
from pyspark.sql.functions import udf

def _plain(text):
    return None if text is None else text.strip().lower().replace(" ", "-")

slug = udf(_plain, "string")
"""


def slug(text):  # type: ignore[no-untyped-def]  # Spark takes annotations for its own
    """Return a text as a part of an address."""
    return None if text is None else text.lower().replace(" ", "-")


def reciprocal(number):  # type: ignore[no-untyped-def]
    """Raise for 0."""
    return 1 / number


@F.pandas_udf(LongType())
def doubled(values: pd.Series) -> pd.Series:
    """Return each value twice as large."""
    return values * 2


def opened(location: Path, spark: SparkSession, **functions: Any) -> strandline.Environment:
    """Open an environment whose views may call ``functions``."""
    return strandline.open(location.as_uri(), spark=spark, config={"functions": functions})


def rows(env: strandline.Environment, query: str) -> list[tuple[Any, ...]]:
    """Return what a query gives, in order."""
    return sorted(tuple(row) for row in env.query(query).collect())


def test_a_view_calls_a_function_and_follows_changes(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: a tick calls the function by no name that its session knows, or keeps what it returned for other rows."""
    with opened(tmp_path, spark, Slug=F.udf(slug, StringType()), doubled=doubled) as env:
        env.execute("CREATE TABLE t (a STRING, b BIGINT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT slug(a) AS s, sum(doubled(b)) AS n FROM t GROUP BY slug(a)")
        for round_ in range(4):
            env.execute(f"INSERT INTO t VALUES ('A B', {round_}), ('a b', 10), (NULL, 1)")
            env.tick()
        env.execute("DELETE FROM t WHERE b = 3")
        env.tick()
        assert rows(env, "SELECT s, n FROM v WHERE s IS NOT NULL") == [("a-b", 2 * (0 + 1 + 2 + 40))]
        assert rows(env, "SELECT n FROM v WHERE s IS NULL") == [(8,)]
        assert env.verify("v").ok


def test_what_a_function_raises_is_an_error_until_the_row_has_gone(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the row is dropped, or the other views stop."""
    with opened(tmp_path, spark, reciprocal=F.udf(reciprocal, "double")) as env:
        env.execute("CREATE TABLE t (b BIGINT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT b, reciprocal(b) AS r FROM t")
        env.execute("CREATE MATERIALIZED VIEW w AS SELECT count(*) AS n FROM t")
        env.execute("INSERT INTO t VALUES (2), (0)")
        env.tick()
        assert not env.status()["problems"]
        with pytest.raises(CollectionError, match="as a whole"):
            rows(env, "SELECT b, r FROM v")
        with pytest.raises(PythonException) as raised:
            rows(env, "SELECT reciprocal(b) FROM t")
        assert "a function raised ZeroDivisionError: division by zero" in str(as_ours(raised.value))
        assert rows(env, "SELECT n FROM w") == [(2,)]
        env.execute("DELETE FROM t WHERE b = 0")
        env.tick()
        assert rows(env, "SELECT b, r FROM v") == [(2, 0.5)]


def test_a_view_whose_function_is_not_there_waits_for_it(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the view stands still and does not say so, or skips the rows that came meanwhile."""
    (tmp_path / "text.py").write_text(MODULE)
    where = tmp_path / "at"
    with opened(where, spark, slug=f"{tmp_path / 'text.py'}:slug") as env:
        env.execute("CREATE TABLE t (a STRING)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT slug(a) AS s FROM t")
        env.execute("INSERT INTO t VALUES (' A B')")
        env.tick()
        assert rows(env, "SELECT s FROM v") == [("a-b",)]
    with opened(where, spark) as env:
        env.execute("INSERT INTO t VALUES ('C')")
        env.tick()
        (problem,) = env.status()["problems"].values()
        assert "function slug" in problem
        assert "functions" in problem
    with opened(where, spark, slug=f"{tmp_path / 'text.py'}:slug") as env:
        env.tick()
        assert rows(env, "SELECT s FROM v") == [("a-b",), ("c",)]


@pytest.mark.parametrize(
    ("name", "function", "message"),
    [
        ("dice", F.udf(slug, StringType()).asNondeterministic(), "nondeterministic"),
        ("upper", F.udf(slug, StringType()), "a function of Spark's"),
        ("a b", F.udf(slug, StringType()), "no name"),
        ("plain", slug, "no udf"),
        ("text", "no.such.module:slug", "not found"),
        ("text", "slug", "MODULE:NAME"),
    ],
)
def test_what_views_cannot_call_is_refused(
    spark: SparkSession, tmp_path: Path, name: str, function: Any, message: str
) -> None:
    """Damage: a view whose value is not a function of its inputs."""
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path, spark, **{name: function})


def test_an_aggregate_of_the_users_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the planner takes it for a function of one row."""

    def mean(values: pd.Series) -> float:
        return float(values.mean())

    with pytest.raises(ConfigError, match="for each row"):
        opened(tmp_path, spark, mean=F.pandas_udf(mean, "double"))


def test_a_function_that_is_not_configured_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the error does not say how to have one."""
    with opened(tmp_path, spark, slug=F.udf(slug, StringType())) as env:
        env.execute("CREATE TABLE t (a STRING)")
        with pytest.raises(DefinitionError, match="did you mean slug"):
            env.execute("CREATE MATERIALIZED VIEW v AS SELECT slugs(a) AS s FROM t")
