"""Two collections are compared with multiplicities, and floats that are close pair off as often as both are there."""

from __future__ import annotations

import pyarrow as pa
import pytest

from strandline.algebra.schema import DIFF
from strandline.engine.frames.compare import differences

CLOSE = 1.0 + 1e-14


@pytest.mark.parametrize(
    ("rows", "missing", "extra"),
    [
        ([(1.0, -1), (CLOSE, 1)], 0, 0),
        ([(1.0, -3), (CLOSE, 2)], 1, 0),
        ([(1.0, -2), (CLOSE, 3)], 0, 1),
        ([(1.0, -3), (CLOSE, 2), (1.0 + 2e-14, 2)], 0, 1),
        ([(1.0, -3), (2.0, 2)], 3, 2),
        ([(None, -2), (1.0, 2), (float("nan"), 1)], 2, 3),
    ],
)
def test_close_floats_pair_off_as_often_as_both_are_there(
    rows: list[tuple[float | None, int]], missing: int, extra: int
) -> None:
    """Damage: `verify` reports differences that there are not, or passes over those that there are."""
    left = pa.table({"x": pa.array([x for x, _ in rows], pa.float64()), DIFF: pa.array([n for _, n in rows])})
    found = differences(left, 12)
    assert (found.missing, found.extra) == (missing, extra)
