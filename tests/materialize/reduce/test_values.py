"""Sums are exact, and every two values have an order."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.materialize.reduce.documents import VALUES

from strandline.materialize.reduce.schemas import MISSING, NotReducibleError, add, fresh, order

BIG = st.integers() | st.decimals(allow_nan=False, allow_infinity=False, min_value=-(10**40), max_value=10**40)


@given(BIG, BIG)
def test_integers_and_decimals_are_added_exactly(left: int | Decimal, right: int | Decimal) -> None:
    """Damage: an account is wrong by a cent, or from 2^53 on."""
    total = add(left, right)
    assert Fraction(total) == Fraction(left) + Fraction(right)
    assert isinstance(total, int) == (isinstance(left, int) and isinstance(right, int))


@pytest.mark.parametrize("other", [1, Decimal("1.5"), 0.5])
def test_with_a_float_the_sum_is_a_float(other: Decimal | float) -> None:
    """Damage: the type of a sum depends on which document came first."""
    assert add(0.25, other) == add(other, 0.25) == 0.25 + float(other)
    assert isinstance(add(0.25, other), float)


def test_nan_and_infinity_are_those_of_ieee_754() -> None:
    """Damage: one NaN of a sensor is an error that stops the collection, or is lost."""
    assert math.isnan(add(math.nan, 1))
    assert add(math.inf, 1) == math.inf
    assert math.isnan(add(math.inf, -math.inf))


@pytest.mark.parametrize(
    ("left", "right", "why"),
    [
        (1.7e308, 1.7e308, "too large for a float"),
        (10**400, 0.5, "too large to be added to a float"),
        (Decimal("1e400"), 0.5, "too large to be added to a float"),
        (Decimal("1e20000"), 1, "more than 10000 digits"),
        (Decimal("NaN"), 1, "NaN or infinite"),
        (Decimal("sNaN"), Decimal(1), "NaN or infinite"),
    ],
)
def test_a_sum_that_cannot_be_kept_is_an_error(left: object, right: object, why: str) -> None:
    """Damage: a sum silently becomes infinite, loses digits, or fills the memory."""
    with pytest.raises(NotReducibleError, match=why):
        add(left, right)  # type: ignore[arg-type]


@given(VALUES, VALUES, VALUES)
def test_the_order_is_total(a: object, b: object, c: object) -> None:
    """Damage: a maximum depends on the order of the documents, or raises for two types."""
    one, two, three = sorted([a, b, c], key=order)
    assert order(one) <= order(two) <= order(three)
    assert order(fresh(a)) == order(a)


def test_the_order_of_types() -> None:
    """Damage: null is no longer before numbers, and a missing property no longer before null, as the page says."""
    naive = datetime(2026, 1, 1)  # noqa: DTZ001 - a column without a time zone
    values = [
        *(MISSING, None, False, True, -math.inf, Decimal("-0.5"), 0, 0.5, 2**70, math.inf, math.nan),
        *("", "Z", "a", "\U0001f600", b"", b"\0", date(2026, 1, 1), naive, datetime(2026, 1, 1, tzinfo=UTC)),
        *(time(1), timedelta(1), [], [None], [1], [1, None], {}, {"a": None}, {"a": 1}, {"a": 1, "b": None}, {"b": 0}),
    ]
    keys = [order(value) for value in values]
    assert keys == sorted(keys)
    assert len(set(map(repr, keys))) == len(keys)
    assert order(-0.0) == order(0) == order(Decimal("0.00"))
    with pytest.raises(NotReducibleError, match="a set is no value"):
        order(set())
