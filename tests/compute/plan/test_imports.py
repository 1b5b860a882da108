"""What a view reads is what its text names, whether its plan needs it or not."""

from __future__ import annotations

from typing import Final

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.compute.plan.view import plan_view
from strandline.compute.stage import split
from strandline.testing.lists.list_assembly import ListAnalyst

CATALOG: Final = {
    "sales": Schema((Column("shop", "string"), Column("qty", "int"))),
    "shops": Schema((Column("shop", "string"), Column("size", "int"))),
}
BOTH: Final = ("sales", "shops")
NAMED: Final = {
    "WITH unused AS (SELECT * FROM shops) SELECT shop, qty FROM sales": BOTH,
    "WITH a AS (SELECT * FROM shops), b AS (SELECT * FROM a) SELECT 1 AS one": ("shops",),
    "WITH unused AS (SELECT * FROM shops) SELECT shop, count(*) AS n FROM sales GROUP BY shop": BOTH,
    "SELECT shop FROM (WITH unused AS (SELECT * FROM shops) SELECT shop FROM sales)": BOTH,
    "SELECT shop FROM sales WHERE EXISTS (WITH unused AS (SELECT * FROM shops) SELECT 1)": BOTH,
    "SELECT shop FROM sales WHERE EXISTS (SELECT count(*) FROM shops)": BOTH,
    "SELECT qty FROM sales s WHERE EXISTS (SELECT (SELECT 1 FROM shops) FROM sales t WHERE t.shop = s.shop)": BOTH,
    "SELECT s.qty FROM sales s LEFT JOIN (SELECT DISTINCT shop FROM shops) h ON s.shop = h.shop": BOTH,
    "SELECT qty FROM sales WHERE false AND shop IN (SELECT shop FROM shops)": BOTH,
    "SELECT qty FROM sales UNION ALL SELECT size FROM shops WHERE false": BOTH,
    "SELECT qty FROM sales UNION ALL (SELECT size FROM shops LIMIT 0)": BOTH,
    "WITH unused AS (SELECT * FROM shops) SELECT rank() OVER (ORDER BY qty) AS r FROM sales": BOTH,
    "WITH sales AS (SELECT shop FROM SHOPS) SELECT shop FROM sales": ("shops",),
    "WITH sales AS (SELECT * FROM sales) SELECT shop FROM Sales": ("sales",),
    "WITH a AS (SELECT shop FROM sales), sales AS (SELECT * FROM a) SELECT shop FROM sales": ("sales",),
    "SELECT qty FROM (WITH shops AS (SELECT 1 AS n) SELECT qty, n FROM sales, shops)": ("sales",),
    "SELECT qty FROM (WITH shops AS (SELECT 1 AS n) SELECT n FROM shops), sales JOIN shops USING (shop)": BOTH,
    "WITH RECURSIVE shops AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM shops WHERE n < 3) SELECT n FROM shops": (),
}


@pytest.mark.parametrize("distrusted", [False, True])
@pytest.mark.parametrize("sql", NAMED)
def test_a_view_reads_what_its_text_names(sql: str, distrusted: bool) -> None:
    """Damage: a collection is dropped under a view, which then cannot be verified or opened again."""
    view = plan_view(sql, CATALOG, ListAnalyst(), distrusted=distrusted)
    assert view.imports == NAMED[sql]
    assert {name for stage in split(view, "v") for name in stage.inputs} >= set(NAMED[sql])


def test_what_is_named_and_not_needed_hides_no_key_and_is_said() -> None:
    """Damage: an endpoint cannot update the rows of a view because of a name in its text."""
    sql = "WITH unused AS (SELECT * FROM shops) SELECT shop, sum(qty) AS q FROM sales GROUP BY shop"
    view = plan_view(sql, CATALOG, ListAnalyst())
    assert view.key == ("shop",)
    assert view.notes == ("shops is named and not needed: the view waits for it and has its errors all the same",)
