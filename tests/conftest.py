"""Fixtures that every room's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from strandline.engine.session import build


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark application for the whole run, since starting one takes seconds: two cores, UTC, no UI."""
    session = build({"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"})
    yield session
    session.stop()
