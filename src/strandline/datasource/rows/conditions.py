"""Conditions on the rows of a read: evaluated exactly, and by the statistics of row groups before they are read.

A row is read where its condition is true; where it is false or NULL the row is left out.  Values compare as in Spark:
NaN equals NaN and is greater than all other numbers.  Nothing here evaluates a condition with the help of Spark, so
each of them compares a column with values of the column's own kind (`where` refuses all others).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from functools import reduce
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

Value: TypeAlias = bool | int | float | Decimal | str | date | datetime


class Comparison(Enum):
    """How a column's value compares with another one; the name is that of Arrow's function."""

    EQUAL = "equal"
    OTHER = "not_equal"
    LESS = "less"
    AT_MOST = "less_equal"
    MORE = "greater"
    AT_LEAST = "greater_equal"


@dataclass(frozen=True, slots=True)
class Compared:
    """The value of ``column`` compares so with ``value``; NULL of NULL."""

    column: str
    how: Comparison
    value: Value


@dataclass(frozen=True, slots=True)
class Among:
    """The value of ``column`` is one of ``values``, or (``wanted`` false) none of them; NULL of NULL."""

    column: str
    values: tuple[Value, ...]
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Missing:
    """The value of ``column`` is NULL, or (``wanted`` false) is not."""

    column: str
    wanted: bool = True


@dataclass(frozen=True, slots=True)
class Every:
    """All of ``parts`` are true."""

    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """One of ``parts`` is true."""

    parts: tuple[Condition, ...]


Condition: TypeAlias = Compared | Among | Missing | Every | Some

_OPPOSITE: Final = {
    Comparison.EQUAL: Comparison.OTHER,
    Comparison.LESS: Comparison.AT_LEAST,
    Comparison.AT_MOST: Comparison.MORE,
}
_OPPOSITES: Final = _OPPOSITE | {other: one for one, other in _OPPOSITE.items()}
_UPWARD: Final = (Comparison.MORE, Comparison.AT_LEAST)


def negated(condition: Condition) -> Condition:
    """Return the condition that is true where ``condition`` is false, and NULL where it is NULL.

    >>> negated(Every((Compared("a", Comparison.LESS, 3), Missing("b"))))  # doctest: +NORMALIZE_WHITESPACE
    Some(parts=(Compared(column='a', how=<Comparison.AT_LEAST: 'greater_equal'>, value=3),
                Missing(column='b', wanted=False)))
    """
    match condition:
        case Compared(column, how, value):
            return Compared(column, _OPPOSITES[how], value)
        case Among(column, values, wanted):
            return Among(column, values, not wanted)
        case Missing(column, wanted):
            return Missing(column, not wanted)
        case Every(parts):
            return Some(tuple(map(negated, parts)))
        case Some(parts):
            return Every(tuple(map(negated, parts)))


def columns(condition: Condition) -> Iterator[str]:
    """Yield the columns that ``condition`` reads."""
    match condition:
        case Compared(column) | Among(column) | Missing(column):
            yield column
        case Every(parts) | Some(parts):
            for part in parts:
                yield from columns(part)


def meeting(table: pa.Table, condition: Condition) -> pa.Table:
    """Return the rows of ``table`` for which ``condition`` is true."""
    return table.filter(_mask(table, condition))


def _mask(table: pa.Table, condition: Condition) -> pa.ChunkedArray:
    """Return for each row whether it meets the condition: true, false or NULL."""
    match condition:
        case Compared(name, how, value):
            column = _comparable(table[name])
            found = pc.call_function(how.value, [column, pa.scalar(value, column.type)])
            if how in _UPWARD and pa.types.is_floating(column.type):
                found = pc.or_kleene(found, pc.is_nan(column))
            return found
        case Among(name, values, wanted):
            column = _comparable(table[name])
            inside = pc.is_in(column, pa.array(values, column.type))
            found = inside if wanted else pc.invert(inside)
            return pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), found)
        case Missing(name, wanted):
            return pc.is_null(table[name]) if wanted else pc.is_valid(table[name])
        case Every(parts):
            return reduce(pc.and_kleene, [_mask(table, part) for part in parts])
        case Some(parts):
            return reduce(pc.or_kleene, [_mask(table, part) for part in parts])


def _comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return numbers as wide as Spark compares them: a FLOAT and a number that is written compare as DOUBLEs."""
    return column.cast(pa.float64()) if pa.types.is_floating(column.type) else column


def may_be_in(file: pq.FileMetaData, group: int, condition: Condition) -> bool:
    """Tell whether a row group may have a row that meets ``condition``, by its statistics."""
    match condition:
        case Compared(column, how, value):
            return _reach(file, group, column, how, value)
        case Among(column, values, wanted):
            return not wanted or any(_reach(file, group, column, Comparison.EQUAL, value) for value in values)
        case Missing():
            return True
        case Every(parts):
            return all(may_be_in(file, group, part) for part in parts)
        case Some(parts):
            return any(may_be_in(file, group, part) for part in parts)


@dataclass(frozen=True, slots=True)
class Range:
    """Between which values, both among them, those of a row group are, and whether some may be NULL.

    A NaN may be there beside them: no statistics count it.
    """

    least: Any
    greatest: Any
    nulls: bool


def range_of(file: pq.FileMetaData, group: int, column: str) -> Range | None:
    """Return what a row group says of a top-level column; None if it says nothing, or it may not be whole.

    Trap: the leaf of a struct ``a`` with a field ``b`` has the path of a column that is called ``a.b``.
    """
    leaves = (file.schema.column(n) for n in range(file.num_columns))
    tops = (n for n, leaf in enumerate(leaves) if leaf.name == leaf.path and leaf.name.lower() == column.lower())
    at = next(tops, None)
    found = None if at is None else file.row_group(group).column(at).statistics
    if found is None or not found.has_min_max:
        return None
    try:
        return Range(found.min, found.max, not found.has_null_count or bool(found.null_count))
    except (ValueError, OverflowError):  # a day or a time that Python has no value for
        return None


_REACHES: Final[dict[Comparison, Callable[[Range, Any], bool]]] = {
    Comparison.EQUAL: lambda known, value: known.least <= value <= known.greatest,
    Comparison.LESS: lambda known, value: known.least < value,
    Comparison.AT_MOST: lambda known, value: known.least <= value,
    Comparison.MORE: lambda known, value: known.greatest > value,
    Comparison.AT_LEAST: lambda known, value: known.greatest >= value,
    Comparison.OTHER: lambda *_: True,
}


def _reach(file: pq.FileMetaData, group: int, column: str, how: Comparison, value: Value) -> bool:
    known = range_of(file, group, column)
    if known is None or type(known.least) is not type(value):
        return True
    if isinstance(value, float) and how in _UPWARD:  # a NaN is greater
        return True
    return _REACHES[how](known, value)
