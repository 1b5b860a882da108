"""Rows of a table without those for which a condition is not true, in Arrow.

A condition counts only if the column has the type of its values: Spark casts other values before it compares them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import reduce
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from strandline.algebra.conditions import Comparison, Condition

_TYPES: Final[Mapping[type, tuple[Callable[[pa.DataType], bool], pa.DataType]]] = {
    str: (pa.types.is_string, pa.string()),
    int: (pa.types.is_signed_integer, pa.int64()),
    date: (pa.types.is_date32, pa.date32()),
}
"""By the type of a value: which columns have it, and in which type the two are compared."""
_TESTS: Final[Mapping[Comparison, Callable[[Any, Any], Any]]] = {
    Comparison.LESS: pc.less,
    Comparison.AT_MOST: pc.less_equal,
    Comparison.MORE: pc.greater,
    Comparison.AT_LEAST: pc.greater_equal,
    Comparison.STARTS: lambda column, value: pc.starts_with(column, value.as_py()),
    Comparison.ENDS: lambda column, value: pc.ends_with(column, value.as_py()),
    Comparison.HOLDS: lambda column, value: pc.match_substring(column, value.as_py()),
}


def narrowed(table: pa.Table, conditions: Sequence[Condition]) -> pa.Table:
    """Return the rows of ``table`` for which all ``conditions`` are true that can be judged here."""
    found = [mask for each in conditions if (mask := _mask(table[each.column], each)) is not None]
    return table.filter(reduce(pc.and_, found)) if found else table


def _mask(column: pa.ChunkedArray, condition: Condition) -> pa.ChunkedArray | None:
    has, common = _TYPES[type(condition.values[0])]
    if not has(column.type) or any(type(value) is not type(condition.values[0]) for value in condition.values):
        return None
    try:
        values = pa.array(condition.values, common)
    except OverflowError:
        return None
    if condition.comparison is Comparison.IN:
        return pc.is_in(column.cast(common), value_set=values)
    return _TESTS[condition.comparison](column.cast(common), values[0])
