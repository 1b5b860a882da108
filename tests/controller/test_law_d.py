"""Law D: a view's updates are a function of its inputs, bit for bit, however they are split, batched and evaluated."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.spark
CHILD = Path(__file__).with_name("law_d_child.py")
CONFIGURATIONS = {
    "local[1], a day a step": ("local[1]", 1, "compiled"),
    "local[2], a day a step": ("local[2]", 1, "interpreted"),
    "local[2], days in one step": ("local[2]", 7, "compiled"),
    "local-cluster[2,1,1024], a day a step": ("local-cluster[2,1,1024]", 1, "interpreted"),
    "local-cluster[2,1,1024], days in one step": ("local-cluster[2,1,1024]", 7, "compiled"),
}
REFERENCE = "local[2], a day a step"
FARTHEST = "local-cluster[2,1,1024], days in one step"
"""What differs from the reference in every way at once."""


@pytest.mark.time_limit(900)
@pytest.mark.parametrize(
    ("days", "names"),
    [
        pytest.param(5, (REFERENCE, FARTHEST)),
        pytest.param(14, tuple(CONFIGURATIONS), marks=pytest.mark.slow),
    ],
    ids=["5 days", "14 days"],
)
def test_the_views_updates_are_identical_whatever_the_partitioning_and_the_batching(
    days: int, names: tuple[str, ...], tmp_path: Path
) -> None:
    """Else two replicas would correct each other's last bits for ever, and a restart could change an answer."""
    found = {}
    for number, name in enumerate(names):
        master, days_per_step, compiled = CONFIGURATIONS[name]
        directory = tmp_path / str(number)
        directory.mkdir()
        run = subprocess.run(
            [sys.executable, CHILD, directory, master, str(days), str(days_per_step), compiled],
            capture_output=True,
            text=True,
            check=False,
        )
        assert run.returncode == 0, f"{name}: {run.stderr[-3000:]}"
        found[name] = json.loads(run.stdout.strip().splitlines()[-1])

    reference = found[REFERENCE]
    assert all(int(updates.split(":")[0]) > 0 for updates in reference.values())
    assert found == dict.fromkeys(names, reference)
