"""Spans: from the least to the greatest of some values, as values of the column that is looked up.

Only exact types count, whose values Spark compares as they are: whole numbers and decimals with each other, a date or a
time with its like.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.schema import DIFF, TIME


@dataclass(frozen=True, slots=True)
class Span:
    """Two values of one column, the lesser one first.  Both are in it."""

    low: pa.Scalar
    high: pa.Scalar

    @property
    def ends(self) -> pa.ChunkedArray:
        """The two values."""
        return pa.chunked_array([pa.array([self.low.as_py(), self.high.as_py()], self.low.type)])


def cancels(updates: pa.Table) -> bool:
    """Tell whether the diffs of ``updates`` are 0 in all at each time."""
    sums = updates.group_by(TIME).aggregate([(DIFF, "sum")])[f"{DIFF}_sum"]
    return not pc.any(pc.not_equal(sums, 0)).as_py()


def spanned(values: pa.ChunkedArray, kind: pa.DataType) -> Span | None:
    """Return the span of ``values`` in a column of type ``kind``, no smaller than it is.

    None: there is none, since a value is NULL, there is no value, or the types cannot be compared exactly.
    """
    if values.null_count or not len(values):
        return None
    ends = pc.min_max(values)
    low, high = ends["min"], ends["max"]
    if kind == values.type and (pa.types.is_temporal(kind) or pa.types.is_integer(kind)):
        return Span(low, high)
    if not (_is_exact_number(kind) and _is_exact_number(values.type)):
        return None
    try:
        rounded = (_rounded(low.as_py(), kind, ROUND_FLOOR), _rounded(high.as_py(), kind, ROUND_CEILING))
        return Span(*(pa.scalar(each, kind) for each in rounded))
    except (pa.ArrowInvalid, OverflowError):  # a value that no row can have
        return None


def _is_exact_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_decimal128(kind))


def _rounded(value: Any, kind: pa.DataType, rounding: str) -> Any:
    if pa.types.is_integer(kind):
        return int(Decimal(value).to_integral_value(rounding))
    return Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), rounding, Context(prec=80))
