"""Whether a query has one answer, where only Spark's analysis can show it (law D)."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.view import PlannedView, plan_view
from strandline.compute.stage import rehearse, split
from strandline.errors import DefinitionError

pytestmark = pytest.mark.spark

CATALOG = {
    "o": Schema((Column("id", "int"), Column("k", "int"), Column("g", "string"))),
    "c": Schema((Column("k", "int"), Column("n", "string"))),
    "ev": Schema((Column("id", "int"), Column("at", "timestamp"), Column("local", "timestamp_ntz"))),
    "people": Schema((Column("user", "string"), Column("current_date", "date"))),
}
CLOCK = "clock source"
EQUAL = "UTF8_LCASE"
READ = "only Spark reads this text"


def plan(sql: str, laboratory: Any) -> PlannedView:
    """Plan a view, and rehearse its steps, as CREATE does."""
    view = plan_view(sql, CATALOG, laboratory.analyst)
    rehearse(split(view, "view"), CATALOG, laboratory.analyst)
    return view


REFUSED = [
    ("SELECT id FROM ev WHERE at <= 'now'", "'now'", CLOCK),
    ("SELECT id FROM ev WHERE local <= ' NOW '", "'NOW'", CLOCK),
    ("SELECT id, CAST('now' AS TIMESTAMP) AS t FROM ev", "'now'", CLOCK),
    ("SELECT id, TRY_CAST(concat('n', 'ow') AS TIMESTAMP_NTZ) AS t FROM ev", "'now'", CLOCK),
    ("SELECT id FROM ev WHERE CAST(at AS DATE) >= 'yesterday'", "'yesterday'", CLOCK),
    ("SELECT id, date('today') AS d FROM ev", "'today'", CLOCK),
    ("SELECT id, to_date('tomorrow Europe/Berlin') AS d FROM ev", "'tomorrow Europe/Berlin'", CLOCK),
    ("SELECT id, to_timestamp('now') AS t FROM ev", "'now'", CLOCK),
    ("FROM ev |> WHERE at <= 'now' |> SELECT id", "'now'", CLOCK),
    ("SELECT id FROM o WHERE EXISTS (SELECT 1 FROM ev WHERE ev.id = o.id AND at < 'now')", "'now'", CLOCK),
    ("SELECT id FROM ev WHERE at <= '12:30'", "'12:30'", "write the date too"),
    ("SELECT id, user AS user FROM o", "user", "column of the source"),
    ("SELECT id, struct(session_user AS session_user) AS s FROM o", "user", "column of the source"),
    ("SELECT id, user AS a, user AS user FROM o ORDER BY user", "user", "column of the source"),
    ("SELECT k, count(*) AS n FROM o GROUP BY k HAVING max(g) = user", "user", "column of the source"),
    ("SELECT id, current_date AS current_date FROM o", "current_date", CLOCK),
    ("FROM o |> SELECT id, current_timestamp AS current_timestamp", "current_timestamp", CLOCK),
    ("SELECT p.user AS u FROM people p ORDER BY user LIMIT 1", "user", "column of the source"),
    ("FROM o |> EXTEND user AS u", "user", "column of the source"),
    ("FROM o |> SELECT id, row_number() OVER (ORDER BY k) AS r", "row_number OVER", READ),
    ("SELECT id AS table, lag(id) OVER (ORDER BY k) AS r FROM o", "lag OVER", READ),
    ("FROM o |> SELECT id, ntile(2) OVER (ORDER BY k) AS r", "ntile OVER", READ),
    ("FROM o |> SELECT id, nth_value(id, 2) OVER (ORDER BY k) AS r", "nth_value OVER", READ),
    ("FROM o |> SELECT id, sum(id) OVER (ORDER BY k ROWS UNBOUNDED PRECEDING) AS r", "sum OVER", READ),
    ("FROM o |> ORDER BY k |> LIMIT 3", "LIMIT", READ),
    ("FROM o |> ORDER BY k |> OFFSET 3", "OFFSET", READ),
    ("SELECT CAST(g COLLATE UTF8_LCASE AS STRING) AS s FROM o GROUP BY g COLLATE UTF8_LCASE", "GROUP BY", EQUAL),
    ("SELECT CAST(x AS STRING) AS s FROM (SELECT DISTINCT g COLLATE UTF8_LCASE AS x FROM o)", "DISTINCT", EQUAL),
    (
        (
            "SELECT CAST(x AS STRING) AS s FROM (SELECT g COLLATE UTF8_LCASE AS x FROM o"
            " UNION SELECT n COLLATE UTF8_LCASE FROM c)"
        ),
        "DISTINCT",
        EQUAL,
    ),
    (
        (
            "SELECT CAST(x AS STRING) AS s FROM (SELECT g COLLATE UTF8_LCASE AS x FROM o"
            " EXCEPT SELECT n COLLATE UTF8_LCASE FROM c)"
        ),
        "EXCEPT",
        EQUAL,
    ),
    ("SELECT CAST(max(g COLLATE UTF8_LCASE) AS STRING) AS m FROM o", "max", EQUAL),
    ("SELECT k, CAST(min(g COLLATE UTF8_LCASE) OVER (PARTITION BY k) AS STRING) AS m FROM o", "min", EQUAL),
    (
        "SELECT CAST(array_sort(collect_list(g COLLATE UTF8_LCASE)) AS ARRAY<STRING>) AS m FROM o",
        "collect_list",
        EQUAL,
    ),
    (
        "SELECT CAST(max(struct(g COLLATE UTF8_LCASE AS x, id AS y)).x AS STRING) AS m FROM o",
        "max",
        EQUAL,
    ),
    (
        (
            "SELECT CAST(x AS STRING) AS s, row_number() OVER (ORDER BY k) AS r"
            " FROM (SELECT k, g COLLATE UTF8_LCASE AS x FROM o)"
        ),
        "row_number OVER",
        EQUAL,
    ),
    (
        "SELECT CAST(x AS STRING) AS s FROM (SELECT k, g COLLATE UTF8_LCASE AS x FROM o ORDER BY k LIMIT 1)",
        "LIMIT",
        EQUAL,
    ),
    ("SELECT id, first_value(g) IGNORE NULLS OVER (ORDER BY k) AS x FROM o", "first_value OVER", "write ROWS BETWEEN"),
]


@pytest.mark.parametrize(("sql", "name", "instead"), REFUSED)
def test_what_spark_may_answer_in_several_ways_is_refused(sql: str, name: str, instead: str, laboratory: Any) -> None:
    """Damage: two replicas compute different rows for one time, and each corrects the other for ever."""
    with pytest.raises(DefinitionError) as refused:
        plan(sql, laboratory)
    assert f"{name} has no definite value" in refused.value.message
    assert instead in refused.value.message
    assert refused.value.position is not None


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT id, 'now' AS t, DATE 'epoch' AS d FROM ev WHERE at > 'epoch' AND at < '2024-01-01'",
        "SELECT user, `current_date` FROM people WHERE user > 'a' ORDER BY user LIMIT 1",
        "SELECT user FROM (SELECT id AS user FROM o)",
        "FROM people |> SELECT user",
        "FROM o |> SELECT id, rank() OVER (ORDER BY k) AS r, sum(id) OVER (ORDER BY k) AS s",
        "SELECT id FROM o ORDER BY k LIMIT ALL",
        "SELECT k, count(DISTINCT g COLLATE UTF8_LCASE) AS n, max(length(g COLLATE UTF8_LCASE)) AS m FROM o GROUP BY k",
        "SELECT count(*) AS n FROM o GROUP BY g COLLATE UTF8_LCASE",
        "SELECT o.id FROM o LEFT JOIN c ON o.g COLLATE UTF8_LCASE = c.n COLLATE UTF8_LCASE",
        "SELECT id, row_number() OVER (PARTITION BY g COLLATE UTF8_LCASE ORDER BY id) AS r FROM o",
        "SELECT max(g COLLATE UTF8_BINARY) AS m FROM o",
    ],
)
def test_what_has_one_answer_is_accepted(sql: str, laboratory: Any) -> None:
    """Damage: queries with one answer are refused because of a word in them."""
    assert plan(sql, laboratory).schema.names


NEWEST = "SELECT s.product FROM sales s WHERE s.shop = h.shop ORDER BY s.qty DESC LIMIT 1"
TOP_ONES = [
    f"SELECT h.shop, x.product FROM shops h, LATERAL ({NEWEST}) x",
    f"SELECT h.shop, h.city, ({NEWEST}) AS p FROM shops h",
]


@pytest.mark.parametrize("sql", TOP_ONES)
def test_the_first_row_for_each_row_is_kept_by_its_key(sql: str, laboratory: Any) -> None:
    """Damage: the usual way to ask for the newest order of each customer is refused, or recomputed as a whole."""
    stages = split(laboratory.plan(sql), "view")
    assert "keyed" in [stage.kind for stage in stages]
    history = laboratory.history(3)
    kept = laboratory.maintain(sql, history, [2, 4, 6])
    answers = laboratory.answers(sql.replace("DESC LIMIT", "DESC, product LIMIT"), history)
    for time, held in kept.items():
        assert laboratory.rounded(held) == laboratory.rounded(answers[time]), f"at {time}"


def test_the_first_row_of_a_table_is_one_value(laboratory: Any) -> None:
    """Damage: a scalar subquery with ORDER BY and LIMIT is refused with advice that its author has followed."""
    sql = "SELECT (SELECT shop FROM sales ORDER BY qty LIMIT 1) AS s"
    history = laboratory.history(5)
    kept = laboratory.maintain(sql, history, [2, 4, 6])
    answers = laboratory.answers(sql.replace("qty LIMIT", "qty, shop LIMIT"), history)
    for time, held in kept.items():
        assert laboratory.rounded(held) == laboratory.rounded(answers[time]), f"at {time}"
