"""What a view reads is what its text names, whether its plan needs it or not."""

from __future__ import annotations

from typing import Any

import pytest

from strandline.compute.plan.view import plan_view
from strandline.compute.rehearsal import rehearse
from strandline.compute.stage import split

pytestmark = pytest.mark.spark

BOTH = ("sales", "shops")
NAMED = {
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
    "WITH unused AS (SELECT * FROM shops) SELECT median(qty) AS m FROM sales GROUP BY ROLLUP (shop)": BOTH,
    "WITH sales AS (SELECT shop FROM SHOPS) SELECT shop FROM sales": ("shops",),
    "WITH sales AS (SELECT * FROM sales) SELECT shop FROM Sales": ("sales",),
    "WITH a AS (SELECT shop FROM sales), sales AS (SELECT * FROM a) SELECT shop FROM sales": ("sales",),
    "SELECT qty FROM (WITH shops AS (SELECT 1 AS n) SELECT qty, n FROM sales, shops)": ("sales",),
    "SELECT qty FROM (WITH shops AS (SELECT 1 AS n) SELECT n FROM shops), sales JOIN shops USING (shop)": BOTH,
    "WITH RECURSIVE shops AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM shops WHERE n < 3) SELECT n FROM shops": (),
}


@pytest.mark.parametrize("distrusted", [False, True])
def test_a_view_reads_what_its_text_names(distrusted: bool, laboratory: Any) -> None:
    """Damage: a collection is dropped under a view, which then cannot be verified or opened again."""
    for sql, imports in NAMED.items():
        view = plan_view(sql, laboratory.catalog, laboratory.analyst, distrusted=distrusted)
        stages = split(view, "v")
        assert view.imports == imports, sql
        assert {name for stage in stages for name in stage.inputs} >= set(imports), sql
        rehearse(stages, laboratory.catalog, laboratory.analyst)


UNNEEDED = "WITH unused AS (SELECT * FROM shops) SELECT shop, sum(units % 9) AS u FROM sales GROUP BY shop"


def test_what_is_named_and_not_needed_gives_no_rows_and_hides_no_key(laboratory: Any) -> None:
    """Damage: a view has rows of a collection that it only names, or an endpoint cannot update its rows."""
    view = laboratory.plan(UNNEEDED)
    assert view.key == ("shop",)
    assert "shops is named" in " ".join(view.notes)
    history = laboratory.history(2)
    kept = laboratory.maintain(UNNEEDED, history, [2, 4, 6])
    answers = laboratory.answers(UNNEEDED, history)
    assert {time: laboratory.rounded(held) for time, held in kept.items()} == {
        time: laboratory.rounded(answers[time]) for time in kept
    }
