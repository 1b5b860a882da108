"""Folds of whole columns, in which the rows of each key become one value; and rows as documents and back.

A group is a run of adjacent rows with one key.  `first`, `last`, `least` and `greatest` choose a row of each group;
`total` adds exactly: integers and decimals are added in limbs of 32 bits, whose sums cannot overflow, and only the
result must fit the type.  Floats are added one after the other, as `schemas.add` does.  There is no Python object per
row.  With ``nulls``, NULL is a value (the least one); otherwise it is a missing property and does not count.

As a document, a row is an object with a property for each column.  A struct or a map is an object, a list is an array,
and a text is JSON if the type or the strategy of its location does not allow a string.  A NULL of a column, or of a
field of a struct, is null if its location may be null; otherwise the property is missing.  A missing property becomes
NULL.  In a row that the endpoint holds, a NULL whose location deletes null is missing too: the deletion left it.

Reference model: `spec`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, NoReturn, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from strandline.materialize.reduce.annotations import Strategy
from strandline.materialize.reduce.locations import Annotated, Location
from strandline.materialize.reduce.schemas import EXACT, MISSING, NotReducibleError, Value, shown

Convert: TypeAlias = Callable[[Any], Value]
FLOAT32_MAX: Final = 3.4028235677973366e38
"""The first number that is rounded to infinity."""


def reader(kind: pa.DataType, location: Location, *, loaded: bool) -> Convert:
    """Return how a value of a column of type ``kind`` becomes a value of a document.

    ``loaded``: the rows are the endpoint's.  The function raises `NotReducibleError` if a text is no JSON.
    """
    convert = _reader_of_values(kind, location, loaded=loaded)
    null = None if _null_is_a_value(location, loaded=loaded) else MISSING
    return lambda value: null if value is None else convert(value)


def _null_is_a_value(location: Location, *, loaded: bool) -> bool:
    return location.admits("null") and not (loaded and location.resolved(None).annotation.delete)


def _reader_of_values(kind: pa.DataType, location: Location, *, loaded: bool) -> Convert:
    if holds_json(kind, location):
        return _parse
    below = location.always()
    if pa.types.is_struct(kind):
        fields = {field.name: reader(field.type, below.property(field.name), loaded=loaded) for field in kind}
        return lambda value: {name: part for name, read in fields.items() if (part := read(value[name])) is not MISSING}
    if pa.types.is_map(kind):
        entry = _nullable(_reader_of_values(kind.item_type, below.property(""), loaded=loaded))
        return lambda value: _object([(name, entry(part)) for name, part in value])
    if _is_list(kind):
        item = _nullable(_reader_of_values(kind.value_type, below.item(0), loaded=loaded))
        return lambda value: [item(part) for part in value]
    return lambda value: value


def _nullable(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _object(entries: Sequence[tuple[Any, Value]]) -> dict[str, Value]:
    found = dict(entries)
    if len(found) < len(entries) or not all(isinstance(name, str) for name in found):
        raise NotReducibleError("a map is an object only if its keys are texts, each there once")
    return found


def holds_json(kind: pa.DataType, location: Location) -> bool:
    """Tell whether the texts of a column are JSON."""
    return (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and not location.admits("string")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _parse(text: str) -> Value:
    def refuse(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number of JSON")

    try:
        return json.loads(text, parse_float=Decimal, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise NotReducibleError(f"{shown(text)} is not JSON ({error})") from error


def writer(kind: pa.DataType, location: Location) -> Convert:
    """Return how a value of a document becomes a value of a column of type ``kind``.

    The function raises `NotReducibleError` if the type cannot hold the value.
    """
    convert = _writer_of_values(kind, location)
    return lambda value: None if value is MISSING or value is None else convert(value)


def _writer_of_values(kind: pa.DataType, location: Location) -> Convert:
    if holds_json(kind, location):
        return render
    below = location.always()
    if pa.types.is_struct(kind):
        fields = {field.name: writer(field.type, below.property(field.name)) for field in kind}
        return lambda value: _struct(value, fields, kind)
    if pa.types.is_map(kind):
        entry = writer(kind.item_type, below.property(""))
        return lambda value: [(name, entry(part)) for name, part in _of(value, dict, kind).items()]
    if _is_list(kind):
        item = writer(kind.value_type, below.item(0))
        return lambda value: [item(part) for part in _of(value, list, kind)]
    return _narrow if pa.types.is_float32(kind) else lambda value: value


def _of(value: Value, wanted: type[Any], kind: pa.DataType) -> Any:
    if not isinstance(value, wanted):
        raise NotReducibleError(f"{shown(value)} is no value of type {kind}")
    return value


def _struct(value: Value, fields: dict[str, Convert], kind: pa.DataType) -> dict[str, Value]:
    others = sorted(_of(value, dict, kind).keys() - fields.keys())
    if others:
        raise NotReducibleError(f"the type {kind} has no field {others[0]!r}")
    return {name: write(value.get(name, MISSING)) for name, write in fields.items()}


def _narrow(value: Value) -> Value:
    if isinstance(value, float) and math.isfinite(value) and abs(value) >= FLOAT32_MAX:
        raise NotReducibleError(f"{value} does not fit {pa.float32()}")
    return value


def render(value: Value) -> str:
    """Return ``value`` as compact JSON; decimals keep their digits.

    >>> render({"a": [Decimal("1.10"), None, True, "é"]})
    '{"a":[1.10,null,true,"é"]}'

    Raises:
        NotReducibleError: JSON has no such value.
    """
    if isinstance(value, dict):
        return "{" + ",".join(f"{render(name)}:{render(part)}" for name, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(render(item) for item in value) + "]"
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise NotReducibleError(f"JSON has no {shown(value)}") from error


def to_array(values: list[Value], kind: pa.DataType) -> pa.Array:
    """Return written values as a column.

    Raises:
        NotReducibleError: a value does not fit the type.
    """
    try:
        return pa.array(values, kind)
    except (pa.ArrowException, OverflowError, ValueError, TypeError) as error:
        raise NotReducibleError(f"{shown(values[0]) if len(values) == 1 else 'a value'} does not fit {kind}") from error


Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_LIMB: Final = 32
_MASK: Final = (1 << _LIMB) - 1
_LAST: Final = np.iinfo(np.int64)
SHORT_ROWS_MAX: Final = 64
"""Up to this many rows per group, floats are added for all groups at once; in longer groups, group by group."""
_ORDERED: Final[tuple[Callable[[pa.DataType], bool], ...]] = (
    pa.types.is_boolean,
    pa.types.is_integer,
    pa.types.is_floating,
    pa.types.is_decimal128,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_date,
    pa.types.is_time,
    pa.types.is_timestamp,
    pa.types.is_duration,
)
"""The types whose values can be compared as columns."""


class DoesNotFitError(Exception):
    """The sum of a group does not fit the column's type."""

    def __init__(self, group: int, why: str) -> None:
        super().__init__(group, why)
        self.group = group
        self.why = why


