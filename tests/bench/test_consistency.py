"""The total of transfers is 0 in every version of ours, and a chain's wrong versions are counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.bench.consistency import measure_consistency, share_of

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


def test_wrong_versions_are_counted() -> None:
    """Damage: a side that shows wrong totals looks like one that does not."""
    assert share_of([0, 5, 0, -7]) == {"versions": 4, "violations": 2, "share": 0.5, "off_by": 7}


@pytest.mark.spark
def test_ours_is_zero_in_every_version(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: a reader sees money that no account has."""
    found = measure_consistency(spark, tmp_path, rate=500, seconds=2)
    assert found["ours"]["versions"] >= 1
    assert found["ours"]["violations"] == 0
    assert found["peer"]["versions"] >= 1
