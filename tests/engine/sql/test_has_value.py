"""Whether an expression has a value is found out without failing, however Spark evaluates it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from pyspark.errors import ArithmeticException
from pyspark.sql import DataFrame, SparkSession

from compiled import COMPILED
from strandline.algebra.judged import have_values
from strandline.algebra.nodes import Get, Opaque, Project
from strandline.algebra.scalar import scalar
from strandline.engine.session.start import adopt
from strandline.engine.sql.rendering import render

pytestmark = pytest.mark.spark

ALL_COMPILED = {**COMPILED, "spark.sql.codegen.factoryMode": "CODEGEN_ONLY"}
WAYS = [
    ALL_COMPILED,
    {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.codegen.wholeStage": "false"},
    {"spark.sql.codegen.factoryMode": "CODEGEN_ONLY", "spark.sql.codegen.wholeStage": "false"},
    {**ALL_COMPILED, "spark.sql.subexpressionElimination.enabled": "false"},
]
ROWS = [(1, 4, "7", [1, 2]), (2, 0, "7", [1, 2]), (3, 2, "seven", [1, 2]), (4, 1, None, None), (5, None, "7", [])]
"""``id, n, s, l``."""
FAILS = [
    ("id / n", [2]),
    ("CAST(s AS INT)", [3]),
    ("l[n]", [1, 3]),
    ("IF(n = 0, raise_error('no'), id)", [2]),
    ("map(id, id / n)", [2]),
    ("n <> 0 AND id / n > 0", []),
    ("CASE WHEN n = 0 THEN NULL ELSE id / n END", []),
    ("transform(l, x -> x / n)", [2]),
    ("CAST(2147483647 AS INT) + n", [1, 3, 4]),
    ("(SELECT max(id) FROM t) / n", [2]),
    ("named_struct('a', id, 'b', id / n).b", [2]),
    ("n IS NULL OR assert_true(n > 0) IS NULL", [2]),
]


@pytest.fixture(params=WAYS, ids=range(len(WAYS)))
def session(spark: SparkSession, request: pytest.FixtureRequest) -> SparkSession:
    """A session that evaluates in one of Spark's ways."""
    own = adopt(spark, request.param)
    own.createDataFrame(ROWS, "id INT, n INT, s STRING, l ARRAY<INT>").createOrReplaceTempView("local")
    return own


def _ids(frame: DataFrame) -> list[int]:
    return sorted(row["id"] for row in frame.collect())


@pytest.mark.drawn(3)
@pytest.mark.parametrize("stored", [False, True], ids=["local rows", "a file"])
def test_the_rows_that_fail_are_found_and_the_others_keep_their_values(
    session: SparkSession, tmp_path: object, *, stored: bool
) -> None:
    """Damage: a row that has a value is reported as an error, or one that has none makes the step fail again."""
    rows = session.table("local")
    if stored:
        rows.write.parquet(f"{tmp_path}/rows")
        rows = session.read.parquet(f"{tmp_path}/rows")
    rows.createOrReplaceTempView("t")
    for expression, fail in FAILS:
        condition = f"({have_values([scalar('id + 0'), scalar(expression)]).sql})"
        assert _ids(session.sql(f"SELECT id FROM t WHERE NOT {condition}")) == fail, expression
        value = f"CAST(({expression}) AS STRING)"
        guarded = (
            f"SELECT id, {value} AS value FROM (SELECT * FROM t WHERE {condition}) WHERE coalesce({value}, '') <> ''"
        )
        alone = f"SELECT id, {value} AS value FROM t WHERE id NOT IN ({_listed(fail)}) AND coalesce({value}, '') <> ''"
        found = session.sql(f"SELECT * FROM ({guarded}) ORDER BY id").collect()
        assert found, expression
        wanted = {row["id"]: row["value"] for row in _plain(session, alone)}
        assert {row["id"]: row["value"] for row in found} == wanted, expression


def _plain(session: SparkSession, sql: str) -> Sequence[object]:
    """Return the answer where nothing is pushed below the filter that keeps the failing rows out."""
    return session.sql(sql).collect()


def _listed(ids: list[int]) -> str:
    return ", ".join(map(str, ids)) or "-1"


def test_a_query_of_sparks_own_fails_on_a_row_whatever_its_conditions_say_of_it(session: SparkSession) -> None:
    """Damage: whether a recomputed part of a view fails depends on which plan Spark finds for its text."""
    session.sql("SELECT *, 1L AS __time, 1L AS __diff FROM local").createOrReplaceTempView("updates")
    given = Project(Get("t", (("id", "id"), ("n", "n"))), (("id", scalar("`id`")), ("x", scalar("`id` / `n`"))))
    query = Opaque((given,), ("r",), "SELECT id, x FROM r WHERE id = 3", ("id", "x"), "it is Spark's")
    with pytest.raises(ArithmeticException):
        session.sql(render(query, {"t": "updates"})).collect()
