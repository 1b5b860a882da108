"""Staging and scanning are measured beside plain Spark, which does the same to the same rows."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import SparkSession

from strandline.bench.persist import stage_and_scan

ROWS = 4_000


def test_both_sides_are_measured_in_every_round(spark: SparkSession, tmp_path: Path) -> None:
    """Else the one figure that compares us with plain Spark could not be had, or would compare something else."""
    figures = stage_and_scan(spark, tmp_path / "bench", rows=ROWS, rounds=2)

    assert figures["rows"] == ROWS
    assert {name: len(seconds) for name, seconds in figures["seconds"].items()} == dict.fromkeys(
        ("stage", "unsorted", "peer", "scan", "peer_scan"), 2
    )
    assert all(figures[name] > 0 for name in ("stage_ratio", "stage_cpu_ratio", "scan_ratio", "scan_cpu_ratio"))
    assert not (tmp_path / "bench").exists()
