"""`bench splits` compares one session with several, over the same rows."""

from __future__ import annotations

from pathlib import Path

from strandline.bench.endpoints.parallel import measure_splits


def test_several_sessions_wait_for_the_endpoint_at_the_same_time(tmp_path: Path) -> None:
    """Damage: splits cost their logs and sessions, and nothing becomes faster."""
    found = measure_splits(tmp_path, rows=60_000, transactions=2, rounds=1, splits=4)
    assert found["wrong"] == 0
    assert found["factor"] > 1.2, found