@dataclass(frozen=True, slots=True)
class Groups:
    """Runs of rows: ``starts`` has the first row of each."""

    starts: Ints
    rows: int

    @property
    def numbers(self) -> Ints:
        """The group of each row."""
        return np.repeat(np.arange(len(self.starts), dtype=np.int64), np.diff(self.starts, append=self.rows))

    @classmethod
    def of(cls, ids: Ints) -> Groups:
        """Return the runs of equal ``ids``."""
        return cls(np.flatnonzero(np.diff(ids, prepend=ids[:1] - 1)).astype(np.int64), len(ids))


@dataclass(frozen=True, slots=True)
class ColumnFold:
    """How the rows of a key become one value of a column."""

    strategy: Strategy
    nulls: bool

    def __call__(self, column: pa.Array, groups: Groups) -> pa.Array:
        """Return one value per group.  Raises `DoesNotFitError`."""
        valid = ~column.is_null().to_numpy(zero_copy_only=False)
        if self.strategy is Strategy.SUM:
            return total(column, valid, groups)
        if self.strategy in {Strategy.FIRST, Strategy.LAST}:
            counts = np.ones_like(valid) if self.nulls else valid
            return _take(column, (first if self.strategy is Strategy.FIRST else last)(counts, groups))
        codes = codes_of(column)
        if self.strategy is Strategy.MAXIMIZE:
            return _take(column, least(np.invert(codes), valid, groups))
        chosen = least(codes, valid, groups)
        if self.nulls:
            chosen[np.bitwise_or.reduceat(~valid, groups.starts)] = groups.rows
        return _take(column, chosen)


