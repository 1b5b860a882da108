"""The benchmark of upserts changes what it says, by the envelope that people use, and sees what is wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest

from strandline.bench.sources import upserts
from strandline.bench.sources.upserts import measure_upserts

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession


@pytest.mark.spark
def test_both_collections_are_what_their_messages_say(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the ratio is of an upsert that keeps old rows, or of an append that loses new ones."""
    monkeypatch.setattr(upserts, "FILL_ROWS", 1_500)  # several ticks fill them
    found = measure_upserts(spark, tmp_path / "upserts", rows=4_000, keys=50, rounds=2, warm_rounds=1)
    assert found["wrong"] == 0
    assert found["ratio"] > 0
    assert len(found["upsert_ms_of_rounds"]) == len(found["append_ms_of_rounds"]) == 2


@pytest.mark.parametrize(
    ("ids", "values", "wrong"),
    [
        ([0, 1, 2], [10, 11, 12], 0),
        ([0, 2], [10, 12], 1),
        ([0, 1, 1, 2], [10, 11, 11, 12], 1),
        ([0, 1, 2], [10, 0, 12], 1),
    ],
)
def test_a_row_that_is_missing_doubled_or_old_is_counted(ids: list[int], values: list[int], wrong: int) -> None:
    """Damage: a benchmark praises an upsert that is wrong."""
    assert upserts._wrong(pa.table({"id": ids, "value": values}), np.array([10, 11, 12])) == wrong
