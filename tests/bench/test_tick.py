"""What a tick costs is measured under views that differ, in an environment that is right at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.bench.tick import VIEWS, measure_ticks, view
from strandline.cli import main

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_no_two_views_are_one() -> None:
    """Damage: views that share all their stages make fifty look as cheap as ten."""
    assert len({view(number) for number in range(max(VIEWS))}) == max(VIEWS)


@pytest.mark.parametrize("views", ["2,1", "0", "one", "1,1"])
def test_numbers_of_views_that_do_not_rise_are_refused(views: str, capsys) -> None:
    """Damage: a figure for each further view is made of nothing."""
    assert main(["bench", "tick", "--views", views]) == 2
    assert views in capsys.readouterr().err


@pytest.mark.spark
def test_the_first_tick_runs_jobs_and_idle_ones_run_none(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the count of jobs is not what Spark did, and a tick that costs too much looks free."""
    found = measure_ticks(spark, tmp_path, views=(1, 2), changed_ticks=1)
    assert [run["views"] for run in found["runs"]] == [1, 2]
    for run in found["runs"]:
        assert run["idle_jobs"] == 0
        assert run["first_jobs"] > 0
        assert run["waves"] > 0
        assert run["jobs"] <= 2 * run["waves"]
        assert 0 < run["ms_p50"] <= run["ms_p90"]
