"""Queries that have one answer are kept, though Spark is strict about what it takes for not deterministic."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.compute.care import by_rows
from strandline.compute.stage import full_plan, split
from strandline.engine.sql.rendering import render

pytestmark = pytest.mark.spark

DETERMINED = {
    "a subquery in ON": "SELECT s.qty, h.city FROM sales s JOIN shops h ON s.shop = h.shop"
    " AND s.qty IN (SELECT size FROM shops)",
    "EXISTS in ON": "SELECT s.qty, h.city FROM sales s LEFT JOIN shops h ON s.shop = h.shop"
    " AND EXISTS (SELECT 1 FROM products p WHERE p.product = s.product)",
    "a subquery in an aggregate": "SELECT shop, sum((SELECT max(size) FROM shops h WHERE h.shop = s.shop)) AS m"
    " FROM sales s WHERE qty > 0 GROUP BY shop",
    "GROUP BY ALL": "SELECT shop, (SELECT max(size) FROM shops) AS m, count(*) AS n FROM sales WHERE qty > 1"
    " GROUP BY ALL",
    "GROUP BY 1": "SELECT upper(shop) AS u, sum((SELECT max(size) FROM shops h WHERE h.shop = s.shop)) AS m"
    " FROM sales s WHERE qty > 0 GROUP BY 1",
    "a LATERAL subquery": "SELECT s.qty, l.c FROM sales s, LATERAL (SELECT max(cost) AS c FROM products p"
    " WHERE p.product = s.product AND 10 / p.cost > 1) l",
    "a correlated subquery": "SELECT qty FROM sales s WHERE qty = (SELECT min(size) FROM shops h"
    " WHERE h.shop = s.shop AND size > 0)",
    "a window over a subquery": "SELECT qty, rank() OVER (ORDER BY (SELECT max(size) FROM shops h WHERE"
    " h.shop = s.shop), qty) AS r FROM sales s WHERE qty > 0",
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", DETERMINED)
def test_a_query_with_one_answer_is_kept(name: str, laboratory: Any) -> None:
    """Damage: CREATE refuses a view for a condition that the text does not have, or shows a trace of Java's."""
    sql = DETERMINED[name]
    history = laboratory.history(4)
    want = laboratory.answers(sql, history)
    for time, held in laboratory.maintain(sql, history, (3, 5)).items():
        assert laboratory.rounded(held) == laboratory.rounded(want[time]), f"time {time}"


def test_its_careful_plans_are_no_less_determined(laboratory: Any) -> None:
    """Damage: a view whose rows are tried apart is refused by Spark then, and stands still for ever."""
    sql = (
        "SELECT x.q FROM (SELECT 12 / qty AS q, shop FROM sales) x JOIN shops h ON x.shop = h.shop"
        " AND x.q IN (SELECT size FROM shops) AND EXISTS (SELECT 1 FROM products p WHERE 10 / p.cost > x.q)"
    )
    stages = split(laboratory.plan(sql), "view")
    schemas = laboratory.catalog | {stage.name: stage.schema for stage in stages}
    views = {name: f"careful_{name.replace(':', '_')}" for name in schemas}
    for name, schema in schemas.items():
        rows = laboratory.session.createDataFrame([], f"{schema.ddl}, __time bigint, __diff bigint")
        rows.createOrReplaceTempView(views[name])
    careful = 0
    for stage in stages:
        made = by_rows(stage)
        careful += len(made.errors)
        for plan in (full_plan(made.stage), *made.errors):
            laboratory.session.sql(render(plan, views)).collect()
    assert careful, "no row can fail: the test shows nothing"
