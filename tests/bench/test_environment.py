"""What ticks leave behind is bounded, and the benchmark that says so would say otherwise."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from strandline.bench.environment import grow, grown, mints, over_lists
from strandline.bench.written import written

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

TICKS = 400
KEPT = 8
RATIO_MAX = 1.2


def test_ticks_leave_behind_what_is_alive_and_the_history_window() -> None:
    """Damage: an environment that has run for a month is slow, large, and gets slower and larger."""
    found = asyncio.run(grown(over_lists(), TICKS, kept_ticks=KEPT))
    assert found["updates_kept"] <= 4 * found["live_rows"] + found["window_updates"]
    assert found["read_ratio"] <= RATIO_MAX


def test_the_benchmark_shows_a_past_that_is_never_released() -> None:
    """Damage: the figures pass whatever the environment keeps."""
    found = asyncio.run(grown(over_lists(), TICKS, kept_ticks=TICKS))
    assert found["window_updates"] > 4 * found["live_rows"]
    assert found["read_ratio"] > RATIO_MAX


def test_mints_are_measured() -> None:
    """Damage: no figure shows the cost of a tick for an old source."""
    found = asyncio.run(mints(50))
    assert 0 < found["mint_ms_p50"] <= 2 * found["mint_ms"]


@pytest.mark.slow
def test_very_many_ticks_cost_what_few_cost(spark: SparkSession, tmp_path: Path, record_property) -> None:
    """Damage: an environment that has run for a year is slow, large, and gets slower and larger."""
    found = grow(spark, tmp_path)
    for each, kept in ((found, "lists"), (found["files"], "files")):
        for name, goal in (("tick_ratio", RATIO_MAX), ("disk_ratio", RATIO_MAX)):
            verdict = "pass" if each[name] <= goal else "info"
            record_property("FIGURE", f"environment {kept} {name} {each[name]} {goal} {verdict}")
        assert each["updates_kept"] <= 4 * each["live_rows"] + each["window_updates"]
        assert each["disk_ratio"] <= RATIO_MAX
    record_property("FIGURE", f"environment mint_ms {found['mint_ms']} 0.2 info")


@pytest.mark.spark
def test_both_places_are_measured(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the figures of one engine are reported as those of the other."""
    found = grow(spark, tmp_path, ticks=100, file_ticks=10, bindings=10)
    assert (found["ticks"], found["files"]["ticks"], found["bindings"]) == (100, 10, 10)
    for each in (found, found["files"]):
        assert each["updates_kept"] >= each["live_rows"] > 0
        assert each["disk_ratio"] > 0


AMPLIFICATION_MAX = 10


@pytest.mark.spark
def test_what_is_written_is_a_few_times_the_changes(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: disks wear out and fill up by what ticks write again and again, or by arrangements."""
    found = written(spark, tmp_path, ticks=10)
    assert found["blob_amplification"] + found["consensus_amplification"] == pytest.approx(found["amplification"], 0.02)
    assert 1 < found["amplification"] <= AMPLIFICATION_MAX
    assert 0 < found["arranged_bytes_max"] <= found["arranged_budget"]
    assert found["wrong"] == 0
