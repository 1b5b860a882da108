"""Expressions that are easy to take apart wrongly, maintained: at every time the view is the query."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any, Final

import pytest

pytestmark = pytest.mark.spark

_AT: Final = "timestampadd(MINUTE, qty * 4, CAST(day AS TIMESTAMP))"

QUERIES: Final = {
    "count of a disjunction": "SELECT shop, count(qty > 1 OR product = 'p') AS n FROM sales GROUP BY shop",
    "count of a negation": "SELECT shop, count(NOT qty > 1) AS n, sum(-qty) AS s FROM sales GROUP BY shop",
    "count of two equalities": "SELECT shop, count(qty = 1 OR price = 1.10) AS n FROM sales GROUP BY shop",
    "count of membership": "SELECT shop, count(qty IN (1, 2)) AS n, count(qty IS NOT NULL) AS m FROM sales"
    " GROUP BY shop",
    "count with FILTER of a disjunction": "SELECT shop, count(qty) FILTER (WHERE qty = 1 OR price IS NULL) AS n"
    " FROM sales GROUP BY shop",
    "count of several disjunctions": "SELECT shop, count(qty > 1 OR product = 'p', price IS NULL OR qty = 1) AS n"
    " FROM sales GROUP BY shop",
    "sum of a case": "SELECT shop, sum(CASE WHEN qty = 1 OR qty = 3 THEN 1 ELSE qty END) AS s FROM sales GROUP BY shop",
    "conditions of both kinds": "SELECT s.qty FROM sales s JOIN shops h ON s.shop = h.shop OR s.qty = h.size"
    " WHERE s.qty = 1 OR h.size = 1 AND s.qty > 1",
    "an element of an array": "SELECT array(qty, 7)[0] AS a, shop FROM sales",
    "a backtick in a string": "SELECT s.qty FROM sales s JOIN shops h ON s.shop = h.shop AND s.product <> '`a`b'",
    "sessions": f"SELECT shop, CAST(session_window({_AT}, '5 minutes').start AS STRING) AS w, count(*) AS n"
    f" FROM sales GROUP BY shop, session_window({_AT}, '5 minutes')",
    "rollup over a literal": "SELECT 1 AS x, shop, count(*) AS n FROM sales GROUP BY ROLLUP (x, shop)",
    "cube over a literal": "SELECT shop, 1 AS x, count(qty) AS n FROM sales GROUP BY CUBE (x, shop)",
    "grouping sets after the keys": "SELECT upper(h.shop) AS shop, s.shop AS t, count(*) AS n FROM shops h JOIN sales s"
    " ON h.size = s.qty GROUP BY upper(h.shop), s.shop GROUPING SETS ((upper(h.shop)), (s.shop))",
    "with rollup": "SELECT product, shop, count(*) AS n FROM sales GROUP BY shop, product WITH ROLLUP",
    "median by a literal": "SELECT shop, 1 AS x, percentile(qty, 0.5) AS m FROM sales GROUP BY x, shop",
    "exists": "SELECT s.qty, EXISTS (SELECT 1 FROM products p WHERE p.product = s.product) AS e FROM sales s",
    "exists in a condition": "SELECT s.qty FROM sales s WHERE qty > 2 OR EXISTS (SELECT 1 FROM products p WHERE"
    " p.product = s.product)",
    "a scalar subquery": "SELECT s.qty, (SELECT max(cost) FROM products p WHERE p.product = s.product) AS c"
    " FROM sales s",
    "columns that have other names outside": "SELECT t.a, count(*) AS n, sum(t.b) AS s"
    " FROM (SELECT shop, qty FROM sales) AS t(a, b) GROUP BY t.a",
    "a total beside a constant": "SELECT count(*) AS n, max(qty) AS m, 1 AS c FROM sales",
    "membership by two columns": "SELECT shop, qty FROM sales WHERE (shop, qty) IN (SELECT shop, size FROM shops)",
    "membership by two columns, one of another type": "SELECT shop, qty FROM sales"
    " WHERE (shop, qty) IN (SELECT shop, size + 0.0 FROM shops)",
    "a lambda with a column's name": "SELECT transform(array(1), qty_2 -> qty_2 + z.qty)[0] AS t FROM sales s"
    " JOIN sales z ON z.shop = s.shop",
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", QUERIES)
def test_an_expression_is_maintained_as_it_was_written(name: str, laboratory: Any) -> None:
    """Damage: an operand falls apart in the text around it, and the view gives a wrong answer in silence."""
    sql, seed = QUERIES[name], sorted(QUERIES).index(name)
    history = laboratory.history(seed)
    want = laboratory.answers(sql, history)
    for bounds in (laboratory.times[1:], (3, 5)):
        for time, held in laboratory.maintain(sql, history, bounds).items():
            assert laboratory.rounded(held) == laboratory.rounded(want[time]), f"windows cut at {bounds}, time {time}"


@pytest.mark.parametrize("direction", ["ASC", "DESC NULLS FIRST"])
@pytest.mark.parametrize("frame", ["", "RANGE BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"])
def test_the_last_of_peers_is_the_same_for_all_of_them(direction: str, frame: str, laboratory: Any) -> None:
    """Damage: with the default frame every row would be given its own value, which is no last value at all."""
    over = f"OVER (PARTITION BY shop ORDER BY qty {direction} {frame})"
    sql = f"SELECT shop, qty, price, last_value(price) {over} AS l, nth_value(price, 2) {over} AS n FROM sales"
    several = 0
    for held in laboratory.maintain(sql, laboratory.history(3), laboratory.times[1:]).values():
        peers: defaultdict[Any, Counter[Any]] = defaultdict(Counter)
        for (shop, qty, price, _, _), count in held.items():
            peers[shop, qty][price] += count
        lasts: dict[Any, set[Any]] = defaultdict(set)
        for shop, qty, _, last, _ in held:
            lasts[shop, qty].add(last)
        for group, found in lasts.items():
            assert len(found) == 1
            assert found <= set(peers[group])
            several += len(peers[group]) > 1
        for shop in {group[0] for group in peers}:
            own = {qty: sum(found.values()) for (other, qty), found in peers.items() if other == shop}
            least = qty_order(own, direction)
            reached, second = 0, None
            for qty in least:
                before, reached = reached, reached + own[qty]
                told = {n for (s, q, _, _, n) in held if (s, q) == (shop, qty)}
                assert len(told) == 1
                if reached < 2:
                    assert told == {None}
                elif before < 2:
                    second = told
                    assert told <= set(peers[shop, qty])
                assert reached < 2 or told == second
    assert several > 3, "no ties: the test shows nothing"


def qty_order(found: dict[int | None, int], direction: str) -> list[int | None]:
    """Return the keys as Spark orders them: NULL is first in both directions."""
    return sorted(found, key=lambda q: (q is not None, (q or 0) * (1 if direction == "ASC" else -1)))
