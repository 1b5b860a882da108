"""`bench serving` counts what was acknowledged, beside clients that die and misbehave."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strandline.bench.served.serving import measure_serving

pytestmark = [pytest.mark.spark, pytest.mark.seldom(2)]


def test_what_clients_were_told_is_there_whatever_the_others_do(spark: Any, tmp_path: Path) -> None:
    """Damage: a client that is killed, stalls or sends garbage costs another one its rows."""
    found = measure_serving(spark, tmp_path / "location", seconds=16)
    assert (found["wrong"], found["failed"]) == (0, 0), found
    assert found["rows"] > 20, found
