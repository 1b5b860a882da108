"""Whether two texts are one query, before Spark analyses either; and what a WITH names, written out once."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from strandline.algebra.scalar import as_written
from strandline.bench.served.creating import layered
from strandline.compute.plan.sql import parse
from strandline.engine.asked import catalyst

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    "sql",
    [
        "select A x, count(*) n from t a left outer join u b on a.k != b.k -- why\nwhere x is not null group by A",
        "SELECT (SELECT max(a) m FROM u WHERE u.k = t.k) m FROM t WHERE EXISTS (SELECT 1 one FROM u WHERE u.a = t.a)",
        'SELECT row_number() OVER (PARTITION BY a ORDER BY b) r, "It\'s" s FROM t, LATERAL (SELECT t.a z) l',
        layered(29),
    ],
    ids=["join", "subqueries", "window", "layered"],
)
def test_a_text_and_what_the_planner_writes_of_it_are_parsed_alike(spark: SparkSession, sql: str) -> None:
    """Damage: each CREATE has Spark analyse its query twice."""
    tree = parse(sql)
    assert tree is not None
    assert as_written(tree) != sql
    assert catalyst.alike(spark, sql, as_written(tree))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("SELECT 'A' a", "SELECT 'a' a"),
        ("SELECT 1 a", "SELECT 1L a"),
        ("SELECT a FROM t", "SELECT b AS a FROM t"),
        ("SELECT a FROM t WHERE a IS NOT NULL", "SELECT a FROM t WHERE a IS NULL"),
        ("SELECT a FROM t LEFT JOIN u USING (k)", "SELECT a FROM t JOIN u USING (k)"),
        ("SELECT a FROM t LIMIT 1", "SELECT a FROM t LIMIT 2"),
        ("SELECT (SELECT max(a) m FROM u) m", "SELECT (SELECT min(a) m FROM u) m"),
        ("WITH x AS (SELECT 1 a) SELECT a FROM x", "WITH x AS (SELECT 2 a) SELECT a FROM x"),
        ("WITH x AS (SELECT 1 a) SELECT a FROM x", "WITH y AS (SELECT 1 a) SELECT a FROM x"),
        ("WITH x(a) AS (SELECT 1) SELECT * FROM x", "WITH x(b) AS (SELECT 1) SELECT * FROM x"),
        ("WITH x AS (SELECT 1 a), y AS (SELECT 2 a) SELECT a FROM x", "WITH x AS (SELECT 1 a) SELECT a FROM x"),
        ("SELECT a FROM t", "SELECT a FROM"),
    ],
)
def test_texts_that_say_something_else_are_not_parsed_alike(spark: SparkSession, one: str, other: str) -> None:
    """Damage: a query that sqlglot misreads is planned as it was read, and the view is silently wrong."""
    assert catalyst.alike(spark, one, one)
    assert not catalyst.alike(spark, one, other)


def test_what_a_with_names_is_written_out_and_gives_the_same_rows(spark: SparkSession) -> None:
    """Damage: verify compares a view with the answer to another query; or what a check makes of it takes seconds."""
    plain = spark.sql(
        "WITH a AS (SELECT id, id % 2 AS p FROM range(6)), b AS (SELECT x.id, y.p FROM a x JOIN a y ON x.p = y.id) "
        "SELECT b.*, (SELECT max(id) FROM a WHERE a.p = b.p) AS m FROM b ORDER BY id"
    )
    found = catalyst.inlined(plain)
    assert "CTE" not in catalyst.analysed_plan(found).toString()
    assert (found.columns, found.collect()) == (plain.columns, plain.collect())
    bare = spark.range(3)
    assert catalyst.inlined(bare) is bare
