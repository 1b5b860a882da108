"""Maintained views equal Spark's own answer at every time, however their history is cut into steps."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Final

import pytest

from strandline.algebra.nodes import Get, Reduce, frames
from strandline.algebra.schema import Column, Schema
from strandline.compute import stage as stage_module
from strandline.compute.explain import explain
from strandline.compute.plan.view import plan_view
from strandline.compute.rules import accumulate, registry
from strandline.compute.rules.rule import Window
from strandline.compute.stage import delta_plan, split
from strandline.testing.lists.list_assembly import ListAnalyst

QUERIES: Final = {
    "filter": "SELECT shop, qty + 1 AS more FROM sales WHERE qty > 1 OR product IS NULL",
    "duplicates": "SELECT shop FROM sales",
    "join": "SELECT s.shop, p.kind, s.qty FROM sales s JOIN products p USING (product)",
    "three way join": "SELECT s.qty, city, kind FROM sales s JOIN shops USING (shop) JOIN products p ON p.product ="
    " s.product",
    "comma join, no condition": "SELECT city, kind FROM shops, products WHERE size > 1",
    "self join": "SELECT a.qty, b.qty AS other FROM sales a JOIN sales b ON a.shop = b.shop AND a.qty < b.qty",
    "null-safe join": "SELECT s.qty, h.city FROM sales s JOIN shops h ON s.shop <=> h.shop",
    "union all": "SELECT shop AS name, qty FROM sales UNION ALL SELECT city, size + 1L FROM shops UNION ALL"
    " SELECT 'z', 0",
    "counts": "SELECT shop, count(*) AS n, count(qty) AS q, count_if(qty > 1) AS c FROM sales GROUP BY shop",
    "integers": "SELECT shop, sum(qty) AS s, avg(qty) AS m, avg(units) AS u FROM sales GROUP BY ALL",
    "decimals": "SELECT product, sum(price) AS s, avg(price) AS m, sum(price) + 1 AS t FROM sales GROUP BY 1",
    "floats": "SELECT shop, sum(weight) AS s, avg(weight) AS m, count(*) AS n FROM sales GROUP BY shop",
    "extremes": "SELECT shop, min(weight) AS a, max(price) AS b, min(qty) AS c FROM sales GROUP BY shop",
    "distinct aggregates": "SELECT shop, count(DISTINCT qty) AS n, sum(DISTINCT price) AS s, avg(DISTINCT weight) AS m"
    " FROM sales GROUP BY shop",
    "global": "SELECT count(*) AS n, sum(qty) AS s, avg(price) AS m, sum(price) AS t FROM sales WHERE qty > 1",
    "global extremes": "SELECT min(price) AS a, max(qty) AS b, count(*) AS n, sum(weight) w FROM sales WHERE qty > 1",
    "global over nothing": "SELECT count(*) AS n, max(qty) AS m FROM sales WHERE false",
    "having": "SELECT shop, sum(qty) AS s FROM sales GROUP BY shop HAVING count(*) > 2 AND max(qty) > 1",
    "having, invertible": "SELECT upper(shop) AS u, sum(qty) * 2 AS s FROM sales GROUP BY u HAVING s > 4",
    "distinct": "SELECT DISTINCT shop, qty FROM sales",
    "union": "SELECT shop FROM sales UNION SELECT city FROM shops",
    "join then group": "SELECT h.city, p.kind, count(*) AS n, avg(s.qty) AS m, sum(p.cost) AS c FROM sales s"
    " JOIN shops h USING (shop) JOIN products p USING (product) GROUP BY ALL",
    "join of aggregates": "WITH t AS (SELECT shop, sum(qty) AS q FROM sales GROUP BY shop) SELECT t.shop, t.q, u.n"
    " FROM t JOIN (SELECT shop, count(*) AS n FROM shops GROUP BY shop) u ON t.shop = u.shop",
    "a query twice": "WITH t AS (SELECT shop, count(*) AS n FROM sales GROUP BY shop)"
    " SELECT a.shop, b.shop AS other, a.n FROM t a JOIN t b ON a.n = b.n",
    "aggregate of aggregates": "SELECT q, count(*) AS n FROM (SELECT shop, sum(qty) AS q FROM sales GROUP BY shop)"
    " GROUP BY q",
    "top": "SELECT shop, product, count(*) AS n FROM sales GROUP BY shop, product ORDER BY n DESC, product, shop"
    " LIMIT 3",
    "top of rows": "SELECT qty, price FROM sales ORDER BY qty + 1 DESC NULLS LAST, -price LIMIT 4",
    "left join": "SELECT s.qty, h.city FROM sales s LEFT JOIN shops h ON s.shop = h.shop",
    "left join of aggregates": "SELECT a.shop, a.n, b.m FROM (SELECT shop, count(*) AS n FROM sales GROUP BY shop) a"
    " LEFT JOIN (SELECT shop, max(size) AS m FROM shops GROUP BY shop) b ON a.shop = b.shop",
    "not in": "SELECT product, kind FROM products WHERE product NOT IN (SELECT product FROM sales WHERE product IS"
    " NOT NULL)",
    "window": "SELECT shop, qty, row_number() OVER (PARTITION BY shop ORDER BY qty) AS r FROM sales",
    "window of the best": "SELECT shop, qty, day FROM sales QUALIFY rank() OVER (PARTITION BY product, shop"
    " ORDER BY qty) = 1 AND sum(qty) OVER (PARTITION BY shop) > 0",
    "rollup": "SELECT shop, product, median(qty) AS m, count(*) AS n FROM sales GROUP BY ROLLUP (shop, product)",
    "variance": "SELECT shop, round(stddev(qty), 9) AS d, percentile(qty, 0.5) AS p FROM sales GROUP BY shop",
    "except": "SELECT shop FROM sales EXCEPT ALL SELECT shop FROM shops",
    "intersect": "SELECT shop, qty FROM sales INTERSECT ALL SELECT shop, size FROM shops",
    "constants": "SELECT 1 AS a, 'x' AS b",
}


@pytest.mark.spark
@pytest.mark.drawn(3)
@pytest.mark.parametrize("name", QUERIES)
def test_a_maintained_view_is_the_query_at_every_time_bit_for_bit_however_it_is_cut(name: str, laboratory: Any) -> None:
    """Damage: a view that drifts from its query for ever, or two replicas that correct each other for ever."""
    sql, seed = QUERIES[name], sorted(QUERIES).index(name)
    history = laboratory.history(seed)
    want = laboratory.answers(sql, history)
    chance = random.Random(seed)
    cuts = sorted(chance.sample(laboratory.times[2:], chance.randint(1, 2)))
    fine, coarse = (laboratory.maintain(sql, history, bounds) for bounds in (laboratory.times[1:], cuts))
    for found, bounds in ((fine, "every time alone"), (coarse, cuts)):
        for time, held in found.items():
            assert laboratory.rounded(held) == laboratory.rounded(want[time]), f"windows cut at {bounds}, time {time}"
    for time, held in coarse.items():
        assert laboratory.bits(held) == laboratory.bits(fine[time]), f"windows cut at {cuts}, time {time}"
    last = laboratory.times[-1]
    assert laboratory.bits(laboratory.recomputed(sql, history, last)) == laboratory.bits(fine[last]), "the full plan"


@pytest.mark.spark
def test_a_query_used_twice_is_one_stage_and_names_itself_alike_in_every_view(laboratory: Any) -> None:
    """Damage: the same state would be kept, and maintained, once per use."""
    *inner, last = split(laboratory.plan(QUERIES["a query twice"]), "view")
    (shared,) = inner
    assert shared.kind == "accumulate"
    assert last.inputs == (shared.name,)
    again = split(laboratory.plan(QUERIES["a query twice"]), "another")
    assert again[0].name == shared.name


@pytest.mark.spark
def test_a_view_that_is_a_regrouped_or_recomputed_node_renamed_stores_itself_once(laboratory: Any) -> None:
    """Damage: every such view would be written twice, under two names."""
    for name, kind in (("floats", "regroup"), ("rollup", "recompute")):
        view = laboratory.plan(QUERIES[name])
        (only,) = split(view, "view")
        assert (only.name, only.kind, only.schema) == ("view", kind, view.schema)


@pytest.mark.spark
@pytest.mark.parametrize(
    ("asked", "kind"),
    [("1 AS r FROM j ORDER BY qty LIMIT 3", "top"), ("rank() OVER (ORDER BY qty) AS r FROM j", "recompute")],
)
def test_what_is_joined_for_a_query_that_may_read_all_of_it_is_stored(asked: str, kind: str, laboratory: Any) -> None:
    """Damage: each change of one row joins whole tables again."""
    joined = "(SELECT s.qty, h.size FROM sales s JOIN shops h ON s.shop = h.shop)"
    first, last = split(laboratory.plan(f"WITH j AS {joined} SELECT qty, size, {asked}"), "view")
    assert (first.kind, first.inputs) == ("linear", ("sales", "shops"))
    assert (last.kind, last.inputs) == (kind, (first.name,))


def test_a_stage_that_stores_more_than_its_rows_is_not_the_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a rule that reads its rows by a `Get` of some columns makes every such view fail when it is planned."""

    def rows(node: Reduce, name: str) -> Get:
        return Get(name, tuple((each, each) for each in node.names))

    rule = replace(accumulate.RULE, output=rows)
    monkeypatch.setattr(registry, "RULES", (rule, *registry.RULES))
    monkeypatch.setattr(stage_module, "NAMED", {**registry.NAMED, rule.name: rule})
    sold = Schema((Column("shop", "string"),))
    counting, view = split(plan_view("SELECT DISTINCT shop FROM sales", {"sales": sold}, ListAnalyst()), "view")
    assert counting.schema.names[1:] == (accumulate.ROWS,)
    assert (view.name, view.inputs, view.schema) == ("view", (counting.name,), sold)


