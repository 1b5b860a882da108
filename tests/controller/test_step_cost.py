"""A step in steady state makes Spark do only what its rows need."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.sql import SparkSession

from compiled import COMPILED

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark

WARM_STEPS = 4


def _compiled(spark: SparkSession) -> int:
    jvm = spark.sparkContext._jvm
    return jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount()


def test_a_warm_step_compiles_no_code(place: Place, spark: SparkSession) -> None:
    """Else every step would pay again for generating and compiling the same plans: a third of its time."""
    begun = _compiled(spark)
    with place.open(config={"spark": COMPILED}) as env:
        env.execute("CREATE TABLE customers (id INT, city STRING)")
        env.execute("CREATE TABLE orders (id INT, customer INT, amount DECIMAL(10,2))")
        env.execute(
            "CREATE MATERIALIZED VIEW sales AS SELECT c.city, count(*) AS n, sum(o.amount) AS amount "
            "FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.city"
        )
        env.insert("customers", [{"id": 1, "city": "Delft"}, {"id": 2, "city": "Ghent"}])
        env.tick()
        assert _compiled(spark) > begun, "the test is about plans that are compiled"
        compiled = []
        for step in range(WARM_STEPS):
            env.insert("orders", [{"id": step, "customer": 1, "amount": 20}])
            before = _compiled(spark)
            env.tick()
            compiled.append(_compiled(spark) - before)

        assert compiled[-1] == 0, f"classes compiled, step by step: {compiled}"
