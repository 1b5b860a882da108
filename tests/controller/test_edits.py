"""INSERT, UPDATE and DELETE change the table that is named, and exactly the rows that are meant."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import DataType

import strandline
from strandline.algebra.schema import quote
from strandline.client import Environment
from strandline.engine.sql.edits import spark_assigns
from strandline.errors import CollectionError, DefinitionError, InvalidUsage, Position

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark
A, B, NULLS = (1, "a", 10), (2, "b", 20), (3, None, None)
"""The rows of ``t``."""


@pytest.fixture(scope="module")
def env(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    """An environment that the tests share: ``t`` is filled anew by `filled`, ``v`` is only read."""
    with strandline.open(f"file://{tmp_path_factory.mktemp('edits')}/location", spark=spark) as opened:
        opened.execute("CREATE TABLE t (id INT, s STRING, n BIGINT)")
        opened.execute("CREATE TABLE v (id INT, n INT)")
        opened.execute("INSERT INTO v VALUES (1, 100), (2, 200);")
        yield opened


@pytest.fixture
def filled(env: Environment) -> Environment:
    """The environment with three rows in ``t``."""
    with env.transaction() as txn:
        txn.execute("DELETE FROM t;")
        txn.insert("t", [dict(zip(("id", "s", "n"), row, strict=True)) for row in (A, B, NULLS)])
    return env


def contents(env: Environment, table: str = "t") -> list[tuple[Any, ...]]:
    """The rows of a table, in order."""
    return sorted((tuple(row) for row in env.query(f"SELECT * FROM {table}").collect()), key=repr)


def test_delete_and_update_act_on_the_table_that_is_named(place: Place) -> None:
    """Else rows of another table are deleted: ``DELETE FROM `a b` …`` read table a under the alias b."""
    names = ["a b", "a", "select", "a`b", "x.y", "1", "where"]
    with place.open() as env:
        quoted = {name: quote(name) for name in names}
        for number, name in enumerate(names):
            env.execute(f"CREATE TABLE {quoted[name]} (id INT)")
            env.insert(name, [{"id": number}, {"id": 100}, {"id": 200}])
        for number, name in enumerate(names):
            env.execute(f"DELETE FROM {quoted[name]} WHERE {quoted[name]}.id = 100")
            env.execute(f"UPDATE {quoted[name]} SET id = id + 1 WHERE id = {number}")
            for other, each in enumerate(names):
                rows = {row["id"] for row in env.query(f"SELECT * FROM {quoted[each]}").collect()}
                done = other <= number
                assert rows == ({other + 1, 200} if done else {other, 100, 200}), (name, each)


def test_a_lateral_subquery_reads_a_table_whose_rows_went_as_one_whose_rows_stayed(filled: Environment) -> None:
    """Damage: a query, and the self-check of a view, fail from the first DELETE on."""
    sql = "SELECT t.id, l.n FROM t, LATERAL (SELECT id, count(*) AS n FROM v WHERE v.id <= t.id GROUP BY id) l"
    before = filled.query(sql).collect()
    with filled.transaction() as txn:
        txn.execute("DELETE FROM v WHERE id = 2")
        txn.execute("INSERT INTO v VALUES (2, 200)")
    assert sorted(filled.query(sql).collect()) == sorted(before)


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("statement", "left"),
    [
        ("DELETE FROM t WHERE id = 1", [B, NULLS]),
        ("DELETE FROM t AS x WHERE x.id = 1;", [B, NULLS]),
        ("DELETE FROM t `x y` WHERE `x y`.id = 1", [B, NULLS]),
        ("DELETE FROM T WHERE t.ID = 1", [B, NULLS]),
        ("DELETE FROM t WHERE s <> 'a'", [A, NULLS]),  # NULL is not true
        ("DELETE FROM t WHERE id IN (SELECT id FROM v)", [NULLS]),
        ("DELETE FROM t AS x WHERE EXISTS (SELECT 1 FROM v WHERE v.id = x.id AND v.n > 100)", [A, NULLS]),
        ("DELETE FROM t WHERE id = (SELECT max(id) FROM t)", [A, B]),
        ("DELETE FROM t WHERE s = 'a' OR s IS NULL -- all others stay", [B]),
        ("UPDATE t SET s = ','", [(1, ",", 10), (2, ",", 20), (3, ",", None)]),
        ("UPDATE t SET s = 'where' WHERE id = 1", [(1, "where", 10), B, NULLS]),
        ("UPDATE t SET s = 'x; y', n = 1 WHERE id = 1", [(1, "x; y", 1), B, NULLS]),
        ("UPDATE t SET id = n, n = id WHERE id = 1", [(10, "a", 1), B, NULLS]),  # both are read before
        ("UPDATE t AS x SET x.n = x.n + 1, `s` = upper(x.s) WHERE x.id = 2", [A, (2, "B", 21), NULLS]),
        ("UPDATE t SET n = (SELECT v.n FROM v WHERE v.id = t.id)", [(1, "a", 100), (2, "b", 200), NULLS]),
        ("UPDATE t SET n = NULL, s = NULL WHERE id < 3", [(1, None, None), (2, None, None), NULLS]),
        ("UPDATE t SET n = 7 WHERE s IS NULL", [A, B, (3, None, 7)]),
        ("UPDATE t SET s = id WHERE id = 1", [(1, "1", 10), B, NULLS]),  # a number may become a text
        ("UPDATE t SET s = s", [A, B, NULLS]),
        ("INSERT INTO t (n, id) VALUES (40, 4)", [A, B, NULLS, (4, None, 40)]),
        ("INSERT INTO t (ID) SELECT id + 10 FROM v WHERE n > 100;", [A, (12, None, None), B, NULLS]),
        ("INSERT INTO t WITH w AS (SELECT 5) SELECT *, 'w', 1.9 FROM w", [A, B, NULLS, (5, "w", 1)]),
        ("INSERT INTO t TABLE t", [A, A, B, B, NULLS, NULLS]),
    ],
)
def test_a_statement_changes_exactly_what_it_says(
    filled: Environment, statement: str, left: list[tuple[Any, ...]]
) -> None:
    """Damage: rows are lost, or set to values that no statement wrote."""
    filled.execute(statement)

    assert contents(filled) == sorted(left, key=repr)


def test_an_update_reads_its_rows_once(env: Environment) -> None:
    """Else a random condition chooses some rows to remove and others to add, and rows vanish."""
    env.execute("CREATE TABLE dice (id INT, side INT)")
    env.execute("INSERT INTO dice SELECT id, 0 FROM range(1000)")
    env.execute("UPDATE dice SET side = 1 + floor(rand() * 6) WHERE rand() < 0.5")

    found = env.query("SELECT count(*) n, count(DISTINCT id) ids, sum(CASE side WHEN 0 THEN 1 END) z FROM dice").first()
    assert (found["n"], found["ids"]) == (1000, 1000)
    assert 300 < found["z"] < 700


@pytest.mark.parametrize(
    ("statement", "said", "line", "column"),
    [
        ("DELETE FROM nope WHERE id = 1", "no collection 'nope'", 1, 13),
        ("DELETE FROM t\nWHERE id = 1 AND nope = 2", "unknown column nope", 2, 18),
        ("DELETE FROM t AS x WHERE t.id = 1", "unknown column t.id", 1, 26),
        ("DELETE FROM t WHERE id", "not a boolean", 1, 21),
        ("DELETE FROM t WHERE sum(id) > 1", "invalid expressions", 1, 21),
        ("DELETE FROM t WHERE id IN\n (SELECT id FROM nope)", "no collection 'nope'", 2, 18),
        ("DELETE FROM t WHERE true UNION ALL SELECT 1", "expected the end", 1, 26),
        ("UPDATE t SET nope = 1", "table 't' has no column 'nope'; it has id, s, n", 1, 14),
        ("UPDATE t SET n = 1, s = nosuch(id)", "nosuch", 1, 25),
        ("UPDATE t SET n = sum(id)", "GROUP BY|aggregate", 1, 18),
        ("UPDATE t SET n = explode(array(1, 2))", "[Gg]enerator", 1, 18),
        ("UPDATE t SET n = s", "column 'n' is bigint and its value is string; write CAST", 1, 18),
        ("UPDATE t SET n = 1,\n  id = 'x'", "column 'id' is int and its value is string", 2, 8),
        ("INSERT INTO nope VALUES (1)", "no collection 'nope'", 1, 13),
        ("INSERT INTO t (id, nope) VALUES (1, 2)", "table 't' has no column 'nope'; it has id, s, n", 1, 20),
        ("INSERT INTO t VALUES (1, 'a')", r"3 columns \(id, s, n\) and 2 values", 1, 15),
        ("INSERT INTO t (id)\n VALUES (1, 'a')", r"1 column \(id\) and 2 values", 2, 2),
        ("INSERT INTO t SELECT id, nope, 1 FROM v", "unknown column nope", 1, 26),
        ("INSERT INTO t (id) VALUES ('1')", "column 'id' is int and its value is string", 1, 20),
        ("INSERT INTO t (id)\nSELECT id FROM\n nope", "no collection 'nope'", 3, 2),
        ("INSERT INTO t (n) VALUES (DATE'2020-01-01')", "column 'n' is bigint and its value is date", 1, 19),
    ],
)
def test_a_wrong_change_is_refused_where_it_is_wrong_and_changes_nothing(
    env: Environment, statement: str, said: str, line: int, column: int
) -> None:
    """Else its author looks for the mistake, or a text is taken for a number."""
    before = env.collection("t").upper
    with pytest.raises(DefinitionError, match=said) as refused:
        env.execute(statement)

    assert refused.value.position == Position(line, column), refused.value
    assert env.collection("t").upper == before, "something was committed"


def test_a_value_that_does_not_fit_fails_the_statement(filled: Environment) -> None:
    """Else a large number is stored as another one."""
    with pytest.raises(DefinitionError, match="row 1: column 'id' is int, which holds .* and not 3000000000"):
        filled.execute("INSERT INTO t (id) VALUES (3000000000)")
    for statement in ("INSERT INTO t (id) SELECT 3000000000", "UPDATE t SET id = n * 1000000000"):
        with pytest.raises(CollectionError, match="cannot be evaluated"):
            filled.execute(statement)

    assert contents(filled) == [A, B, NULLS]


def test_a_frame_that_is_inserted_follows_the_rule_of_statements(filled: Environment, spark: SparkSession) -> None:
    """Else a text becomes a number by one way in and not by the other."""
    texts = spark.createDataFrame([("4", "d", 1)], "id string, s string, n int")
    with pytest.raises(InvalidUsage, match="column 'id' is int and its value is string"):
        filled.insert("t", texts)
    filled.insert("t", texts.selectExpr("CAST(id AS short) AS id", "s", "n"))

    assert contents(filled) == [A, B, NULLS, (4, "d", 1)]


TYPES = [
    "void",
    "boolean",
    "tinyint",
    "int",
    "bigint",
    "float",
    "double",
    "decimal(10,2)",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "variant",
    "array<int>",
    "array<string>",
    "array<date>",
    "map<int,string>",
    "struct<a:int>",
    "struct<b:bigint>",
    "struct<a:int,b:int>",
]


def test_what_may_be_stored_is_what_spark_stores(spark: SparkSession) -> None:
    """Else a statement that runs on Spark's tables is refused on ours, or the other way round."""
    kinds = {text: DataType.fromDDL(text) for text in TYPES}
    cast = spark._jvm.org.apache.spark.sql.catalyst.expressions.Cast
    scala = {text: spark._jsparkSession.parseDataType(kind.json()) for text, kind in kinds.items()}
    wrong = [
        (source, target)
        for source in TYPES
        for target in TYPES
        if spark_assigns(kinds[source], kinds[target]) != cast.canANSIStoreAssign(scala[source], scala[target])
    ]
    assert not wrong
