"""Sums and orders of updates are by the columns that are meant, whatever these are called."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pytest

from strandline.algebra.schema import DIFF
from strandline.engine.frames import inline

NAMES: Final = (".a", "[0]", "[a]", ".", "[", "..a", "a.b", ".a.b", "$.a", "'", "", "x" * 65_536)
"""Beside each of them stand ``a`` and a first column, which Arrow takes some of them for."""


@pytest.mark.parametrize("name", NAMES, ids=[repr(name[:8]) for name in NAMES])
def test_updates_are_added_up_and_sorted_by_what_a_name_names(name: str) -> None:
    """Damage: rows that differ in this column alone become one, silently; or they are stored out of order."""
    table = pa.table({"first": [7, 7, 7, 7], "a": [5, 5, 5, 5], name: [3, 1, 2, 1], DIFF: [1, 1, 1, 1]})
    summed = inline.summed(table)
    assert sorted(zip(summed[name].to_pylist(), summed[DIFF].to_pylist(), strict=True)) == [(1, 2), (2, 1), (3, 1)]
    assert inline.in_order(table, [name])[name].to_pylist() == [1, 1, 2, 3]
    assert inline.consolidated(table)[name].to_pylist() == [1, 2, 3]
    assert inline.counted(table).column_names == table.column_names
