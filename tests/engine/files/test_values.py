"""Python's values become values of columns exactly, or not at all."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra import types
from strandline.engine.files.avro import Refused, converter, named


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("bigint", -(1 << 63), -(1 << 63)),
        ("double", 3, 3.0),
        ("float", 0.5, 0.5),
        ("decimal(5,2)", 7, Decimal("7.00")),
        ("decimal(5,2)", Decimal("1.500"), Decimal("1.50")),
        ("binary", b"x", b"x"),
        ("array<int>", [1, None], [1, None]),
        ("array<struct<k:string,v:int>>", {"b": 1, "a": 2}, [{"k": "a", "v": 2}, {"k": "b", "v": 1}]),
        ("struct<a:int>", {"a": 1, "more": 2}, {"a": 1}),
        ("date", dt.date(2024, 1, 2), dt.date(2024, 1, 2)),
    ],
)
def test_a_value_that_fits_is_itself(kind: str, value: Any, expected: Any) -> None:
    """Damage: a value is another one in its column."""
    found = converter(types.parse("c", kind))(value)
    assert repr(found) == repr(expected)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", 1 << 31),
        ("int", True),
        ("int", 1.0),
        ("int", "1"),
        ("boolean", 1),
        ("double", (1 << 53) + 1),
        ("float", 0.1),
        ("decimal(5,2)", Decimal("0.001")),
        ("decimal(5,2)", 1000),
        ("decimal(5,2)", 0.5),
        ("decimal(5,2)", Decimal("NaN")),
        ("string", b"x"),
        ("binary", "x"),
        ("date", dt.datetime(2024, 1, 2, tzinfo=dt.UTC)),
        ("timestamp", dt.datetime(2024, 1, 2)),  # noqa: DTZ001 - that is the point
        ("timestamp_ntz", dt.datetime(2024, 1, 2, tzinfo=dt.UTC)),
        ("array<int>", {"a": 1}),
        ("struct<a:int>", [1]),
        ("struct<a:int>", {"a": "x"}),
    ],
)
def test_a_value_that_does_not_fit_is_refused(kind: str, value: Any) -> None:
    """Damage: a value is cut, rounded or guessed to fit."""
    with pytest.raises(Refused, match="column `c`: '.*' is not a valid"):
        named("c", types.parse("c", kind), kind)(value)


@given(st.integers() | st.floats() | st.decimals() | st.booleans() | st.none() | st.text() | st.binary())
def test_a_number_keeps_its_value_or_is_refused(value: Any) -> None:
    """Damage: a number is another one in its column."""
    for kind in ("tinyint", "bigint", "float", "double", "decimal(38,10)"):
        try:
            found = named("c", types.parse("c", kind), kind)(value)
        except Refused:
            continue
        assert found == value or (isinstance(value, float) and math.isnan(value) and math.isnan(found))
