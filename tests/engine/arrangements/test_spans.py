"""The span of a look-up's keys holds each of them, in the type of the column that is looked up."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from strandline.engine.arrangements.cache import BUDGET_SHARE, default_budget
from strandline.engine.arrangements.runs import Span, spanned

WHOLE, SMALL, EXACT = pa.int64(), pa.int16(), pa.decimal128(10, 2)
DAY, MOMENT = pa.date32(), pa.timestamp("us")


@pytest.mark.parametrize(
    ("given", "values", "kind", "span"),
    [
        (WHOLE, [3, 1, 2], WHOLE, (1, 3)),
        (DAY, [dt.date(2026, 1, 2), dt.date(2026, 1, 1)], DAY, (dt.date(2026, 1, 1), dt.date(2026, 1, 2))),
        (EXACT, [Decimal("2.50"), Decimal("-2.50")], WHOLE, (-3, 3)),
        (WHOLE, [1, 3], EXACT, (Decimal("1.00"), Decimal("3.00"))),
        (WHOLE, [1, 300], SMALL, (1, 300)),
        (WHOLE, [1, 2**40], SMALL, None),
        (DAY, [dt.date(2026, 1, 1)], MOMENT, None),
        (pa.float64(), [1.5], WHOLE, None),
        (pa.float64(), [1.5], pa.float64(), None),
        (WHOLE, [1, None], WHOLE, None),
        (WHOLE, [], WHOLE, None),
    ],
)
def test_a_span_is_of_the_type_that_is_looked_up_or_there_is_none(
    given: pa.DataType, values: list[Any], kind: pa.DataType, span: tuple[Any, Any] | None
) -> None:
    """Damage: rows at the edge of a range are not found, or a comparison of two types ends the step."""
    found = spanned(pa.chunked_array([pa.array(values, given)]), kind)
    assert found == (None if span is None else Span(*(pa.scalar(each, kind) for each in span)))


def test_arrangements_take_a_share_of_the_memory() -> None:
    """Damage: arrangements are never thrown away, and the process ends for want of memory."""
    with open("/proc/meminfo") as lines:  # noqa: PTH123 - it has no size
        total = int(next(lines).split()[1]) * 1024
    assert default_budget() == pytest.approx(total / BUDGET_SHARE, rel=0.1)
