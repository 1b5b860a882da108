"""A field that is named after an argument has the author's name, and not that of the plan's column."""

from __future__ import annotations

from typing import Any, Final

import pytest

from strandline.compute.stage import split
from strandline.errors import DefinitionError

JOINED: Final = "sales s JOIN shops h ON s.shop = h.shop"
ARRAYS: Final = (
    "(SELECT shop, array(units) AS r FROM sales) s JOIN (SELECT shop, array(size) AS r FROM shops) h ON s.shop = h.shop"
)
FIELDS: Final = {
    "columns with one name": f"SELECT to_json(struct(s.shop, h.shop, (h.city))) AS j FROM {JOINED}",
    "names in another case": "SELECT to_json(struct(SHOP, h.City)) AS j FROM shops h",
    "a name with a space": "SELECT to_json(struct(`a b`)) AS j FROM (SELECT shop AS `a b` FROM shops)",
    "a row in parentheses": f"SELECT to_json((s.shop, h.shop)) AS j FROM {JOINED}",
    "a struct in a struct": f"SELECT to_json(struct(struct(h.shop), (s.shop, h.shop) AS t)) AS j FROM {JOINED}",
    "a name given in the same SELECT": "SELECT size + 1 AS n, to_json(struct(n)) AS j FROM shops",
    "one query read twice": "WITH c AS (SELECT shop FROM shops)"
    " SELECT to_json(struct(a.shop, b.shop)) AS j FROM c a JOIN c b ON a.shop = b.shop",
    "a variable of a lambda": f"SELECT to_json(transform(array(s.qty), x -> struct(x, h.shop))) AS j FROM {JOINED}",
    "a field of a field": "SELECT to_json(struct(t.a.shop, t.a['shop'])) AS j FROM"
    f" (SELECT struct(struct(h.shop) AS a) AS t FROM {JOINED})",
    "the name of a type": f"SELECT typeof(struct(h.shop)) AS j FROM {JOINED}",
    "a variant": f"SELECT CAST(to_variant_object(struct(h.shop)) AS STRING) AS j FROM {JOINED}",
    "XML": f"SELECT to_xml(struct(h.shop)) AS j FROM {JOINED}",
    "arrays with one name": f"SELECT to_json(arrays_zip(s.r, h.r, array(1))) AS j FROM {ARRAYS}",
    "what is grouped by": "SELECT to_json(struct(h.shop, h.size + 1, count(*), count(*) AS n)) AS j"
    f" FROM {JOINED} GROUP BY h.shop, h.size + 1",
    "a struct that is grouped by": "SELECT to_json(struct(SHOP, city)) AS j, count(*) AS n"
    " FROM shops GROUP BY struct(SHOP, city)",
    "the greatest struct": f"SELECT h.city, max(struct(h.shop, s.qty)).shop AS m FROM {JOINED} GROUP BY h.city",
    "a window": f"SELECT h.city, to_json(struct(h.shop, count(*) OVER (PARTITION BY h.city))) AS j FROM {JOINED}",
    "a subquery": "SELECT to_json(struct((SELECT max(size) FROM shops), kind)) AS j FROM products",
}
STARS: Final = {
    "a star of a join": f"SELECT to_json(struct(*)) AS j FROM {JOINED}",
    "a star of one side": f"SELECT to_json(struct(h.*, s.qty, s.shop || 'x')) AS j FROM {JOINED}",
    "a star but a column": f"SELECT to_json(struct(h.* EXCEPT (size))) AS j FROM {JOINED}",
    "a star in another case": "SELECT to_json(struct(*)) AS j FROM (SELECT SHOP, h.City FROM shops h)",
    "a star of arrays": "SELECT to_json(arrays_zip(*)) AS j FROM (SELECT array(shop) AS `a b` FROM shops)",
    "a star after USING": "SELECT to_json(struct(*)) AS j FROM sales s"
    " JOIN (SELECT kind, Product FROM products) p USING (PRODUCT)",
    "a star of what USING hides": "SELECT to_json(struct(p.*)) AS j, to_json(struct(s.*)) AS k FROM sales s"
    " JOIN (SELECT kind, cost, product, qty FROM products, (SELECT DISTINCT qty FROM sales)) p USING (qty, product)",
    "a hash": f"SELECT hash(*) AS h, xxhash64(h.*, 1) AS x FROM {JOINED}",
    "a hash after a LATERAL VIEW": "SELECT hash(*) AS h FROM shops LATERAL VIEW explode(array(size, 1)) t AS n",
    "the greatest hash": f"SELECT h.city, max(hash(*)) AS m FROM {JOINED} GROUP BY h.city",
}


@pytest.mark.spark
@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", [*FIELDS, *STARS])
def test_a_field_is_called_as_the_author_calls_it(name: str, laboratory: Any) -> None:
    """Damage: a program that reads the JSON of a view finds ``shop_2`` in it."""
    sql = (FIELDS | STARS)[name]
    history = laboratory.history(sorted(FIELDS | STARS).index(name))
    want = laboratory.answers(sql, history)
    assert any(want.values())
    for time, held in laboratory.maintain(sql, history, (3, 5)).items():
        assert laboratory.rounded(held) == laboratory.rounded(want[time]), f"time {time}"


@pytest.mark.spark
@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", [*FIELDS, *STARS])
def test_names_of_fields_cost_nothing(name: str, laboratory: Any) -> None:
    """Damage: each tick recomputes a view because of a struct in it."""
    kinds = [stage.kind for stage in split(laboratory.plan((FIELDS | STARS)[name]), "view")]
    assert "recompute" not in kinds


@pytest.mark.spark
def test_a_struct_with_one_name_twice_can_be_grouped_by_and_not_kept(laboratory: Any) -> None:
    """Damage: a view is accepted that no tick can ever compute, since no Parquet file holds such a struct."""
    with pytest.raises(DefinitionError, match="two fields of a struct are called 'shop'"):
        laboratory.plan(f"SELECT struct(s.shop, h.shop) AS both FROM {JOINED}")
    grouped = f"SELECT to_json(struct(s.shop, h.shop)) AS j FROM {JOINED} GROUP BY struct(s.shop, h.shop)"
    history = laboratory.history(4)
    want = laboratory.answers(grouped, history)
    for time, held in laboratory.maintain(grouped, history, (3, 5)).items():
        assert laboratory.rounded(held) == laboratory.rounded(want[time]), f"time {time}"
