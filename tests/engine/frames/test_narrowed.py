"""Rows are narrowed in Arrow to what a predicate may let through, and no further than that."""

from __future__ import annotations

from datetime import date
from typing import Any

import pyarrow as pa
import pytest

from strandline.algebra.scalar import Comparison, Condition
from strandline.engine.frames.transforms import narrowed

TABLE = pa.table(
    {
        "n": pa.array([1, 2, 3, None], pa.int16()),
        "s": ["green", "evergreens", "Z", None],
        "d": [date(2026, 1, day) for day in (1, 2, 3)] + [None],
        "f": [1.0, 2.0, float("nan"), None],
        "b": [True, False, None, True],
    }
)


@pytest.mark.parametrize(
    ("condition", "kept"),
    [
        (Condition("n", Comparison.MORE, (1,)), [2, 3]),
        (Condition("n", Comparison.IN, (1, 1 << 40)), [1]),
        (Condition("s", Comparison.HOLDS, ("green",)), [1, 2]),
        (Condition("s", Comparison.STARTS, ("green",)), [1]),
        (Condition("s", Comparison.ENDS, ("s",)), [2]),
        (Condition("s", Comparison.LESS, ("a",)), [3]),
        (Condition("d", Comparison.AT_MOST, (date(2026, 1, 2),)), [1, 2]),
        (Condition("d", Comparison.IN, (date(2026, 1, 3),)), [3]),
    ],
)
def test_rows_for_which_a_condition_is_false_or_null_are_left_out(condition: Condition, kept: list[int]) -> None:
    """Damage: a small window carries rows of which nothing comes."""
    assert narrowed(TABLE, [condition])["n"].to_pylist() == kept


@pytest.mark.parametrize(
    ("column", "value"),
    [("s", 1), ("n", "1"), ("d", "2026-01-01"), ("f", 1), ("b", 1), ("n", 1 << 70), ("n", date(2026, 1, 1))],
)
def test_what_spark_would_cast_is_not_judged(column: str, value: Any) -> None:
    """Damage: Arrow's casts are not Spark's, and a row goes that Spark would keep."""
    assert narrowed(TABLE, [Condition(column, Comparison.IN, (value,))]).num_rows == TABLE.num_rows