def folds(schema: Annotated, columns: pa.Schema) -> list[ColumnFold] | None:
    """Return the folds of rows of ``columns``; None if they must be reduced as documents."""
    root = schema.root
    top = root.always().annotation
    if root.conditional or top.delete or not top.associative:
        return None
    if top.strategy in {Strategy.FIRST, Strategy.LAST}:
        return [ColumnFold(top.strategy, nulls=True) for _ in columns]
    if top.strategy is not Strategy.MERGE:
        return None
    found = [_fold(root.always().property(field.name), field.type) for field in columns]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _fold(location: Location, kind: pa.DataType) -> ColumnFold | None:
    annotation = location.always().annotation
    simple = annotation.associative and not annotation.delete and not annotation.key
    if location.conditional or not simple or holds_json(kind, location):
        return None
    if annotation.strategy is Strategy.SUM:
        summed = pa.types.is_signed_integer(kind) or pa.types.is_decimal128(kind)
        return ColumnFold(Strategy.SUM, nulls=False) if summed or kind in (pa.float32(), pa.float64()) else None
    compared = annotation.strategy in {Strategy.MAXIMIZE, Strategy.MINIMIZE} and any(test(kind) for test in _ORDERED)
    if annotation.strategy in {Strategy.FIRST, Strategy.LAST} or compared:
        return ColumnFold(annotation.strategy, location.admits("null"))
    return None


def first(counts: np.ndarray[Any, Any], groups: Groups) -> Ints:
    """Return the first row of each group that counts; the number of all rows if none does."""
    return np.minimum.reduceat(np.where(counts, np.arange(groups.rows), groups.rows), groups.starts)


def last(counts: np.ndarray[Any, Any], groups: Groups) -> Ints:
    """Return the last row of each group that counts; the number of all rows if none does."""
    found = np.maximum.reduceat(np.where(counts, np.arange(groups.rows), -1), groups.starts)
    return np.where(found < 0, groups.rows, found)


def least(codes: Ints, valid: np.ndarray[Any, Any], groups: Groups) -> Ints:
    """Return the first row of each group whose code is least among the valid ones."""
    best = np.minimum.reduceat(np.where(valid, codes, _LAST.max), groups.starts)
    return first(valid & (codes == best[groups.numbers]), groups)


def _take(column: pa.Array, rows: Ints) -> pa.Array:
    return column.take(pa.array(rows, mask=rows == len(column)))


def codes_of(column: pa.Array) -> Ints:
    """Return a number per value that is ordered as the values are, and equal for equal ones; of NULL any number."""
    kind = column.type
    if pa.types.is_floating(kind):
        numbers = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 becomes 0.0
        bits = numbers.view(np.int64)
        ordered = np.where(bits < 0, bits ^ _LAST.max, bits)
        return np.where(np.isnan(numbers), _LAST.max, ordered)
    if pa.types.is_boolean(kind):
        column = column.cast(pa.int8())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    if pa.types.is_temporal(kind) and not pa.types.is_integer(column.type):
        column = column.cast(pa.int64())
    if pa.types.is_integer(column.type) and column.type != pa.uint64():
        return np.asarray(column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False))
    ranks = pc.rank(column, sort_keys="ascending", tiebreaker="dense")
    return np.asarray(ranks.to_numpy(zero_copy_only=False)).astype(np.int64)


def total(column: pa.Array, valid: np.ndarray[Any, Any], groups: Groups) -> pa.Array:
    """Return the sum of each group; NULL if it has no value.

    Raises:
        DoesNotFitError: a sum does not fit the type of the column.
    """
    kind = column.type
    some = np.logical_or.reduceat(valid, groups.starts)
    if pa.types.is_floating(kind):
        sums = _floats(column, valid, groups, some)
        return pa.array(sums, kind, mask=~some, from_pandas=False)
    if pa.types.is_decimal(kind):
        return _decimals(column, valid, groups, some)
    numbers = column.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    limbs = _carried([np.add.reduceat(part, groups.starts) for part in (numbers & _MASK, numbers >> _LIMB)])
    bound = 1 << (kind.bit_width - 1)
    high, low = limbs[1], limbs[0]
    fits = (high >= -(1 << 31)) & (high < 1 << 31)
    sums = np.where(fits, (high << _LIMB) | low, 0)
    _require(fits & (sums >= -bound) & (sums <= bound - 1), limbs, kind)
    return pa.array(sums, pa.int64(), mask=~some).cast(kind)


