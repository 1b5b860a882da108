"""A first sync, and the verification of an endpoint, need memory for some batches, not for all rows."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

CHILD = Path(__file__).with_name("first_sync_child.py")
PEAK_MIB_MAX = 1024
SMALL, LARGE = 300_000, 5_000_000
SMALL_MIB_MAX = 512
"""What Python, PySpark, pyarrow and DuckDB take to begin with, and some batches."""


def sync(root: Path, rows: int, peak_max: int, name: str, record: Callable[[str, object], None]) -> None:
    """Sync so many rows in a process of its own, and check what it says."""
    done = subprocess.run([sys.executable, CHILD, root, str(rows)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["problems"] == {}
    assert told["found"][:2] == [rows, rows]
    assert told["found"][2] == sum(range(1000)) * rows // 1000
    assert (told["about"], told["read"], told["sent"]) == (rows, rows, rows)
    assert told["differences"] == 0
    assert told["told"] >= rows // 5_000, "after every batch it says how far it is"
    verdict = "pass" if told["peak_mib"] <= peak_max else "miss"
    record("FIGURE", f"first-sync.{name}.peak-mib {told['peak_mib']} <={peak_max} {verdict}")
    record("FIGURE", f"first-sync.{name}.rows-per-s {rows / told['seconds']:.0f} - info")
    assert told["peak_mib"] <= peak_max
    verdict = "pass" if told["peak_mib_verified"] <= peak_max else "miss"
    record("FIGURE", f"verify-endpoint.{name}.peak-mib {told['peak_mib_verified']} <={peak_max} {verdict}")
    assert told["peak_mib_verified"] <= peak_max


@pytest.mark.spark
def test_a_first_sync_of_300_000_rows_stays_small(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Damage: the first sync of a large collection ends the process that runs all others."""
    sync(tmp_path, SMALL, SMALL_MIB_MAX, "300k", record_property)


@pytest.mark.slow
def test_a_first_sync_of_5_million_rows_stays_within_1_gib(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Damage: the same, where memory that grows with the rows can no longer hide."""
    sync(tmp_path, LARGE, PEAK_MIB_MAX, "5m", record_property)
