"""A part of rows with a very long value costs what its bytes cost, and has the same rows."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from strandline.engine.frames.inline import COMPARED_BYTES_MAX, parquet


@pytest.mark.parametrize(
    ("values", "compared"),
    [
        (["a", "x" * COMPARED_BYTES_MAX, None], True),
        (["a", "x" * (COMPARED_BYTES_MAX + 1), None], False),
        ([b"a", b"\xff" * (COMPARED_BYTES_MAX + 1)], False),
        ([None, None], False),
    ],
)
def test_a_column_with_a_very_long_value_is_stored_without_comparing_values(
    values: list[str | bytes | None], compared: bool
) -> None:
    """Damage: one text of 50 MB makes each step that writes it ten times as slow; or the texts beside it are lost."""
    table = pa.table({"long": values, "n": range(len(values))})
    data = pa.BufferReader(parquet(table))
    assert pq.read_table(data).to_pylist() == table.to_pylist()
    group = pq.read_metadata(data).row_group(0)
    assert bool(group.column(0).statistics and group.column(0).statistics.has_min_max) == compared
    assert group.column(1).statistics.has_min_max
