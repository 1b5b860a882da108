"""What an environment costs that has nothing to do is measured on a real process, from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.bench.instances.idle import measure_idle

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.kill
@pytest.mark.time_limit(800)
def test_an_environment_with_nothing_to_do_starts_no_job_and_seldom_writes(tmp_path: Path) -> None:
    """Damage: a cluster is kept busy, and a log grows, for views that do not change."""
    found = measure_idle(tmp_path, views=3, seconds=10)
    assert (found["jobs"], found["ended_with"]) == (0, 0)
    assert 0 < found["writes_per_interval"] <= 1
    assert 0 < found["core_percent"] < 50
