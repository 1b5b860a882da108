"""What a predicate says of single columns: never more than it means."""

from __future__ import annotations

from datetime import date

import pytest

from strandline.algebra.scalar import Comparison, Condition, Value, implied, scalar


def said(sql: str) -> list[tuple[str, str, tuple[Value, ...]]]:
    """Return what is implied, as plain data."""
    return [(each.column, each.comparison.value, each.values) for each in implied(scalar(sql))]


@pytest.mark.parametrize(
    ("sql", "conditions"),
    [
        ("`a` = 'x'", [("a", "in", ("x",))]),
        ("'x' = `a` AND (`b` < -3 AND 4 <= `c`)", [("a", "in", ("x",)), ("b", "<", (-3,)), ("c", ">=", (4,))]),
        ("`a` BETWEEN 1 AND 5", [("a", ">=", (1,)), ("a", "<=", (5,))]),
        ("`a` >= DATE '2026-01-31'", [("a", ">=", (date(2026, 1, 31),))]),
        ("`a` LIKE '%green%' AND `b` LIKE 'x%'", [("a", "contains", ("green",)), ("b", "starts with", ("x",))]),
        ("`a` LIKE '%x' AND `b` LIKE 'x'", [("a", "ends with", ("x",)), ("b", "in", ("x",))]),
        (
            "(`a` = 'x' AND `b` = 'y') OR (`b` = 'x' AND `a` IN ('y', 'z'))",
            [("a", "in", ("x", "y", "z")), ("b", "in", ("y", "x"))],
        ),
    ],
)  # fmt: skip
def test_comparisons_with_literals_are_seen(sql: str, conditions: list[tuple[str, str, tuple[Value, ...]]]) -> None:
    """Damage: look-ups fetch what the plan throws away."""
    assert said(sql) == conditions


@pytest.mark.parametrize(
    "sql",
    [
        "NOT `a` = 'x'", "`a` <> 'x'", "`a` NOT IN ('x')", "`a` NOT BETWEEN 1 AND 3", "`a` NOT LIKE 'x%'",
        "`a` <=> 'x'",
        "`a` = 'x' OR `b` = 'x'", "`a` = 'x' OR `a` > 'y'", "`a` = `b`", "upper(`a`) = 'x'", "`a` = 1.5", "`a` = 1e2",
        "`a` = 5L", "`a` IN ('x', 1)", "`a` IN ('x', `b`)", "`a` IN ('x', NULL)", "`a` = NULL", "`a` = true",
        "`a` = 'x' COLLATE UTF8_LCASE", "`a` LIKE 'x_'", "`a` LIKE 'x%y'", "`a` LIKE '%'", "`a` LIKE 'x!%' ESCAPE '!'",
        r"`a` LIKE 'x\\%'", r"`a` = 'x\\n'", "`a` = 'it''s'", "`a` LIKE ANY ('x', 'y')", "`a` = DATE '2026-1-31'",
        "`a` = DATE '2026-02-30'", "`a` = DATE 'today'", "`a` = TRY_CAST('2026-01-01' AS DATE)", "`a`.`b` = 'x'",
        "`a` = CAST('7' AS INT)", "IF(`a` = 'x', true, false)", "`a` = 'x' IS NULL",
    ],
)  # fmt: skip
def test_what_is_not_sure_is_not_said(sql: str) -> None:
    """Damage: rows that the predicate lets through are left out, and a view lacks them."""
    assert said(sql) == []


def test_one_value_is_one_condition() -> None:
    """Damage: two equal look-ups are made."""
    assert implied(scalar("`a` = 1")) == (Condition("a", Comparison.IN, (1,)),)
