"""Plans as SQL text: what a person reads, and what Spark is spared."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from strandline.algebra.nodes import (
    NOTHING,
    Accumulate,
    Accumulator,
    Aggregate,
    Constant,
    Filter,
    Get,
    Negate,
    Opaque,
    Project,
    Regroup,
    UnionAll,
    joined,
)
from strandline.algebra.scalar import columns, scalar
from strandline.engine.sql.fragments import Text
from strandline.engine.sql.rendering import render

T = Get("t:delta", (("a", "a"), ("b", "b")))
U = Get("u:old", (("c", "c"),))
NAMES = {"t:delta": "t_delta", "t:new": "t_new", "u:old": "u_old", "v:old": "v_old"}


def test_linear_nodes_read_like_what_they_mean() -> None:
    """Damage: the SQL that `explain` shows could not be read."""
    node = Project(Filter(T, scalar("`a` > 1")), (("x", scalar("`a` + 1")), *columns(("b",))))
    assert render(node, NAMES) == (
        "SELECT `a` + 1 AS `x`, `b`, __time, __diff FROM (\n"
        "SELECT * FROM (\nSELECT `a`, `b`, __time, __diff FROM `t_delta`\n) WHERE `a` > 1\n)"
    )


def test_a_join_starts_at_its_small_input_and_broadcasts_it() -> None:
    """Damage: a tick would shuffle the large sides of its joins."""
    sql = render(joined((U, T), (scalar("`a` = `c`"),), small=1), NAMES)
    assert "/*+ BROADCAST(l) */" in sql
    assert sql.index("`t_delta`") < sql.index("JOIN")
    assert re.search(r"`t_delta`\n\) l JOIN \(\n.*`u_old`\n\) r ON `a` = `c`$", sql)


def test_a_join_goes_on_to_what_is_connected() -> None:
    """Damage: a join of three relations would begin with a cross product."""
    far = Get("v:old", (("d", "d"),))
    sql = render(joined((U, far, T), (scalar("`d` = `b`"), scalar("`a` = `c`")), small=0), NAMES)
    assert "true" not in sql


def test_equal_subplans_are_written_once() -> None:
    """Damage: texts, and the time to plan them, would double with every use."""
    assert render(UnionAll((T, Negate(T))), NAMES).count("t_delta") == 1


def test_what_is_used_once_is_no_table_expression() -> None:
    """Damage: Spark's analyser copies and renumbers such an expression, and all that it names, wherever it is named."""
    sql = render(UnionAll((Filter(T, scalar("`a` > 1")), Project(U, columns(("c",))))), NAMES)
    assert "WITH" not in sql


def test_a_literal_that_looks_like_a_use_stays_as_it_is() -> None:
    """Damage: a subquery would be put into an author's literal."""
    written = Opaque((T,), ("t",), "SELECT '__get_1' AS a FROM t", ("a",), "only Spark can read it")
    assert "'__get_1'" in render(written, NAMES)


@pytest.mark.parametrize(
    ("sql", "of_rows"),
    [
        ("SELECT a FROM t WHERE 10 / a > 1 AND a = 5", True),
        ("SELECT t.a FROM t JOIN t u ON t.a = u.a", True),
        ("SELECT a, count(*) AS n FROM t GROUP BY a HAVING 10 / a > 1", True),
        ("SELECT a FROM t WHERE a IS NOT NULL", False),
        ("SELECT 10 / a AS a FROM t", False),
        ("SELECT a FROM t LATERAL VIEW explode(array(a)) m AS b WHERE 10 / b > 1", True),
        ("SELECT t.a FROM t, LATERAL (SELECT a FROM t u WHERE 10 / u.a > t.a) l", True),
    ],
)
def test_a_condition_that_may_fail_is_asked_of_rows_and_not_of_what_is_stored(sql: str, of_rows: bool) -> None:
    """Damage: whether a view has an error depends on which rows share a part of a file, or were withdrawn."""
    written = render(Opaque((T,), ("t",), sql, ("a",), "only Spark can read it"), NAMES)
    assert ("inline(array_repeat(__row" in written) is of_rows
    assert "SPARK_PARTITION_ID" not in written, "Spark would take its subqueries for not deterministic"


def test_the_names_of_table_expressions_do_not_hide_a_view() -> None:
    """Damage: a frame would be read as the expression that reads it: an endless or wrong query."""
    read = Get("f", (("a", "a"),))
    sql = render(UnionAll((read, Negate(read))), {"f": "get_1"})
    assert "FROM `get_1`" in sql
    assert re.findall(r"(\w+) AS \(", sql) == ["__get_1"]


def test_a_line_break_inside_a_literal_stays() -> None:
    """Damage: indenting the text would change the value of a literal."""
    written = Opaque((T,), ("t",), "SELECT 'x\ny' AS a FROM t", ("a",), "only Spark can read it")
    assert "'x\ny'" in render(Filter(written, scalar("true")), NAMES)


@pytest.mark.parametrize("times", [(5,), (5, 6), ()])
def test_a_window_is_used_only_where_there_may_be_several_times(times: tuple[int, ...]) -> None:
    """Damage: the usual tick, of one time, would sort and shuffle for nothing."""
    sums = (Accumulator("rows", scalar("1"), "bigint"),)
    node = Accumulate(T, Get("v:old", (("a", "a"), ("rows", "rows"))), columns(("a",)), sums, "rows", times)
    assert (" OVER (" in render(node, NAMES)) is (len(times) != 1)


def test_a_first_step_at_one_time_reads_its_input_once() -> None:
    """Damage: hydration would join the whole input with itself."""
    aggregate = Aggregate("m", "max", scalar("`b`"), False, "int", "int")
    sql = render(Regroup(T, T, NOTHING, columns(("a",)), (aggregate,), (3,)), NAMES)
    assert " JOIN " not in sql
    assert "3" in sql


def test_floats_are_added_in_the_order_of_their_values() -> None:
    """Damage: law D: the last bits of a sum would depend on the partitioning."""
    aggregate = Aggregate("s", "sum", scalar("`b`"), False, "double", "double")
    sql = render(Regroup(T, T, NOTHING, (), (aggregate,), (3,), 3), NAMES)
    assert "sort_array(collect_list(" in sql
    assert "SUM(__a0)" not in sql


def test_a_constant_without_rows_is_a_relation() -> None:
    """Damage: an empty VALUES is no SQL."""
    assert render(Constant(("x",), ()), {}).endswith("WHERE false")


def test_a_join_goes_from_equal_keys_to_equal_keys_before_it_compares() -> None:
    """Damage: every changed row is compared with every row of a large table, for minutes."""
    changed, large, between = (Get(name, ((f"{name}_k", "k"), (f"{name}_v", "v"))) for name in ("d", "l", "b"))
    conditions = [scalar("`l_v` < `d_v`"), scalar("`d_k` = `b_k`"), scalar("`l_k` = `b_k`")]
    node = replace(joined((large, changed, between), conditions), small=1)
    text = render(node, {"d": "d", "l": "l", "b": "b"})
    assert text.index("FROM `d`") < text.index("FROM `b`") < text.index("FROM `l`")


@pytest.mark.parametrize("quoted", ["'a\nb'", '"a\nb"', "`a\nb`"])
def test_a_line_break_in_quotes_stays_as_it_is(quoted: str) -> None:
    """Damage: a view stores another text than its author wrote, or names a column that there is not."""
    text = Text()
    inner = text.define("get", f"SELECT {quoted} AS x")
    assert quoted in text.query(f"SELECT * FROM {inner}")
    assert text.query(f"SELECT * FROM {inner} l JOIN {inner} r").count(quoted) == 1
