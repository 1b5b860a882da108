"""Plans as SQL text: what a person reads, and what Spark is spared."""

from __future__ import annotations

import pytest

from strandline.algebra.nodes import (
    NOTHING,
    Accumulate,
    Accumulator,
    Aggregate,
    Constant,
    Filter,
    Get,
    Join,
    Negate,
    Project,
    Regroup,
    UnionAll,
)
from strandline.engine.sql import columns_of, render

T = Get("t:delta", (("a", "a"), ("b", "b")))
U = Get("u:old", (("c", "c"),))
NAMES = {"t:delta": "t_delta", "t:new": "t_new", "u:old": "u_old", "v:old": "v_old"}


def test_linear_nodes_read_like_what_they_mean() -> None:
    """Damage: the SQL that `explain` shows could not be read."""
    node = Project(Filter(T, "`a` > 1"), (("x", "`a` + 1"), ("b", "`b`")))
    assert render(node, NAMES) == (
        "WITH get_1 AS (\n  SELECT `a`, `b`, __time, __diff FROM `t_delta`\n),\n"
        "filter_2 AS (\n  SELECT * FROM get_1 WHERE `a` > 1\n)\n"
        "SELECT `a` + 1 AS `x`, `b`, __time, __diff FROM filter_2"
    )


def test_a_join_starts_at_its_small_input_and_broadcasts_it() -> None:
    """Damage: a tick would shuffle the large sides of its joins."""
    sql = render(Join((U, T), ("`a` = `c`",), small=1), NAMES)
    assert "/*+ BROADCAST(l) */" in sql
    assert sql.index("`t_delta`") < sql.index("JOIN")
    assert "FROM get_2 l JOIN get_1 r ON (`a` = `c`)" in sql


def test_a_join_goes_on_to_what_is_connected() -> None:
    """Damage: a join of three relations would begin with a cross product."""
    far = Get("v:old", (("d", "d"),))
    sql = render(Join((U, far, T), ("`d` = `b`", "`a` = `c`"), small=0), NAMES)
    assert "true" not in sql


def test_equal_subplans_are_written_once() -> None:
    """Damage: texts, and the time to plan them, would double with every use."""
    assert render(UnionAll((T, Negate(T))), NAMES).count("t_delta") == 1


def test_the_names_of_table_expressions_do_not_hide_a_view() -> None:
    """Damage: a frame would be read as the expression that reads it: an endless or wrong query."""
    assert "FROM `get_1`" in render(Filter(Get("f", (("a", "a"),)), "true"), {"f": "get_1"})
    assert "get_2 AS" in render(Filter(Get("f", (("a", "a"),)), "true"), {"f": "get_1"})


def test_a_line_break_inside_a_literal_stays() -> None:
    """Damage: indenting the text would change the value of a literal."""
    assert "'x\ny'" in render(Filter(Filter(T, "`a` = 'x\ny'"), "true"), NAMES)


@pytest.mark.parametrize("times", [(5,), (5, 6), ()])
def test_a_window_is_used_only_where_there_may_be_several_times(times: tuple[int, ...]) -> None:
    """Damage: the usual tick, of one time, would sort and shuffle for nothing."""
    sums = (Accumulator("rows", "1", "bigint"),)
    node = Accumulate(T, Get("v:old", (("a", "a"), ("rows", "rows"))), (("a", "`a`"),), sums, "rows", times)
    assert (" OVER (" in render(node, NAMES)) is (len(times) != 1)


def test_a_first_step_at_one_time_reads_its_input_once() -> None:
    """Damage: hydration would join the whole input with itself."""
    aggregate = Aggregate("m", "max", "`b`", False, "int", "int")
    sql = render(Regroup(T, T, NOTHING, (("a", "`a`"),), (aggregate,), (3,)), NAMES)
    assert " JOIN " not in sql
    assert "3" in sql


def test_floats_are_added_in_the_order_of_their_values() -> None:
    """Damage: law D: the last bits of a sum would depend on the partitioning."""
    aggregate = Aggregate("s", "sum", "`b`", False, "double", "double")
    sql = render(Regroup(T, T, NOTHING, (), (aggregate,), (3,), 3), NAMES)
    assert "sort_array(collect_list(" in sql
    assert "SUM(__a0)" not in sql


def test_a_constant_without_rows_is_a_relation() -> None:
    """Damage: an empty VALUES is no SQL."""
    assert render(Constant(("x",), ()), {}).endswith("WHERE false")


def test_quoted_names_are_found_in_an_expression() -> None:
    """Damage: a condition would be put where its columns are not there yet."""
    assert columns_of("`a b` = upper(`c``d`) AND 1 = 1") == {"a b", "c`d"}
