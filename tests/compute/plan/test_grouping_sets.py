"""Grouping sets are groups of their own: at every time, by changes alone, the view is what Spark answers."""

from __future__ import annotations

from typing import Any, Final

import pytest

from strandline.algebra.scalar import scalar
from strandline.compute.plan import aggregate
from strandline.compute.plan.aggregate import SETS_MAX
from strandline.compute.stage import split

pytestmark = pytest.mark.spark

WIDE: Final = ", ".join(f"qty + {n}" for n in range(5))
SETS: Final = {
    "cube": "SELECT shop, product, avg(price) AS m FROM sales GROUP BY CUBE (shop, product)",
    "a key in all": "SELECT upper(shop) AS u, product FROM sales GROUP BY 1, ROLLUP (upper(shop), 2)",
    "sets": "SELECT shop, product, count(*) AS n FROM sales GROUP BY GROUPING SETS ((shop), (shop, product), product)",
    "a total alone": "SELECT count(*) AS n, sum(qty) AS s FROM sales GROUP BY GROUPING SETS (())",
    "a total twice": "SELECT count(*) AS n, sum(qty) AS s FROM sales GROUP BY GROUPING SETS ((), ())",
    "a set twice": "SELECT shop, count(*) AS n FROM sales GROUP BY GROUPING SETS ((shop), (shop), (), ())",
    "combined": "SELECT shop, product, qty, count(*) AS n FROM sales GROUP BY shop, CUBE (product), ROLLUP (qty)",
    "nested": "SELECT shop, product, qty, grouping_id() AS g, count(*) AS n FROM sales"
    " GROUP BY GROUPING SETS (ROLLUP (shop, product), CUBE (qty), (qty, shop))",
    "structures": "SELECT shop, product, qty, count(*) AS n FROM sales GROUP BY ROLLUP ((shop, product), (qty))",
    "aliases": "SELECT upper(shop) AS u, product AS p, count(*) AS n FROM sales GROUP BY CUBE (u, p)",
    "with cube": "SELECT product, shop, count(*) AS n FROM sales GROUP BY shop, product WITH CUBE",
    "grouping": "SELECT shop, grouping(shop) AS a, grouping(product) + 1 AS b, count(*) AS n FROM sales"
    " GROUP BY CUBE (shop, product)",
    "grouping_id": "SELECT shop, product, grouping_id() AS g, grouping_id(shop, product, qty) AS h, sum(qty) AS s"
    " FROM sales GROUP BY shop, CUBE (product, qty)",
    "of what is grouped by": "SELECT shop, qty, sum(qty) AS s, max(shop) AS m, count(shop, qty) AS n, qty + 1 AS q,"
    " coalesce(shop, 'all') AS c FROM sales GROUP BY CUBE (shop, qty)",
    "having": "SELECT shop, product, sum(qty) AS s FROM sales GROUP BY ROLLUP (shop, product)"
    " HAVING count(*) > 1 AND (grouping(product) = 1 OR product IS NOT NULL)",
    "having a key": "SELECT shop AS s, count(*) AS n FROM sales GROUP BY ROLLUP (shop) HAVING s IS NULL",
    "the first": "SELECT shop, product, count(*) AS n FROM sales GROUP BY CUBE (shop, product)"
    " ORDER BY grouping_id() DESC, n DESC, shop, product LIMIT 5",
    "a window": "SELECT shop, product, rank() OVER (PARTITION BY grouping_id() ORDER BY sum(qty)) AS r FROM sales"
    " GROUP BY ROLLUP (shop, product)",
    "others than sums": "SELECT shop, product, max(price) AS m, sum(weight) AS w, count(DISTINCT qty) AS d"
    " FROM sales GROUP BY ROLLUP (shop, product)",
    "over a join": "SELECT h.city, grouping(city) AS g, sum(s.qty * 2) AS q FROM sales s JOIN shops h"
    " USING (shop) WHERE s.qty < 3 GROUP BY ROLLUP (h.city)",
    "beside a subquery": "SELECT shop, sum(qty) AS q, (SELECT max(size) FROM shops) AS m FROM sales"
    " GROUP BY ROLLUP (shop)",
    "distinct": "SELECT DISTINCT count(*) AS n FROM sales GROUP BY CUBE (shop, product)",
}  # fmt: skip
OTHERWISE: Final = {
    "another aggregate": "SELECT shop, percentile(qty, 0.5) AS p FROM sales GROUP BY ROLLUP (shop)",
    "a key of keys": "SELECT shop, product, concat(product, shop) AS c, count(*) AS n FROM sales"
    " GROUP BY CUBE (shop, product, concat(product, shop))",
    "too many": f"SELECT count(*) AS n FROM sales GROUP BY CUBE ({WIDE})",
}


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", [*SETS, *OTHERWISE])
def test_grouping_sets_are_what_spark_makes_of_them_at_every_time(name: str, laboratory: Any) -> None:
    """Damage: totals are missing, counted twice, or drift away from their parts."""
    sql = (SETS | OTHERWISE)[name]
    history = laboratory.history(sorted(SETS | OTHERWISE).index(name))
    want = laboratory.answers(sql, history)
    for time, held in laboratory.maintain(sql, history, (3, 5, 6)).items():
        assert laboratory.rounded(held) == laboratory.rounded(want[time]), f"time {time}"
    kinds = [stage.kind for stage in split(laboratory.plan(sql), "view")]
    assert ("recompute" in kinds) is (name in OTHERWISE), kinds


def test_what_sets_have_in_common_is_kept_once(laboratory: Any) -> None:
    """Damage: each use of a set costs a collection, and a part of every step."""
    stages = split(laboratory.plan(SETS["a set twice"]), "view")
    assert [stage.kind for stage in stages] == ["accumulate", "accumulate", "linear"]
    assert SETS_MAX < 2**5


def test_a_wrong_mark_of_the_set_is_noticed(laboratory: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the test above would pass whatever the columns of a set hold."""
    monkeypatch.setattr(aggregate, "number", lambda _: scalar("0").tree)
    name = "grouping"
    laboratory.forget(SETS[name])
    with pytest.raises(AssertionError, match="time"):
        test_grouping_sets_are_what_spark_makes_of_them_at_every_time(name, laboratory)
    laboratory.forget(SETS[name])
