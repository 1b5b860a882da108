"""Law D at the door: a function is accepted because it is listed, never because nothing is known against it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from strandline.compute.plan.scalars.definite import DEFINITE, refuse_indefinite, refuse_unordered
from strandline.compute.plan.sql import INDEFINITE, parse
from strandline.engine.session.reach import BARRED
from strandline.errors import DefinitionError


@pytest.mark.spark
def test_every_function_of_this_spark_has_been_looked_at(spark: Any) -> None:
    """Damage: a function that a new Spark brings would be refused, or accepted, without a look at what it does."""
    listed = {row[0] for row in spark.sql("SHOW FUNCTIONS").collect()} | BARRED.keys()
    words = {name for name in listed if re.fullmatch(r"[a-z]\w*", name)}
    refused = {name.removesuffix("()") for name in INDEFINITE}
    assert words - DEFINITE - refused == set(), "look at these, and list them"
    assert DEFINITE - words == set(), "this Spark does not have them"
    assert DEFINITE & set(INDEFINITE) == set()


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("SELECT my_function(a) FROM t", "my_function is not known"),
        ("SELECT uper(s) FROM t", "did you mean upper"),
        ("SELECT `rand`() FROM t", "rand has no definite value"),
        ("SELECT system.builtin.rand() FROM t", "rand has no definite value"),
        ("SELECT spark_catalog.default.mine(a) FROM t", "mine is not known"),
        ("SELECT aes_encrypt(s, 'k') FROM t", "aes_encrypt"),
        ("SELECT kll_sketch_agg_bigint(a) FROM t", "percentile"),
        ("SELECT max_by(a, s) FROM t", "struct"),
        ("SELECT TRANSFORM(a) USING 'cat' AS (b) FROM t", "script"),
        ("SELECT * FROM python_worker_logs()", "python_worker_logs"),
        ("FROM t |> WHERE a > rand()", "rand has no definite value"),
        ("FROM t |> SELECT a, '/*+' AS b, rand() AS r, '*/' AS c", "rand has no definite value"),
        ("FROM t |> EXTEND current_date() AS d", "current_date"),
        ("SELECT TIMESTAMP 'now' AS t", "'now' has no definite value"),
        ("SELECT a FROM t WHERE d > DATE ' Yesterday '", "clock source"),
        ("FROM t |> SELECT TIMESTAMP_NTZ 'tomorrow UTC' AS t", "'tomorrow UTC' has no definite value"),
        ("SELECT TIMESTAMP '12:30' AS t", "write the date too"),
        ("FROM t |> WHERE my_function (a) > 1", "my_function is not known"),
        ("FROM t |> TABLESAMPLE (10 PERCENT)", "TABLESAMPLE"),
        ("FROM t |> AGGREGATE mode(a) AS m", "mode"),
    ],
)
def test_what_is_not_listed_is_refused_by_its_name(sql: str, words: str) -> None:
    """Damage: an unlisted function gives another value at every step, and the view never agrees with itself."""
    with pytest.raises(DefinitionError) as refused:
        refuse_indefinite(parse(sql), sql)
    assert words in refused.value.message
    assert refused.value.position is not None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT user, upper(s) FROM t",
        "SELECT `current_user` FROM t",
        "SELECT 'rand()', count(*) FROM t WHERE s RLIKE 'now()' GROUP BY ROLLUP (a)",
        "SELECT a, x FROM t LATERAL VIEW explode(array(a, 2)) AS x",
        "SELECT * FROM range(5) AS r(id) JOIN VALUES (1, 2) AS v(a, b) ON id = a",
        "FROM t |> WHERE a IN (1, 2) AND (s LIKE 'x' OR a > 1) |> AGGREGATE count(*) AS n GROUP BY (a)",
        "SELECT /*+ BROADCAST(t), REPARTITION(3) */ a FROM t",
        "FROM t |> SELECT /*+ BROADCAST(t), REPARTITION(3) */ a",
        "SELECT TIMESTAMP 'epoch', DATE '2024-01-01', TIMESTAMP '2024-01-01 12:30', 'now', s 'today' FROM t",
        "WITH RECURSIVE r(n) AS (SELECT 1) FROM r |> SELECT n",
        "FROM t AS u |> SELECT CAST(a AS DECIMAL(4, 2)) AS d, (a + 1) AS n",
    ],
)
def test_what_is_listed_passes_in_every_position(sql: str) -> None:
    """Damage: queries with a definite value would be refused for a word in them."""
    refuse_indefinite(parse(sql), sql)


@pytest.mark.parametrize(
    ("window", "what"),
    [
        ("row_number() OVER ()", "no ORDER BY says which row comes first"),
        ("row_number() OVER (ORDER BY k)", "move it into a subquery in FROM"),
        ("last_value(x) OVER (ORDER BY k ROWS BETWEEN 1 PRECEDING AND CURRENT ROW)", "move it into a subquery in FROM"),
        ("last_value(x) OVER (ORDER BY k RANGE BETWEEN 1 PRECEDING AND CURRENT ROW)", "or other ROWS"),
        ("first_value(x) IGNORE NULLS OVER (ORDER BY k)", "or other ROWS"),
    ],
)
def test_what_to_write_for_a_window_fits_the_window(window: str, what: str) -> None:
    """Damage: a person writes a frame of ROWS where none can be written, and is refused again."""
    sql = f"SELECT {window} AS x FROM t"
    query = parse(sql)
    assert query is not None
    with pytest.raises(DefinitionError, match=re.escape(what)):
        refuse_unordered(query, sql)


def test_each_function_without_a_definite_value_says_why_and_then_what_to_write() -> None:
    """Damage: the message tells its reader to write the reason."""
    assert {why.partition(" ")[0] for why, _ in INDEFINITE.values()} <= {"each", "it", "its", "the", "ties"}
