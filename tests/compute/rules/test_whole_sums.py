"""Sums of 64-bit integers: what they are does not depend on the order in which Spark adds."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from typing import Any, Final

import pytest
from tests.compute.conftest import TIMES, Row, schema

pytestmark = pytest.mark.spark

_MOST: Final = 2**63 - 1
_ORDERS: Final = list(permutations((_MOST, 1, -1)))
"""Added up in some of these orders, 64 bits overflow on the way, and not in the end; a double rounds otherwise."""
_ODD: Final = 2**53 + 1
SUMS: Final = {
    "beside a maximum": ("SELECT k, sum(x) AS s, max(x) AS m FROM t GROUP BY k", (_MOST, _MOST)),
    "of distinct values": ("SELECT k, sum(DISTINCT x) AS s, count(DISTINCT x) AS n FROM t GROUP BY k", (_MOST, 3)),
    "beside a median": ("SELECT k, sum(x) AS s, percentile(x, 0.5) AS m FROM t GROUP BY k", (_MOST, 1.0)),
    "over a window": ("SELECT DISTINCT k, sum(x) OVER (PARTITION BY k) AS s FROM t", (_MOST,)),
    "with a condition": ("SELECT k, sum(x) FILTER (WHERE x <> 0) AS s, max(x) AS m FROM t GROUP BY k", (_MOST, _MOST)),
    "tried": ("SELECT k, try_sum(x) AS s, percentile(x, 0.5) AS m FROM t GROUP BY k", (_MOST, 1.0)),
}
MEANS: Final = {
    "beside a maximum": "SELECT k, avg(x) AS a, max(x) AS m FROM t GROUP BY k",
    "of distinct values": "SELECT k, avg(DISTINCT x) AS a, max(x) AS m FROM t GROUP BY k",
    "beside a median": "SELECT k, avg(x) AS a, max(x) AS m, percentile(x, 0.5) AS p FROM t GROUP BY k",
    "over a window": "SELECT DISTINCT k, avg(x) OVER (PARTITION BY k) AS a FROM t",
}


def _laboratory(laboratory: Any) -> Any:
    return replace(laboratory, catalog={"t": schema(k="int", x="bigint")}, _plans={})


def _history(orders: list[tuple[int, ...]]) -> Any:
    rows: list[tuple[Row, int]] = [((k, x), 1 + k % 3) for k, order in enumerate(orders) for x in order]
    return {"t": dict.fromkeys(rows, 1)}


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_that_fits_is_a_sum_whatever_comes_first(name: str, laboratory: Any) -> None:
    """Damage: a view has an error or an answer by where its rows lie; another replica, or `verify`, has the other."""
    sql, want = SUMS[name]
    held = _laboratory(laboratory).maintain(sql, _history(_ORDERS), (2, 3))
    assert set(held[TIMES[-1]]) == {(k, *want) for k in range(len(_ORDERS))}


@pytest.mark.parametrize("name", MEANS)
def test_an_average_of_whole_numbers_has_the_same_bits_whatever_comes_first(name: str, laboratory: Any) -> None:
    """Damage: two replicas of a view differ in the last bit, and one is said to be wrong."""
    orders = list(permutations((_ODD, 1, 2)))
    held = _laboratory(laboratory).maintain(MEANS[name], _history(orders), (2, 3))
    assert {row[1] for row in held[TIMES[-1]]} == {float(_ODD + 1 + 2) / 3}


@pytest.mark.parametrize("aggregate", ["sum(x)", "sum(DISTINCT x)", "sum(x) OVER (PARTITION BY k)"])
def test_a_sum_that_does_not_fit_is_an_error(aggregate: str, laboratory: Any) -> None:
    """Damage: 2^63 becomes -2^63."""
    sql = f"SELECT k, {aggregate} AS s" + ("" if "OVER" in aggregate else ", max(x) AS m") + " FROM t"
    sql += "" if "OVER" in aggregate else " GROUP BY k"
    with pytest.raises(Exception, match=r"CAST_OVERFLOW|ARITHMETIC_OVERFLOW"):
        _laboratory(laboratory).maintain(sql, _history([(_MOST, 1)]), (2, 3))
