"""Outer, semi and anti joins and subqueries are maintained from changes, and equal Spark's own answer at every time."""

from __future__ import annotations

from typing import Any, Final

import pytest

from strandline.compute.explain import explain
from strandline.compute.stage import split

QUERIES: Final = {
    "left": "SELECT s.shop, s.qty, h.city FROM sales s LEFT JOIN shops h ON s.shop = h.shop",
    "left, null-safe": "SELECT s.shop, h.shop AS other, h.city FROM sales s LEFT JOIN shops h ON s.shop <=> h.shop",
    "left, filtered on both sides": "SELECT s.qty, h.city FROM sales s LEFT JOIN shops h ON s.shop = h.shop AND"
    " h.size > 1 AND s.qty < 3",
    "left, on values computed of both sides": "SELECT s.qty, h.city FROM sales s LEFT JOIN shops h ON upper(s.shop)"
    " = upper(h.shop) AND s.qty + 1 = h.size",
    "left, with a further condition": "SELECT s.qty, h.city, h.size FROM sales s LEFT JOIN shops h ON s.shop ="
    " h.shop AND s.qty > h.size",
    "left, without a condition": "SELECT h.city, p.kind FROM shops h LEFT JOIN products p ON true",
    "left of a join": "SELECT s.qty, p.kind, h.city FROM sales s JOIN products p USING (product) LEFT JOIN shops h"
    " ON h.shop = s.shop AND h.size = p.cost",
    "left, then another": "SELECT s.qty, h.city, p.kind FROM sales s LEFT JOIN shops h USING (shop) LEFT JOIN"
    " products p ON p.product = s.product WHERE h.size > 1 OR p.kind IS NULL",
    "left, then inner on what it added": "SELECT s.qty, h.city, p.kind FROM sales s LEFT JOIN shops h USING (shop)"
    " JOIN products p ON p.product <=> h.city",
    "left, counted": "SELECT n, count(*) AS many FROM (SELECT h.shop, count(s.qty) AS n FROM shops h LEFT JOIN sales"
    " s ON h.shop = s.shop GROUP BY h.shop) GROUP BY n",
    "left, to groups": "SELECT h.city, g.n, g.m FROM shops h LEFT JOIN (SELECT shop, count(*) AS n, max(qty) AS m"
    " FROM sales GROUP BY shop) g ON h.shop = g.shop",
    "right": "SELECT h.city, s.qty FROM sales s RIGHT JOIN shops h ON s.shop = h.shop AND s.qty > 1",
    "full": "SELECT s.shop, s.qty, h.shop AS other, h.city FROM sales s FULL JOIN shops h ON s.shop = h.shop",
    "full, with a further condition": "SELECT s.qty, h.city FROM sales s FULL JOIN shops h ON s.shop = h.shop AND"
    " s.qty <> h.size AND s.product = 'p'",
    "semi": "SELECT s.* FROM sales s LEFT SEMI JOIN shops h ON s.shop = h.shop AND h.size > 1",
    "semi, with a further condition": "SELECT s.qty FROM sales s LEFT SEMI JOIN shops h ON s.shop = h.shop AND s.qty"
    " <> h.size",
    "anti": "SELECT s.* FROM sales s LEFT ANTI JOIN shops h ON s.shop = h.shop",
    "anti, then a join": "SELECT s.qty, p.kind FROM sales s LEFT ANTI JOIN shops h ON s.shop = h.shop AND s.qty = 1"
    " JOIN products p ON p.product = s.product",
    "rows out of rows, counted": "SELECT shop, count(*) AS n FROM (SELECT shop, explode(sequence(1, qty)) AS w FROM"
    " sales WHERE qty > 0) GROUP BY shop",
    "the greatest that gives a row": "SELECT shop, max(qty) AS m FROM (SELECT shop, qty, explode(filter(array(qty),"
    " x -> x < 3)) AS w FROM sales) GROUP BY shop",
    "distinct groups, each there twice": "SELECT DISTINCT shop FROM (SELECT shop, explode(array(1, 2)) AS w FROM"
    " (SELECT shop, count(*) AS n FROM sales GROUP BY shop))",
    "a lateral view": "SELECT s.shop, w FROM sales s LATERAL VIEW explode(sequence(1, qty)) t AS w WHERE w > 1 AND"
    " qty > 0",
    "an outer lateral view of a join": "SELECT h.city, t.w FROM sales s JOIN shops h ON s.shop = h.shop LATERAL VIEW"
    " OUTER explode(filter(array(s.qty, h.size), x -> x > 2)) t AS w",
    "lateral views, one over the other": "SELECT shop, a, b FROM sales LATERAL VIEW explode(array(qty, 1)) t AS a"
    " LATERAL VIEW explode(array(a, a + 1)) u AS b",
    "more than the least": "SELECT s.qty, s.shop FROM sales s WHERE s.qty > (SELECT min(size) FROM shops)",
    "at most the mean, and no other": "SELECT s.shop, s.qty FROM sales s WHERE (SELECT avg(h.size) FROM shops h) >="
    " s.qty AND NOT EXISTS (SELECT 1 FROM products p WHERE p.product = s.product)",
    "in": "SELECT s.qty, s.shop FROM sales s WHERE s.shop IN (SELECT shop FROM shops WHERE size > 1) AND s.qty > 1",
    "in, of several": "SELECT s.qty FROM sales s WHERE (s.shop, s.qty) IN (SELECT shop, size FROM shops)",
    "in groups": "SELECT s.qty FROM sales s WHERE shop IN (SELECT shop FROM sales GROUP BY shop HAVING sum(qty) > 6)",
    "in what is outside": "SELECT s.qty FROM sales s WHERE s.qty IN (SELECT size FROM shops h WHERE h.shop = s.shop)",
    "not in": "SELECT s.qty, s.shop FROM sales s WHERE s.shop NOT IN (SELECT shop FROM shops WHERE size = 1)",
    "not in, a number": "SELECT s.qty, s.shop FROM sales s WHERE NOT (s.qty IN (SELECT size FROM shops))",
    "not in, rarely anything": "SELECT s.qty FROM sales s WHERE s.qty NOT IN (SELECT size FROM shops WHERE city ="
    " 'y' AND size = 1)",
    "not in what is outside": "SELECT s.qty FROM sales s WHERE s.qty NOT IN (SELECT size FROM shops h WHERE h.shop ="
    " s.shop)",
    "not in, of several, outside": "SELECT s.qty FROM sales s WHERE (s.qty, s.units) NOT IN (SELECT h.size, 7L FROM"
    " shops h WHERE h.shop = s.shop)",
    "exists": "SELECT s.qty FROM sales s WHERE EXISTS (SELECT * FROM shops h WHERE h.shop = s.shop AND size > 1)",
    "exists, not equal": "SELECT s.shop, s.qty FROM sales s WHERE EXISTS (SELECT 1 FROM sales o WHERE o.shop ="
    " s.shop AND o.product <> s.product) AND NOT EXISTS (SELECT 1 FROM sales o WHERE o.shop = s.shop AND o.product"
    " <> s.product AND o.qty > 2)",
    "exists anything": "SELECT city FROM shops WHERE EXISTS (SELECT 1 FROM products WHERE cost > 2)",
    "exists nothing": "SELECT city FROM shops WHERE NOT EXISTS (SELECT 1 FROM sales WHERE qty = 3)",
    "not exists, of two": "SELECT s.qty, p.kind FROM sales s, products p WHERE s.product = p.product AND NOT EXISTS"
    " (SELECT 1 FROM shops h WHERE h.shop = s.shop AND h.size < p.cost)",
    "exists in exists": "SELECT p.kind FROM products p WHERE EXISTS (SELECT 1 FROM sales s WHERE s.product ="
    " p.product AND s.shop IN (SELECT shop FROM shops WHERE city = 'x'))",
    "exists or": "SELECT s.qty FROM sales s WHERE qty > 2 OR EXISTS (SELECT 1 FROM products p WHERE p.product ="
    " s.product)",
    "exists as a value": "SELECT s.qty, EXISTS (SELECT 1 FROM products p WHERE p.product = s.product) AS e FROM"
    " sales s",
    "an aggregate of its own": "SELECT s.qty, s.shop FROM sales s WHERE qty * 2 > (SELECT 1.5 * avg(qty) FROM sales"
    " o WHERE o.shop = s.shop)",
    "an aggregate as a value": "SELECT s.qty, (SELECT max(cost) FROM products p WHERE p.product = s.product) AS c"
    " FROM sales s",
    "a count of nothing": "SELECT h.city, h.shop FROM shops h WHERE (SELECT count(*) FROM sales s WHERE s.shop ="
    " h.shop AND s.qty = 3) = 0",
    "a sum and a count": "SELECT h.city, (SELECT coalesce(sum(qty), -1) + count(s.qty) FROM sales s WHERE s.shop ="
    " h.shop) AS n FROM shops h",
    "one row": "SELECT s.qty FROM sales s WHERE s.qty > (SELECT avg(size) FROM shops) AND s.qty < (SELECT max(qty)"
    " FROM sales)",
    "one row as a value": "SELECT h.city, (SELECT max(cost) FROM products) AS m, (SELECT count(*) FROM sales) AS n"
    " FROM shops h",
    "one row among groups": "SELECT shop, sum(qty) AS q FROM sales GROUP BY shop HAVING sum(qty) > (SELECT sum(size)"
    " FROM shops)",
    "no row": "SELECT h.city, (SELECT sum(qty) AS q FROM sales HAVING sum(qty) > 9) AS q FROM shops h",
    "the greatest": "WITH g AS (SELECT shop, sum(qty) AS q FROM sales GROUP BY shop) SELECT h.city, g.q FROM shops"
    " h, g WHERE h.shop = g.shop AND g.q = (SELECT max(q) FROM g)",
}


@pytest.mark.spark
@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", QUERIES)
def test_a_join_of_another_kind_is_maintained_from_changes(name: str, laboratory: Any) -> None:
    """Damage: rows padded with NULLs that stay, or are missing; or a tick that reads everything anew."""
    sql, seed = QUERIES[name], sorted(QUERIES).index(name)
    told = explain(laboratory.plan(sql), split(laboratory.plan(sql), "view"))
    assert told.incremental, told.reasons
    history = laboratory.history(seed)
    want = laboratory.answers(sql, history)
    for time, held in laboratory.maintain(sql, history, (2, 3, 5)).items():
        assert laboratory.rounded(held) == laboratory.rounded(want[time]), f"time {time}"
