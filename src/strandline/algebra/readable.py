"""Rows as Python has them, where Python has no value for a date or a time: that is a text of ISO 8601.

Python's dates are in the years 1 to 9999, and those of Arrow and Spark are not.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Final

import pyarrow as pa

_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
"""After so many years and days the calendar is the same again."""
_EPOCH: Final = dt.date(1970, 1, 1).toordinal() - 1
_IN_A_DAY: Final = {"s": 86_400, "ms": 86_400_000, "us": 86_400_000_000, "ns": 86_400_000_000_000}
"""By unit."""


def readable(rows: pa.Table) -> pa.Table:
    """Return ``rows`` in columns that Python has a value for each cell of; the dates and times of others are texts.

    >>> readable(pa.table({"a": pa.array([-735525, None], pa.int32()).cast(pa.date32())}))["a"].to_pylist()
    ['-0044-03-15', None]
    >>> readable(pa.table({"a": pa.array([[3_663_728], []], pa.list_(pa.int32())).cast(pa.list_(pa.date32()))}))["a"][0]
    <pyarrow.ListScalar: ['12000-12-12']>
    """
    for place, field in enumerate(rows.schema):
        kind, column = _kind(field.type), rows.column(place)
        if kind == field.type:
            continue
        try:
            column.to_pylist()
        except (OverflowError, ValueError):
            cells = pa.array([_cell(cell) for cell in column], kind)
            rows = rows.set_column(place, field.with_type(kind), cells)
    return rows


def _kind(kind: pa.DataType) -> pa.DataType:
    """Return the type of values whose dates and times are texts."""
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return pa.string()
    if pa.types.is_map(kind):
        return pa.map_(_kind(kind.key_type), _kind(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_kind(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_kind(field.type)) for field in kind])
    return kind


def _cell(cell: pa.Scalar) -> Any:
    """Return a value for Python, with texts for dates and times."""
    kind = cell.type
    if not cell.is_valid:
        return None
    if pa.types.is_date(kind):
        return _day(cell.cast(pa.date32()).cast(pa.int32()).as_py())
    if pa.types.is_timestamp(kind):
        day, rest = divmod(cell.value, _IN_A_DAY[kind.unit])
        passed = dt.timedelta(microseconds=rest * _IN_A_DAY["us"] // _IN_A_DAY[kind.unit])
        time = (dt.datetime(1, 1, 1, tzinfo=dt.UTC) + passed).time()
        return f"{_day(day)} {time.isoformat()}{'' if kind.tz is None else 'Z'}"
    if pa.types.is_map(kind):
        return [(_cell(entry["key"]), _cell(entry["value"])) for entry in cell.values]
    if pa.types.is_list(kind):
        return [_cell(value) for value in cell.values]
    if pa.types.is_struct(kind):
        return {name: _cell(value) for name, value in cell.items()}
    return cell.as_py()


def _day(day: int) -> str:
    """Return a day, counted from 1970-01-01.

    >>> _day(-719_529), _day(0), _day(3_663_728)
    ('-0001-12-31', '1970-01-01', '12000-12-12')
    """
    cycles, rest = divmod(day + _EPOCH, _CYCLE_DAYS)
    found = dt.date.fromordinal(rest + 1)
    year = found.year + _CYCLE_YEARS * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04}-{found.month:02}-{found.day:02}"
