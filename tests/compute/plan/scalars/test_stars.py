"""A ``*`` inside an expression stands for the columns of the author's relations, except in ``count(*)``."""

from __future__ import annotations

from typing import Any, Final

import pytest

from strandline.compute.plan.scalars.context import Field, Scope

QUERIES: Final = {
    "distinct rows": "SELECT count(DISTINCT *) AS n FROM shops",
    "distinct rows of groups": "SELECT city, count(DISTINCT *) AS n, count(*) AS m FROM shops GROUP BY city",
    "distinct rows of one column": "SELECT count(DISTINCT *) AS n FROM (SELECT city FROM shops)",
    "distinct rows of a join": "SELECT p.kind, count(DISTINCT *) AS n FROM sales s JOIN products p USING (product)"
    " GROUP BY p.kind",
    "some distinct rows": "SELECT count(DISTINCT *) FILTER (WHERE size > 1) AS n FROM shops",
    "distinct rows of sets": "SELECT city, count(DISTINCT *) AS n FROM shops GROUP BY ROLLUP (city)",
    "distinct rows of a row outside": "SELECT p.kind, (SELECT count(DISTINCT *) FROM sales s WHERE s.product ="
    " p.product) AS n FROM products p",
    "distinct pairs": "SELECT city, count(DISTINCT shop, size) AS n FROM shops GROUP BY city",
    "some rows": "SELECT city, count(*) FILTER (WHERE size > 1) AS n FROM shops GROUP BY city",
    "rows without NULL": "SELECT count(*, size) AS n FROM shops",
    "rows that a condition picks": "SELECT count_if(DISTINCT size > 1) AS n FROM shops",
    "a hash beside a subquery": "SELECT hash(*) AS h, EXISTS (SELECT 1 FROM sales s WHERE s.shop = h.shop) AS e"
    " FROM shops h",
}


@pytest.mark.spark
@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", QUERIES)
def test_a_star_in_an_expression_is_the_authors_columns(name: str, laboratory: Any) -> None:
    """Damage: rows with a NULL, or the same row twice, are counted; a hash changes with what the plan adds."""
    sql, history = QUERIES[name], laboratory.history(sorted(QUERIES).index(name))
    want = laboratory.answers(sql, history)
    for time, held in laboratory.maintain(sql, history, (3, 5)).items():
        assert laboratory.rounded(held) == laboratory.rounded(want[time]), f"time {time}"


def test_a_star_but_some_columns_keeps_the_others_also_those_without_a_name() -> None:
    """Damage: a view shows the column that its author left out, such as one of persons; or it is not planned."""
    fields = (Field("t", "id", "id"), Field("t", "Mail", "mail"), Field("t", None, "column"))
    assert Scope(fields, fields).star("t", ["ID", "mail"]) == [fields[2]]
    assert Scope(fields, fields).star(None, ["mail"]) == [fields[0], fields[2]]
