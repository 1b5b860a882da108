"""A key that is given finds the rows with just this value, or is refused."""

from __future__ import annotations

import math

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import InvalidUsage
from strandline.instance.indexes.keys import key_table


def test_a_value_that_a_column_holds_is_a_key_and_one_that_would_be_rounded_is_none() -> None:
    """Damage: rows with NaN or NULL are never found; or rows are found whose value is only near to the one given."""
    rows = Schema((Column("f", "float"), Column("d", "double")))
    for held in (None, 1.5, -0.0, math.nan, math.inf):
        found = key_table(rows, ("f", "d"), [{"f": held, "d": held}]).to_pylist()
        assert repr(found) == repr([{"f": held, "d": held}])
    for rounded in (0.1, 16777217.0):
        with pytest.raises(InvalidUsage, match="'f' of the key is float, which cannot hold"):
            key_table(rows, ("f",), [{"f": rounded}])
