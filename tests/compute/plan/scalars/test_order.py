"""LIMIT without ORDER BY in a query that is recomputed: ties are broken, and an order that may not hold is refused."""

from __future__ import annotations

import pytest
from sqlglot import exp

from strandline.compute.plan.scalars.order import complete_cuts
from strandline.compute.plan.sql import parse
from strandline.errors import DefinitionError


def completed(subquery: str) -> list[str]:
    """Return the keys by which a subquery with a LIMIT is ordered, once its ties are broken."""
    query = parse(f"SELECT ({subquery}) AS s FROM u")
    assert query is not None
    complete_cuts(query)
    order = query.selects[0].this.this.args["order"]
    assert isinstance(order, exp.Order)
    return [key.this.sql() for key in order.expressions]


@pytest.mark.parametrize(
    "subquery",
    [
        "SELECT a FROM t LIMIT 1",
        "SELECT max(a) OVER (ORDER BY b) FROM t LIMIT 1",
        "SELECT a FROM t WHERE a IN (SELECT b FROM t ORDER BY b, 1 LIMIT 2) LIMIT 1",
        "SELECT a FROM t UNION ALL SELECT b FROM t LIMIT 1",
    ],
)
def test_a_limit_without_an_order_takes_the_least_rows(subquery: str) -> None:
    """Damage: a query that has one answer is refused for an order that stands beside its rows; or Spark takes any."""
    assert completed(subquery) == ["1"]


@pytest.mark.parametrize(
    "subquery",
    [
        "SELECT a FROM (SELECT a FROM t ORDER BY b) LIMIT 1",
        "SELECT a FROM t UNION ALL (SELECT a FROM t ORDER BY b) LIMIT 1",
    ],
)
def test_a_limit_over_an_order_that_may_not_hold_is_refused(subquery: str) -> None:
    """Damage: an author reads the newest row, and the view holds the least one."""
    with pytest.raises(DefinitionError, match="ORDER BY beside LIMIT"):
        completed(subquery)
