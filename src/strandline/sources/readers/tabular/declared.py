"""Declared columns among those that an upstream table has, as Arrow names their types.

A column is found by its name, without case.  Its type there must be the declared one, or one whose every value the
declared one holds as it is: a smaller integer, float as double, a decimal with fewer digits on both sides of the point.
Columns that are not declared are not looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.schema import Schema
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type

_EXACT: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "date": pa.date32(),
    "timestamp_ntz": pa.timestamp("us"),
}
_BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
"""How many digits an integer of so many bits has at most."""
SHOWN_MAX: Final = 20


def located(schema: Schema, there: pa.Schema) -> dict[str, str]:
    """Return for each declared column the name that the table has it under.

    Raises `ValueError` saying which column the table lacks, or has with a type that does not fit.

    >>> from strandline.algebra.schema import Column
    >>> schema = Schema((Column("ID", "bigint"),))
    >>> located(schema, pa.schema([("id", pa.int32()), ("more", pa.string())]))
    {'ID': 'id'}
    >>> located(schema, pa.schema([("id", pa.string())]))
    Traceback (most recent call last):
        ...
    ValueError: column `ID` is string there, which bigint does not hold
    """
    known = {field.name.lower(): field for field in there}
    found = {}
    for name, kind in types.columns(schema):
        field = known.get(name.lower())
        if field is None:
            names = [each.name for each in there]
            more = f" and {len(names) - SHOWN_MAX} more" if len(names) > SHOWN_MAX else ""
            raise ValueError(f"there is no column `{name}`, only {', '.join(names[:SHOWN_MAX])}{more}")
        if not fits(kind, field.type):
            (declared,) = (column.type for column in schema if column.name == name)
            raise ValueError(f"column `{name}` is {field.type} there, which {declared} does not hold")
        found[name] = field.name
    return found


def fits(kind: Type, stored: pa.DataType) -> bool:
    """Tell whether every value of ``stored`` is a value of ``kind``.

    >>> fits(Decimal(12, 2), pa.int32()), fits(Decimal(11, 2), pa.int32()), fits(Atom("int"), pa.int64())
    (True, False, False)
    """
    match kind:
        case Atom("string"):
            return bool(pa.types.is_string(stored) or pa.types.is_large_string(stored) or stored == pa.string_view())
        case Atom("binary"):
            return bool(
                pa.types.is_binary(stored)
                or pa.types.is_large_binary(stored)
                or pa.types.is_fixed_size_binary(stored)
                or stored == pa.binary_view()
            )
        case Atom("timestamp"):
            return bool(pa.types.is_timestamp(stored) and stored.unit == "us" and stored.tz is not None)
        case Atom("float"):
            return bool(pa.types.is_float32(stored))
        case Atom("double"):
            exact = pa.types.is_integer(stored) and stored.bit_width < _BITS["bigint"]
            return bool(pa.types.is_float32(stored) or pa.types.is_float64(stored) or exact)
        case Atom(name) if name in _BITS:
            return bool(pa.types.is_signed_integer(stored) and stored.bit_width <= _BITS[name])
        case Atom(name):
            return bool(stored == _EXACT.get(name))
        case Decimal(precision, scale):
            return _holds(precision, scale, stored)
        case Array(element):
            lists = pa.types.is_list(stored) or pa.types.is_large_list(stored)
            return bool(lists) and fits(element, stored.value_type)
        case Struct(fields):
            if not pa.types.is_struct(stored):
                return False
            there = [stored.field(n) for n in range(stored.num_fields)]
            return [name for name, _ in fields] == [each.name for each in there] and all(
                fits(inner, each.type) for (_, inner), each in zip(fields, there, strict=True)
            )


def _holds(precision: int, scale: int, stored: pa.DataType) -> bool:
    if pa.types.is_signed_integer(stored):
        return precision - scale >= _DIGITS[stored.bit_width]
    return bool(
        pa.types.is_decimal(stored) and stored.scale <= scale and stored.precision - stored.scale <= precision - scale
    )


def same(kind: Type, stored: pa.DataType) -> bool:
    """Tell whether ``stored`` is ``kind``'s own form, so that whatever reads one reads the other.

    >>> same(Atom("bigint"), pa.int64()), same(Atom("bigint"), pa.int32()), fits(Atom("bigint"), pa.int32())
    (True, False, True)
    """
    match kind:
        case Atom(name) if name in _BITS:
            return fits(kind, stored) and stored.bit_width == _BITS[name]
        case Atom("double"):
            return bool(pa.types.is_float64(stored))
        case Decimal(precision, scale):
            return bool(pa.types.is_decimal128(stored) and (stored.precision, stored.scale) == (precision, scale))
        case Array(element):
            return fits(kind, stored) and same(element, stored.value_type)
        case Struct(fields):
            return fits(kind, stored) and all(same(inner, stored.field(n).type) for n, (_, inner) in enumerate(fields))
        case _:
            return fits(kind, stored)
