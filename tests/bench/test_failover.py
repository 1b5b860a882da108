"""What kills cost is measured on real processes, whose views are right at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.bench.instances.failover import Load, measure_failover

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.kill
@pytest.mark.time_limit(1200)
def test_kills_are_measured_and_lose_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the figures are of processes that were not killed, or of views that lost rows."""
    found = measure_failover(spark, tmp_path, Load(200, 3, 3, 3, 1, 1, 1))
    assert (found["reused"], found["rebuilt"]) == (2 * 3, 0)
    assert (found["controller_kills"], found["replica_kills"]) == (1, 1)
    assert (found["conflicts"], found["audits"], found["wrong"]) == (0, 0, 0)
    assert (
        found["controller_restart_s_p50"] <= found["controller_restart_views_s_p50"] < found["controller_whole_s_p50"]
    )
    assert 0 < found["undisturbed"]["p50_ms"] <= found["undisturbed"]["p99_ms"]
    assert found["freshness_p99_ratio"] > 0
    assert found["ended_with"] == [0, 0, 0]
