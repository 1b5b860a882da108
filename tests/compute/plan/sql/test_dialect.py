"""What is written is what was read: Spark gives the same plan for a text and for our reading of it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from strandline.algebra.scalar import text
from strandline.compute.plan.sql import parse
from strandline.errors import DefinitionError

EXPRESSIONS: Final = (
    "to_date(s)",
    "datediff(d, d)",
    "date_add(d, 1)",
    "dateadd(MONTH, 1, d)",
    "timestampdiff(HOUR, t, t)",
    "a DIV b",
    "a / b",
    "a % b",
    "s || s",
    "CAST(s AS DECIMAL(10, 2))",
    "s::int",
    "try_cast(s AS int)",
    "t + INTERVAL 2 HOURS",
    "INTERVAL '1' DAY",
    "INTERVAL '1-2' YEAR TO MONTH",
    "DATE '2020-01-01'",
    "TIMESTAMP '2020-01-01 00:00:00'",
    "s RLIKE 'x.*'",
    "s LIKE 'x%' ESCAPE '!'",
    "s ILIKE 'x%'",
    "r[0]",
    "n.f",
    "transform(r, x -> x + 1)",
    "aggregate(r, 0, (acc, x) -> acc + x)",
    "exists(r, a -> a > 1)",
    "a <=> b",
    "a IS DISTINCT FROM b",
    "NOT a = b",
    "! (a = b)",
    "~a",
    "a & b | 3 ^ 2",
    "-a",
    "1L",
    "1.5BD",
    "1.5D",
    "1e3",
    "2S",
    "'it\\'s'",
    '"dq"',
    "r'\\d+'",
    "'a\\nb\\\\'",
    "X'1F'",
    "EXTRACT(YEAR FROM t)",
    "substring(s FROM 1 FOR 2)",
    "trim(BOTH 'x' FROM s)",
    "overlay(s PLACING 'x' FROM 1)",
    "CASE a WHEN 1 THEN 'x' ELSE 'y' END",
    "CASE WHEN a > 1 THEN 2 END",
    "if(a > 1, a, b)",
    "nvl(a, b)",
    "a BETWEEN 1 AND 2",
    "a NOT IN (1, 2)",
    "struct(a, b AS c)",
    "named_struct('x', a)",
    "map('x', a)['x']",
    "array(a, b)",
    "split(s, ',')[0]",
    "get_json_object(s, '$.x')",
    "unix_timestamp(t)",
    "date_format(t, 'yyyy')",
    "date_trunc('DAY', t)",
    "log(2, a)",
    "a + b * 2 - (a - b)",
    "a > 1 OR b > 1 AND s = 'x'",
    "ceil(a / 2)",
    "round(f, 2)",
    "left(s, 2)",
    "s IS NOT NULL",
    "greatest(a, b)",
    "concat_ws(',', s, s)",
    "try_divide(a, b)",
    "s COLLATE UTF8_LCASE = 'x'",
    "hash(a, s)",
    "regexp_replace(s, '(a)', '$1b')",
    "CAST(t AS TIMESTAMP_NTZ) IS NULL",
    "from_json(s, 'x INT').x",
    "pmod(a, 3)",
    "position('a' IN s)",
    "a << 2",
    "`a`",
    "a == b",
    "a != b",
    "s LIKE ANY ('x', 'y')",
    "isnull(a)",
    "float('1.5')",
)


@pytest.fixture(scope="module")
def plain(laboratory: Any) -> Any:
    """A session with an empty relation ``plain`` that has a column of each kind."""
    ddl = "a INT, b INT, f DOUBLE, s STRING, d DATE, t TIMESTAMP, r ARRAY<INT>, n STRUCT<f: INT>"
    laboratory.session.createDataFrame([], ddl).createOrReplaceTempView("plain")
    return laboratory.session


@pytest.mark.spark
@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_means_the_same_after_reading(expression: str, plain: Any) -> None:
    """Damage: a view would compute something else than its author wrote."""
    sql = f"SELECT {expression} AS v FROM plain"
    query = parse(sql)
    assert query is not None
    ours, theirs = (plain.sql(each)._jdf.queryExecution().optimizedPlan() for each in (text(query), sql))
    assert ours.sameResult(theirs), text(query)


@pytest.mark.parametrize("sql", ["SELECT a FROM t |> LIMIT 2", "SELECT a FROM t WHERE (", "SELECT 'a FROM t"])
def test_what_cannot_be_read_is_said_to_be_unreadable(sql: str) -> None:
    """Damage: a mistake of the parser's would be taken for the author's, or for a reading."""
    assert parse(sql) is None


def test_several_statements_are_no_view() -> None:
    """Damage: all but the first would be dropped in silence."""
    with pytest.raises(DefinitionError, match="2 statements"):
        parse("SELECT 1; SELECT 2")
