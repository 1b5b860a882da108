"""Rows as documents, and documents as rows.

A column is a property.  A struct or a map is an object, a list an array, and a text is JSON if its location cannot be a
string: by its ``type``, or by its strategy.

A NULL of a column, or of a field of a struct, is null if its location may be null; otherwise the property is missing.
A missing property is NULL.  In a row that the endpoint holds, a NULL whose location deletes null is missing too: the
deletion left it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final, NoReturn, TypeAlias

import pyarrow as pa

from strandline.materialize.reduce.locations import Location
from strandline.materialize.reduce.values import MISSING, NotReducibleError, Value, shown

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
