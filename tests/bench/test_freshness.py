"""How long rows wait is measured for both sides, from rows that are all there at the end."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from strandline.bench.feed import FILE_ROWS, Feed
from strandline.bench.freshness import measure_freshness

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_a_feed_writes_every_row_once_and_knows_when(tmp_path: Path) -> None:
    """Damage: rows wait for a time that no benchmark measures."""
    feed = Feed(tmp_path, "n,twice", lambda n: f"{n},{2 * n}", rate=10_000, seconds=0.05)
    feed.run()
    rows = [row for path in sorted(tmp_path.glob("*.csv")) for row in csv.DictReader(path.open())]
    assert [int(row["n"]) for row in rows] == list(range(feed.rows)) == list(range(5 * FILE_ROWS))
    assert len(feed.durable) == feed.files == len(list(tmp_path.iterdir()))
    assert feed.durable == sorted(feed.durable)


@pytest.mark.spark
def test_both_sides_are_measured(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the ratio is one of nothing, or of rows that never came."""
    found = measure_freshness(spark, tmp_path, rate=500, seconds=1, warm_seconds=1, rounds=1)
    for side in ("ours", "peer"):
        assert 0 < found[side]["p50_ms"] <= found[side]["p99_ms"] <= found[side]["max_ms"]
        assert found[side]["commits"] >= 1
    assert found["p50_ratio"] > 0
