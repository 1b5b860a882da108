"""A replica has the very plans that the controller made: of the TPC-H-derived views, and of random ones."""

from __future__ import annotations

import random
from typing import Final

import pytest
from pyspark.sql import SparkSession
from random_plans import RandomPlans
from tests.instance.protocol.samples import dataflow
from tests.instance.protocol.views import RANDOM, TPCH, assert_carried, carried, random_views

from strandline.bench.ivm import queries
from strandline.engine.session.start import sibling
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.testing.lists.list_assembly import ListAnalyst

PLANS: Final = 300
BATCH: Final = 20
VIEWS: Final = range(0, 400, BATCH)
SPARK_BATCH: Final = 25
SPARK_VIEWS: Final = range(0, 300, SPARK_BATCH)
REFUSED_MAX: Final = 8
"""How many views of a batch may be refused."""


def test_the_tpch_views_are_carried() -> None:
    """Damage: a benchmark's view is another one in a replica."""
    assert carried(queries(), TPCH, ListAnalyst()) == 22


def test_random_plans_are_carried() -> None:
    """Damage: some shape of plan arrives as another one."""
    seen = set()
    for seed in range(PLANS):
        planned = RandomPlans(random.Random(seed)).view()
        assert_carried(dataflow(f"v{seed}", planned))
        seen.add(repr(planned.plan))
    assert len(seen) == PLANS, "the plans are not random"


@pytest.mark.drawn(10)
@pytest.mark.parametrize("first", VIEWS)
def test_random_views_are_carried(first: int) -> None:
    """Damage: some expression that an author writes arrives as another one."""
    assert carried(random_views(first, BATCH), RANDOM, ListAnalyst()) >= BATCH - REFUSED_MAX


@pytest.fixture(scope="module")
def analyst(spark: SparkSession) -> SparkAnalyst:
    """Spark, as a controller asks it."""
    return SparkAnalyst(sibling(spark, {"spark.sql.ansi.enabled": "true", "spark.sql.session.timeZone": "UTC"}))


@pytest.mark.spark
def test_the_tpch_views_are_carried_as_spark_has_them_planned(analyst: SparkAnalyst) -> None:
    """Damage: as above; Spark knows more of a view than lists do, and fewer of its parts are recomputed."""
    assert carried(queries(), TPCH, analyst) == 22


@pytest.mark.spark
@pytest.mark.drawn(6)
@pytest.mark.parametrize("first", SPARK_VIEWS)
def test_random_views_are_carried_as_spark_has_them_planned(first: int, analyst: SparkAnalyst) -> None:
    """Damage: as above, for views that may fail, too."""
    views = random_views(first, SPARK_BATCH, failing=first % 2 == 1)
    assert carried(views, RANDOM, analyst) >= SPARK_BATCH - REFUSED_MAX