def _decimals(column: pa.Array, valid: np.ndarray[Any, Any], groups: Groups, some: np.ndarray[Any, Any]) -> pa.Array:
    kind = column.type
    words = np.frombuffer(column.buffers()[1], "<u4")[4 * column.offset : 4 * (column.offset + len(column))]
    words = np.where(valid[:, None], words.reshape(-1, 4), 0).astype("<u4")
    parts = [words[:, at].astype(np.int64) for at in range(3)]
    parts.append(np.ascontiguousarray(words[:, 3]).view("<i4").astype(np.int64))
    limbs = _carried([np.add.reduceat(part, groups.starts) for part in parts])
    fits = (limbs[3] >= -(1 << 31)) & (limbs[3] < 1 << 31)
    bound = 10**kind.precision
    _require(fits & _less(limbs, bound) & ~_less(limbs, 1 - bound), limbs, kind)
    summed = np.stack([part & _MASK for part in limbs], axis=1).astype("<u4")
    made = pa.Array.from_buffers(kind, len(summed), [None, pa.py_buffer(summed.tobytes())])
    return pc.if_else(pa.array(some), made, pa.scalar(None, kind))


def _carried(limbs: list[Ints]) -> list[Ints]:
    """Return the same numbers with all limbs but the last within 32 bits."""
    found = [limbs[0]]
    for above in limbs[1:]:
        found[-1:] = [found[-1] & _MASK, above + (found[-1] >> _LIMB)]
    return found


def _less(limbs: list[Ints], bound: int) -> np.ndarray[Any, Any]:
    less = np.zeros(len(limbs[0]), bool)
    for at, limb in enumerate(limbs):
        part = bound >> (_LIMB * at)
        part = part if at == len(limbs) - 1 else part & _MASK
        less = (limb < part) | ((limb == part) & less)
    return less


def _require(fits: np.ndarray[Any, Any], limbs: list[Ints], kind: pa.DataType) -> None:
    if not fits.all():
        group = int(np.flatnonzero(~fits)[0])
        exact = sum(int(limb[group]) << (_LIMB * at) for at, limb in enumerate(limbs))
        found = Decimal(exact).scaleb(-kind.scale, EXACT) if pa.types.is_decimal(kind) else exact
        raise DoesNotFitError(group, f"{found} does not fit {kind}")


def _floats(
    column: pa.Array, valid: np.ndarray[Any, Any], groups: Groups, some: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    numbers = column.cast(pa.float64()).to_numpy(zero_copy_only=False)[valid]
    counts = np.add.reduceat(valid.astype(np.int64), groups.starts)[some]
    named = np.flatnonzero(some)
    sums = np.zeros(len(some))
    with np.errstate(over="ignore", invalid="ignore"):
        sums[named] = _left_to_right(numbers, counts, named, column.type)
        if column.type != pa.float32():
            return sums
        wide = np.flatnonzero(np.isfinite(sums) & (np.abs(sums) >= FLOAT32_MAX))
        if len(wide):
            raise DoesNotFitError(int(wide[0]), f"{sums[wide[0]]} does not fit {column.type}")
        return sums.astype(np.float32)


def _left_to_right(numbers: np.ndarray[Any, Any], counts: Ints, named: Ints, kind: pa.DataType) -> np.ndarray[Any, Any]:
    """Return the sums of runs of ``counts`` numbers, each one or more; ``named`` are their groups."""
    begins = np.cumsum(counts) - counts
    sums: np.ndarray[Any, Any] = numbers[begins]
    short = counts <= SHORT_ROWS_MAX
    for at in range(1, min(SHORT_ROWS_MAX, int(counts.max(initial=0)))):
        which = np.flatnonzero(short & (counts > at))
        before, added = sums[which], numbers[begins[which] + at]
        sums[which] = before + added
        _require_finite(before, added, sums[which], named[which], kind)
    for run in np.flatnonzero(~short).tolist():
        added = numbers[begins[run] : begins[run] + counts[run]]
        running = np.add.accumulate(added)  # one after the other; a reduction would add in another order
        _require_finite(running[:-1], added[1:], running[1:], np.full(len(added) - 1, named[run]), kind)
        sums[run] = running[-1]
    return sums


def _require_finite(before: Any, added: Any, after: Any, groups: Any, kind: pa.DataType) -> None:
    wrong = np.flatnonzero(np.isinf(after) & np.isfinite(before) & np.isfinite(added))
    if len(wrong):
        raise DoesNotFitError(
            int(groups[wrong[0]]), f"the sum of {before[wrong[0]]} and {added[wrong[0]]} does not fit {kind}"
        )
