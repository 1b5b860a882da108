"""An environment that opens again plans its views without asking Spark what it has answered before."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

import strandline
from strandline.engine.sql.analysis import SparkAnalyst

pytestmark = pytest.mark.spark

VIEWS = (
    "CREATE MATERIALIZED VIEW totals AS SELECT k, sum(price) AS total, count(DISTINCT k) AS n FROM orders GROUP BY k",
    "CREATE MATERIALIZED VIEW best AS SELECT o.k, t.total FROM orders o JOIN totals t ON o.k = t.k AND o.price > 2",
)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What Spark is asked about, in order."""
    found: list[str] = []
    for method in ("schema_of", "same", "doubts", "compared"):
        original = getattr(SparkAnalyst, method)

        def counted(self: Any, *arguments: Any, _method: str = method, _original: Any = original, **named: Any) -> Any:
            found.append(f"{_method}: {arguments[0]}")
            return _original(self, *arguments, **named)

        monkeypatch.setattr(SparkAnalyst, method, counted)
    return found


def test_a_second_opening_asks_spark_nothing(tmp_path: Path, spark: SparkSession, asked: list[str]) -> None:
    """Damage: after a crash views stand still for as long as a JVM that has just begun analyses them."""
    with strandline.open(str(tmp_path / "place"), spark=spark) as env:
        env.execute("CREATE TABLE orders (k BIGINT, price DECIMAL(10, 2))")
        for text in VIEWS:
            env.execute(text)
        env.insert("orders", [{"k": 1, "price": Decimal("3.50")}])
        env.tick()
        before = env.query("SELECT * FROM best").collect()
    assert asked
    asked.clear()
    with strandline.open(str(tmp_path / "place"), spark=spark) as env:
        env.tick()
        assert asked == []
        assert env.query("SELECT * FROM best").collect() == before
        env.insert("orders", [{"k": 1, "price": Decimal("4.00")}])
        env.tick()
        assert env.verify("best").ok
        assert env.verify("totals").ok


def test_a_function_that_returns_another_type_is_asked_about(
    tmp_path: Path, spark: SparkSession, asked: list[str]
) -> None:
    """Damage: a view keeps the type that a function of the caller's had, and stores its values wrongly."""

    def opened(kind: str) -> Any:
        function = udf(lambda k: k, kind, useArrow=False)
        return strandline.open(str(tmp_path / "place"), spark=spark, config={"functions": {"twice": function}})

    with opened("bigint") as env:
        env.execute("CREATE TABLE orders (k BIGINT)")
        env.execute("CREATE MATERIALIZED VIEW v AS SELECT twice(k) AS d FROM orders")
        env.tick()
    asked.clear()
    with opened("bigint") as env:
        env.tick()
        assert asked == []
    with opened("double"):
        assert asked, "the view is analysed with the function as it is"
