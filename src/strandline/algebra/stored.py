"""What a stored column may be read as, by the Arrow type of its values.

Reading asks `fit` whether a declared type holds a stored one, and discovery proposes `type_of`, which always fits.  So
no proposal is refused when it is run.  `converted` (`algebra/stored_values.py`) makes the values.  Files, Delta and
Iceberg use these three.

A type holds another one if each of its values is a value here: a smaller integer, float as double, a decimal with fewer
digits on both sides of the point.  Types that a collection lacks have one form each:

| stored | read as |
| --- | --- |
| null (a column without any value) | every type |
| unsigned integer | a signed one that is wider; of the same width, if the value fits |
| half float | `float`, `double` |
| nanoseconds | `timestamp`, `timestamp_ntz`, if the value is whole microseconds |
| time of day, UUID | `string`: the text that ISO 8601 and RFC 9562 give it |
| duration | `bigint`: its number of units |
| map | an array of structs of two fields, in the order of the keys |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

import pyarrow as pa

from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import Schema, quote
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse

BITS: Final = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}
_SIGNED: Final = {bits: name for name, bits in BITS.items()}
_UNSIGNED: Final = {8: "smallint", 16: "int", 32: "bigint", 64: "decimal(20,0)"}
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
"""How many digits a signed integer of so many bits has at most."""
_UNSIGNED_DIGITS: Final = _DIGITS | {64: 20}
_DOUBLE_BITS: Final = 53
_OTHERS: Final = ("boolean", "string", "binary", "float", "double", "date")
"""The atoms that are no integer and no timestamp; of two that hold a type, the first is its own."""
_DECIMAL_DIGITS_MAX: Final = 38


class Fit(IntEnum):
    """How much of a stored type a declared one holds."""

    NEVER = 0
    BY_VALUE = 1
    """Some of its values."""
    ALWAYS = 2


def plain(stored: pa.DataType) -> pa.DataType:
    """Return the type of the values, however they are laid out: without dictionaries, views and large offsets.

    >>> plain(pa.dictionary(pa.int8(), pa.large_string())), plain(pa.list_(pa.string_view(), 2))
    (DataType(string), ListType(list<item: string>))
    """
    match stored:
        case pa.UuidType():
            return stored
        case pa.BaseExtensionType():
            return plain(stored.storage_type)
        case pa.DictionaryType():
            return plain(stored.value_type)
        case pa.MapType():
            return pa.map_(plain(stored.key_type), plain(stored.item_type))
        case pa.StructType():
            return pa.struct([field.with_type(plain(field.type)) for field in fields_of(stored)])
    if _is_list(stored):
        return pa.list_(plain(stored.value_type))
    if pa.types.is_large_string(stored) or pa.types.is_string_view(stored):
        return pa.string()
    if pa.types.is_large_binary(stored) or pa.types.is_binary_view(stored) or pa.types.is_fixed_size_binary(stored):
        return pa.binary()
    return pa.date32() if pa.types.is_date64(stored) else stored


def fit(kind: Type, stored: pa.DataType) -> Fit:
    """Tell how much of ``stored`` a column of ``kind`` holds.

    >>> [fit(kind, pa.int32()).name for kind in (Decimal(12, 2), Decimal(11, 2), Atom("int"), Atom("smallint"))]
    ['ALWAYS', 'NEVER', 'ALWAYS', 'NEVER']
    >>> [fit(Atom(name), pa.uint64()).name for name in ("bigint", "int")], fit(Atom("date"), pa.null()).name
    (['BY_VALUE', 'NEVER'], 'ALWAYS')
    """
    return _fit(kind, plain(stored))


def _fit(kind: Type, stored: pa.DataType) -> Fit:
    if pa.types.is_null(stored):
        return Fit.ALWAYS
    match kind:
        case Array(Struct(((_, key), (_, value)))) if pa.types.is_map(stored):
            ordered = Fit.ALWAYS if isinstance(key, Atom | Decimal) else Fit.NEVER
            return min(ordered, _fit(key, stored.key_type), _fit(value, stored.item_type))
        case Array(element):
            return _fit(element, stored.value_type) if pa.types.is_list(stored) else Fit.NEVER
        case Struct(fields):
            there = fields_of(stored) if pa.types.is_struct(stored) else []
            if [name for name, _ in fields] != [each.name for each in there]:
                return Fit.NEVER
            return min(_fit(inner, each.type) for (_, inner), each in zip(fields, there, strict=True))
        case Decimal(precision, scale):
            return Fit.ALWAYS if _holds(precision, scale, stored) else Fit.NEVER
        case Atom("timestamp" | "timestamp_ntz" as name):
            if not pa.types.is_timestamp(stored) or (stored.tz is None) == (name == "timestamp"):
                return Fit.NEVER
            return Fit.BY_VALUE if stored.unit == "ns" else Fit.ALWAYS
        case Atom(name) if name in BITS:
            return _fit_integer(BITS[name], stored)
        case Atom(name):
            return Fit.ALWAYS if _is_one(name, stored) else Fit.NEVER


def _fit_integer(bits: int, stored: pa.DataType) -> Fit:
    if pa.types.is_duration(stored):
        return Fit.ALWAYS if bits == stored.bit_width else Fit.NEVER
    if not pa.types.is_integer(stored) or stored.bit_width > bits:
        return Fit.NEVER
    wider = pa.types.is_signed_integer(stored) or stored.bit_width < bits
    return Fit.ALWAYS if wider else Fit.BY_VALUE


def _is_one(name: str, stored: pa.DataType) -> bool:
    """Tell whether each value of ``stored`` is a value of the atom ``name``, which is no integer and no timestamp."""
    match name:
        case "string":
            return bool(pa.types.is_string(stored) or pa.types.is_time(stored) or isinstance(stored, pa.UuidType))
        case "binary":
            return bool(pa.types.is_binary(stored) or isinstance(stored, pa.UuidType))
        case "float":
            return bool(pa.types.is_floating(stored) and stored.bit_width <= pa.float32().bit_width)
        case "double":
            exact = pa.types.is_integer(stored) and stored.bit_width < _DOUBLE_BITS
            return bool(exact or pa.types.is_floating(stored))
        case "boolean":
            return bool(pa.types.is_boolean(stored))
        case _:
            return bool(pa.types.is_date32(stored))


def _holds(precision: int, scale: int, stored: pa.DataType) -> bool:
    if pa.types.is_integer(stored):
        digits = _DIGITS if pa.types.is_signed_integer(stored) else _UNSIGNED_DIGITS
        return precision - scale >= digits[stored.bit_width]
    return bool(
        pa.types.is_decimal(stored) and stored.scale <= scale and stored.precision - stored.scale <= precision - scale
    )


def located(schema: Schema, there: pa.Schema, least: Fit = Fit.ALWAYS) -> dict[str, str]:
    """Return for each declared column the name that it has ``there``, found without case.

    ``least``: how much of its stored type a column must hold.  Raises `ValueError` saying which column is not there, is
    there twice, or has a type that does not fit.

    >>> from strandline.algebra.schema import Column
    >>> schema = Schema((Column("ID", "bigint"),))
    >>> located(schema, pa.schema([("id", pa.int32()), ("more", pa.string())]))
    {'ID': 'id'}
    >>> located(schema, pa.schema([("id", pa.string())]))
    Traceback (most recent call last):
        ...
    ValueError: column `ID` is string there, which bigint does not hold
    """
    if wrong := schema.not_once_in(there.names):
        raise ValueError(f"it has {wrong}")
    known = {field.name.lower(): field for field in there}
    for column in schema:
        field = known[column.name.lower()]
        if fit(parse(column.name, column.type), field.type) < least:
            raise ValueError(f"column `{column.name}` is {field.type} there, which {column.type} does not hold")
    return {name: known[name.lower()].name for name in schema.names}


def same(kind: Type, stored: pa.DataType) -> bool:
    """Tell whether ``stored`` is ``kind``'s own form, so that whatever reads one reads the other.

    >>> same(Atom("bigint"), pa.int64()), same(Atom("bigint"), pa.int32()), same(Atom("string"), pa.time64("us"))
    (True, False, False)
    """
    return _same(kind, plain(stored))


def _same(kind: Type, stored: pa.DataType) -> bool:
    match kind:
        case Array(element):
            return bool(pa.types.is_list(stored)) and _same(element, stored.value_type)
        case Struct(fields):
            return (
                _fit(kind, stored) is Fit.ALWAYS
                and bool(pa.types.is_struct(stored))
                and all(_same(inner, stored.field(n).type) for n, (_, inner) in enumerate(fields))
            )
        case Atom("timestamp"):
            return bool(pa.types.is_timestamp(stored)) and stored.unit == "us" and stored.tz is not None
        case _:
            return bool(stored == arrow(kind))


def type_of(stored: pa.DataType) -> str | None:
    """Return the text of the type to read ``stored`` as, or None: no type holds it.

    >>> type_of(pa.list_(pa.struct([("a b", pa.decimal128(10, 2))])))
    'array<struct<`a b`:decimal(10,2)>>'
    >>> [type_of(kind) for kind in (pa.uint64(), pa.timestamp("ns"), pa.null(), pa.month_day_nano_interval())]
    ['decimal(20,0)', 'timestamp_ntz', 'string', None]
    """
    return _type_of(plain(stored))


def _type_of(stored: pa.DataType) -> str | None:
    if pa.types.is_map(stored):
        key, value = _type_of(stored.key_type), _type_of(stored.item_type)
        plain_key = not pa.types.is_nested(stored.key_type)
        return f"array<struct<key:{key},value:{value}>>" if plain_key and key and value else None
    if pa.types.is_list(stored):
        element = _type_of(stored.value_type)
        return element and f"array<{element}>"
    if pa.types.is_struct(stored):
        return struct_text([(each.name, _type_of(each.type)) for each in fields_of(stored)])
    if pa.types.is_integer(stored):
        return (_SIGNED if pa.types.is_signed_integer(stored) else _UNSIGNED)[stored.bit_width]
    if pa.types.is_decimal(stored):
        return f"decimal({stored.precision},{stored.scale})" if stored.precision <= _DECIMAL_DIGITS_MAX else None
    if pa.types.is_timestamp(stored):
        return "timestamp_ntz" if stored.tz is None else "timestamp"
    if pa.types.is_duration(stored):
        return "bigint"
    if pa.types.is_null(stored):
        return "string"
    return next((name for name in _OTHERS if _is_one(name, stored)), None)


def type_of_all(stored: Sequence[pa.DataType]) -> str | None:
    """Return the text of the narrowest type that holds all of ``stored``, or None: no type does.

    >>> type_of_all([pa.int32(), pa.int64()]), type_of_all([pa.null(), pa.int64()])
    ('bigint', 'bigint')
    >>> type_of_all([pa.int32(), pa.decimal128(4, 2)]), type_of_all([pa.float32(), pa.int16()])
    ('decimal(12,2)', 'double')
    >>> type_of_all([pa.int64(), pa.float64()]) is None
    True
    """
    known = [each for each in stored if not pa.types.is_null(each)] or [pa.null()]
    own = [kind for each in known if (kind := type_of(each))]
    if len(own) < len(known):
        return None
    parsed = {kind: parse("", kind) for kind in own}
    least = [fit(parsed[kind], each) for kind, each in zip(own, known, strict=True)]
    candidates = parsed | {kind: parse("", kind) for kind in (*_decimal_of(parsed.values()), "double")}
    for kind, each in candidates.items():
        if all(fit(each, there) >= needed for there, needed in zip(known, least, strict=True)):
            return kind
    return None


def _decimal_of(kinds: Iterable[Type]) -> Sequence[str]:
    """Return the decimal with the digits of numbers of all ``kinds``, if there is one."""
    digits = []
    for kind in kinds:
        match kind:
            case Decimal(precision, scale):
                digits.append((precision - scale, scale))
            case Atom(name) if name in BITS:
                digits.append((_DIGITS[BITS[name]], 0))
            case _:
                return []
    whole, scale = (max(each) for each in zip(*digits, strict=True))
    return [f"decimal({whole + scale},{scale})"] if whole + scale <= _DECIMAL_DIGITS_MAX else []


def struct_text(fields: Sequence[tuple[str, str | None]]) -> str | None:
    """Return the text of a struct; None if a field has no type, or no collection can hold such fields.

    >>> struct_text([("a", "int"), ("b c", "date")]), struct_text([("a", "int"), ("A", "int")]), struct_text([])
    ('struct<`a`:int,`b c`:date>', None, None)
    """
    names = {name.lower() for name, _ in fields}
    if not fields or len(names) < len(fields) or "" in names or any(kind is None for _, kind in fields):
        return None
    return f"struct<{','.join(f'{quote(name)}:{kind}' for name, kind in fields)}>"


def _is_list(stored: pa.DataType) -> bool:
    return bool(
        pa.types.is_list(stored)
        or pa.types.is_large_list(stored)
        or pa.types.is_fixed_size_list(stored)
        or pa.types.is_list_view(stored)
        or pa.types.is_large_list_view(stored)
    )


def fields_of(stored: pa.StructType) -> list[pa.Field]:
    """Return the fields of a struct."""
    return [stored.field(n) for n in range(stored.num_fields)]
