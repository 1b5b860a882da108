"""`bench splits` compares one session with several, over the same rows."""

from __future__ import annotations

from pathlib import Path

from strandline.bench.endpoints.parallel import measure_splits


def test_one_session_and_several_store_the_same_rows(tmp_path: Path) -> None:
    """Damage: the benchmark compares what is not the same, or a split loses rows; its speed is the benchmark's to say.

    On a machine whose processors are all taken, several sessions are no faster than one.
    """
    found = measure_splits(tmp_path, rows=60_000, transactions=2, rounds=1, splits=4)
    assert found["wrong"] == 0
    assert found["rows_per_s"].keys() == {"1", "4"}
    assert found["factor"] > 0
