"""`SparkAnalyst` says what a query's columns are, or where and why it cannot be."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from tests.compute.random_views import TABLES, random_view

from strandline.algebra.scalar import text
from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.sql import parse
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.errors import DefinitionError, Position

pytestmark = pytest.mark.spark

FLIGHTS = Schema((Column("carrier", "string"), Column("delay", "double"), Column("day", "date")))


@pytest.fixture(scope="module")
def analyst(spark: SparkSession) -> SparkAnalyst:
    """One analyst; it keeps nothing between calls."""
    return SparkAnalyst(spark)


def test_the_columns_and_types_are_sparks(analyst: SparkAnalyst, spark: SparkSession) -> None:
    """Damage: a view is stored under another type than its query gives."""
    sql = "SELECT carrier, avg(delay) AS mean, struct(day AS `the day`, 1 AS n) AS s FROM flights GROUP BY ALL"
    found = analyst.schema_of(sql, {"flights": FLIGHTS})
    assert [(c.name, c.type) for c in found] == [
        ("carrier", "string"),
        ("mean", "double"),
        ("s", "struct<`the day`:date,n:int>"),
    ]
    assert [row.viewName for row in spark.sql("SHOW VIEWS").collect() if row.viewName.startswith("__")] == []


def test_an_unknown_column_is_named_with_its_place_and_candidates(analyst: SparkAnalyst) -> None:
    """Damage: the author of a view searches for a typing error."""
    with pytest.raises(DefinitionError, match="unknown column dealy; did you mean delay") as refused:
        analyst.schema_of("SELECT carrier,\n  dealy FROM flights", {"flights": FLIGHTS})
    assert refused.value.position == Position(2, 3)


def test_columns_that_are_listed_are_all_that_there_are_or_said_to_be_some(analyst: SparkAnalyst) -> None:
    """Damage: an author looks for a column that is there, and was left out of the list."""
    few = Schema(tuple(Column(name, "int") for name in "abcd"))
    with pytest.raises(DefinitionError, match=r"unknown column zzz; there is a, b, c, d \("):
        analyst.schema_of("SELECT zzz FROM t", {"t": few})
    many = Schema(tuple(Column(name, "int") for name in "abcdef"))
    with pytest.raises(DefinitionError, match="unknown column zzz; there is a, b, c, d, e, among others"):
        analyst.schema_of("SELECT zzz FROM t", {"t": many})


def test_an_unknown_relation_is_named_with_its_place_and_candidates(analyst: SparkAnalyst) -> None:
    """Damage: likewise."""
    with pytest.raises(DefinitionError, match="unknown relation flight; did you mean flights") as refused:
        analyst.schema_of("SELECT * FROM flight", {"flights": FLIGHTS})
    assert refused.value.position == Position(1, 15)


def test_a_syntax_error_has_line_and_column(analyst: SparkAnalyst) -> None:
    """Damage: likewise."""
    with pytest.raises(DefinitionError, match="flights") as refused:
        analyst.schema_of("SELECT *\nFORM flights x y", {"flights": FLIGHTS})
    assert refused.value.position == Position(2, 6)
    assert ")" not in refused.value.message


def test_a_query_that_is_nested_too_deeply_is_refused(analyst: SparkAnalyst) -> None:
    """Damage: a generated query ends in a Java error with its stack."""
    with pytest.raises(DefinitionError, match="nested too deeply"):
        analyst.schema_of(f"SELECT {'(' * 2_000}carrier{')' * 2_000} AS k FROM t", {"t": FLIGHTS})


def test_a_type_error_is_one_sentence(analyst: SparkAnalyst) -> None:
    """Damage: forty lines of plan hide the reason."""
    with pytest.raises(DefinitionError) as refused:
        analyst.schema_of("SELECT sum(carrier > 1, 2) FROM flights", {"flights": FLIGHTS})
    assert "\n" not in str(refused.value)
    assert "SQLSTATE" not in str(refused.value)


@pytest.mark.parametrize(
    "sql", ["DROP TABLE flights", "INSERT INTO flights VALUES (1)", "SELECT 1 AS a, 2 AS A", "SELECT map(1, 2) AS m"]
)
def test_what_is_no_view_is_refused(analyst: SparkAnalyst, sql: str) -> None:
    """Damage: looking at a definition runs a command, or accepts what cannot be stored."""
    with pytest.raises(DefinitionError):
        analyst.schema_of(sql, {"flights": FLIGHTS})


def test_a_column_list_becomes_a_schema(analyst: SparkAnalyst) -> None:
    """Damage: a table has other types than its statement says."""
    found = analyst.parse_ddl("a INT, `b c` ARRAY<STRUCT<x: DECIMAL(10, 2), y: STRING>>, t TIMESTAMP_NTZ")
    assert [(c.name, c.type) for c in found] == [
        ("a", "int"),
        ("b c", "array<struct<x:decimal(10,2),y:string>>"),
        ("t", "timestamp_ntz"),
    ]
    assert analyst.parse_ddl(found.ddl) == found


@pytest.mark.parametrize(
    ("left", "right", "common"),
    [
        ("int", "string", "bigint"),
        ("string", "date", "date"),
        ("bigint", "double", "double"),
        ("decimal(38,0)", "decimal(38,20)", "decimal(38,0)"),
        ("struct<`a b`:int>", "struct<`a b`:bigint>", "struct<`a b`:bigint>"),
        ("struct<a:int>", "struct<b:int>", None),
        ("int", "date", None),
    ],
)
def test_two_types_are_compared_in_the_one_that_spark_casts_both_to(
    left: str, right: str, common: str | None, analyst: SparkAnalyst
) -> None:
    """Damage: the plan tells values apart that are one to Spark, and a row meets several of them."""
    assert analyst.compared(left, right) == common
    assert analyst.compared(right, left) == common


@pytest.mark.parametrize(
    "ddl", ["a INT,, b INT", "a NOSUCHTYPE", "a VARCHAR(3)", "a MAP<INT, INT>", "a INT, A INT", "__time INT"]
)
def test_a_column_list_that_cannot_be_kept_is_refused(analyst: SparkAnalyst, ddl: str) -> None:
    """Damage: a table is made that no row can be written to."""
    with pytest.raises(DefinitionError):
        analyst.parse_ddl(ddl)


def test_one_query_is_the_same_each_time_it_is_asked(analyst: SparkAnalyst) -> None:
    """Damage: a view is planned one way when it is made and another after a restart, or is refused the second time."""
    tables = {table.name: analyst.parse_ddl(table.ddl) for table in TABLES}
    sql, _ = random_view(7, failing=True)  # its optimised plan is another one each time
    read = parse(sql)
    assert read is not None
    assert all(analyst.same(sql, text(read), tables) for _ in range(12))
    assert not analyst.same(sql, text(read).replace("2026-03-01", "2026-03-02"), tables)
