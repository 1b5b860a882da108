"""Filters that Spark pushes down: those whose meaning is the same here, on whole numbers and text.

Spark evaluates every filter again, so a filter that is not understood costs time and changes no answer.  What is
understood never drops a row that Spark would keep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyspark.sql import datasource as spark

_COMPARE: Final = {
    spark.EqualTo: "equal",
    spark.EqualNullSafe: "equal",
    spark.GreaterThan: "greater",
    spark.GreaterThanOrEqual: "greater_equal",
    spark.LessThan: "less",
    spark.LessThanOrEqual: "less_equal",
}


@dataclass(frozen=True, slots=True)
class Condition:
    """What a column's value must be: ``how`` (a comparison of Arrow's, ``in`` or ``null``) with ``values``."""

    column: str
    how: str
    values: tuple[int | str, ...] = ()

    def mask(self, table: pa.Table) -> pa.ChunkedArray:
        """Return for each row whether it meets the condition; all do if the values do not fit the column's type."""
        column = table[self.column]
        try:
            wanted = pa.array(self.values, column.type)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            return pa.chunked_array([pa.repeat(pa.scalar(True), table.num_rows)])
        match self.how:
            case "null":
                return pc.is_null(column)
            case "in":
                return pc.is_in(column, wanted)
            case how:
                return pc.fill_null(pc.call_function(how, [column, wanted[0]]), fill_value=False)

    def may_be_in(self, group: pq.RowGroupMetaData) -> bool:
        """Tell whether a row group may have a row that meets the condition, by its statistics."""
        known = statistics(group, self.column)
        if known is None or self.how == "null" or not self.values or type(known.min) is not type(self.values[0]):
            return True
        least: Any = known.min
        greatest: Any = known.max
        match self.how:
            case "greater" | "greater_equal":
                return bool(greatest >= self.values[0])
            case "less" | "less_equal":
                return bool(least <= self.values[0])
            case _:
                return any(least <= value <= greatest for value in self.values)


def conditions(filters: Iterable[spark.Filter], kinds: pa.Schema) -> tuple[Condition, ...]:
    """Return the conditions that are understood, on the columns of ``kinds``."""
    return tuple(found for each in filters if (found := _condition(each, kinds)) is not None)


def statistics(group: pq.RowGroupMetaData, column: str) -> pq.Statistics | None:
    """Return what a row group says of a top-level column; None if it says nothing, or it may not be whole."""
    at = next((n for n in range(group.num_columns) if group.column(n).path_in_schema.lower() == column.lower()), None)
    found = None if at is None else group.column(at).statistics
    return found if found is not None and found.has_min_max else None


def _condition(asked: spark.Filter, kinds: pa.Schema) -> Condition | None:
    match asked:
        case spark.IsNull((name,)) if name in kinds.names:
            return Condition(name, "null")
        case spark.In((name,), values):
            return _of(name, "in", tuple(values), kinds)
        case spark.EqualNullSafe((name,), None) if name in kinds.names:
            return Condition(name, "null")
        case _ if type(asked) in _COMPARE:
            path, value = asked.attribute, asked.value  # type: ignore[attr-defined]
            return _of(path[0], _COMPARE[type(asked)], (value,), kinds) if len(path) == 1 else None
    return None


def _of(name: str, how: str, values: Sequence[Any], kinds: pa.Schema) -> Condition | None:
    if name not in kinds.names or not values:
        return None
    kind = kinds.field(name).type
    fits = (pa.types.is_integer(kind) and all(type(value) is int for value in values)) or (
        pa.types.is_string(kind) and all(type(value) is str for value in values)
    )
    return Condition(name, how, tuple(values)) if fits else None
