"""The benchmark of files reads all rows of all formats, with both sides."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.bench.sources.beside import Read, Turns
from strandline.bench.sources.files import FORMATS, measure_files

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_both_sides_have_read_the_files(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: the figure compares reading everything with reading a part."""
    found = measure_files(spark, tmp_path, rows=3_000, files=3, rounds=1)
    for form in FORMATS:
        assert found[form]["wrong"] == 0
        assert found[form]["ratio"] > 0


def test_figures_are_of_the_rounds_after_the_first_and_all_rounds_are_checked() -> None:
    """Damage: a side that reads less looks faster, and no figure says so."""
    turns = Turns(10, ours=[Read(9.0, 10, 45), Read(2.0, 10, 45)], spark=[Read(9.0, 9, 40), Read(1.0, 10, 45)])
    found = turns.figures()
    assert (found["rows_per_s"], found["spark_rows_per_s"], found["ratio"]) == (5, 10, 0.5)
    assert found["wrong"] == 1 + 5
