"""How fresh views are beside what is late: a view that is computed, an endpoint and a source that do not answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.bench.alive import measure_alive
from strandline.instance import problems

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.spark
@pytest.mark.hasty
def test_views_are_followed_beside_what_is_late(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: an endpoint or an upstream that does not answer makes every view late, and no figure shows it."""
    monkeypatch.setattr(problems, "LONG_S", 600.0)  # a busy machine may be late with anything
    found = measure_alive(spark, tmp_path, seconds=3, warm_seconds=3, views=2, rows=5_000, matches=10, silent_seconds=3)
    parts = [found[name] for name in ("before", "beside", "endpoint_silent", "source_gone")]
    assert all(part["p50_ms"] > 0 for part in parts)
    assert any(part["told_per_s"] > 0 for part in parts)
