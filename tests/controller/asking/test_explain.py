"""`explain` says of each stage by what rule and look-ups it is maintained, and what its last step cost."""

from __future__ import annotations

from typing import Any

import pytest
from tests.controller.conftest import Place

from strandline.client import Environment

pytestmark = pytest.mark.spark


def _stages(env: Environment, view: str) -> dict[str, dict[str, Any]]:
    return {stage["rule"]: stage for stage in env.explain(view).stages}


def test_the_process_that_writes_tells_the_last_step_of_each_stage_and_others_know_it(place: Place) -> None:
    """Damage: a view is slow, and no command says whether it scans, plans afresh, or reads many rows."""
    with place.open() as env:
        env.execute("CREATE TABLE customers (id INT, city STRING)")
        env.execute("CREATE TABLE orders (id INT, customer INT, amount DECIMAL(10,2))")
        env.execute(
            "CREATE MATERIALIZED VIEW sales AS SELECT c.city, max(o.amount) AS most FROM orders o JOIN customers c"
            " ON o.customer = c.id GROUP BY c.city"
        )
        env.execute("CREATE MATERIALIZED VIEW ranked AS SELECT id, rank() OVER (ORDER BY amount) AS r FROM orders")
        assert _stages(env, "sales")["regroup"]["last_step"] is None
        env.insert("customers", [{"id": 1, "city": "Delft"}, {"id": 2, "city": "Ghent"}])
        for n in range(3):
            env.insert("orders", [{"id": n, "customer": 1, "amount": 20}])
            env.tick()
        told = _stages(env, "sales")["regroup"]
        assert told["key"] == ["city"]
        assert set(told["looks_up"]) >= {"customers by id", "sales by city"}
        last = told["last_step"]
        assert (last["rows_read"], last["window"], last["plan"]) == (1, "small", "prepared")
        assert last["ms"] > 0
        assert last["access"]["customers by id"] == "probe"
        assert "last step: 1 rows read" in str(env.explain("sales"))
        ranked = _stages(env, "ranked")["recompute"]
        assert "PARTITION BY" in ranked["reason"]
        assert f"write instead: {ranked['instead']}" in str(env.explain("ranked"))
        assert ranked["last_step"]["plan"].startswith(("prepared", "fresh, because"))
        with place.open(mode="read") as reader:
            assert _stages(reader, "sales")["regroup"]["last_step"] == last