@pytest.mark.spark
def test_what_cannot_change_is_not_in_the_plan_of_a_step(laboratory: Any) -> None:
    """Damage: a tick without changes would run jobs, one with few would read what did not change."""
    (stage,) = split(laboratory.plan(QUERIES["three way join"]), "view")
    assert delta_plan(stage, Window(frozenset(), ())) is None
    node = delta_plan(stage, Window(frozenset({"sales"}), (5,)))
    assert node is not None
    assert frames(node) == {"sales:delta", "shops:old", "products:old"}


@pytest.mark.spark
def test_an_explanation_says_why_anything_is_recomputed(laboratory: Any) -> None:
    """Damage: an author could not see why a view is slow."""
    unequal = "SELECT s.qty, h.city FROM sales s LEFT JOIN shops h ON s.qty < h.size"
    for sql, reason in (
        (QUERIES["left join"], None),
        (QUERIES["window"], None),
        (QUERIES["top"], None),
        (QUERIES["top of rows"] + " OFFSET 2", "OFFSET"),
        (QUERIES["rollup"], "MEDIAN"),
        (unequal, "try all pairs"),
    ):
        view = laboratory.plan(sql)
        stages = split(view, "view")
        told = explain(view, stages)
        assert told.incremental is (reason is None)
        assert [reason in each for each in told.reasons] == [True] * (reason is not None)
        assert len(told.sql) == len(stages)
        assert all(sql.split("\n")[-1] in str(told) for sql in told.sql)
