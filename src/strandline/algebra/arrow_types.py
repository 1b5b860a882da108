"""The Arrow types that carry the values of columns, wherever rows are outside Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyarrow import types as kinds

from strandline.algebra.schema import Schema
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse
from strandline.errors import DefinitionError

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}

_WIDER: Final[Mapping[pa.DataType, str]] = {
    pa.uint8(): "smallint",
    pa.uint16(): "int",
    pa.uint32(): "bigint",
    pa.uint64(): "decimal(20,0)",
    pa.float16(): "float",
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "binary",
    pa.binary_view(): "binary",
    pa.date64(): "date",
    pa.null(): "string",
}
DECIMAL_DIGITS_MAX: Final = 38


def arrow(kind: Type) -> pa.DataType:
    """Return the Arrow type that carries it.

    >>> arrow(Array(Decimal(10, 2)))
    ListType(list<element: decimal128(10, 2)>)
    """
    match kind:
        case Atom(name):
            return _ARROW[name]
        case Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case Array(element):
            return pa.list_(pa.field("element", arrow(element)))
        case Struct(fields):
            return pa.struct([pa.field(name, arrow(field)) for name, field in fields])


def arrow_schema(columns: Schema) -> pa.Schema:
    """Return the schema that rows of these columns have in Arrow."""
    return pa.schema([(column.name, arrow(parse(column.name, column.type))) for column in columns])


def spark_type(column: str, kind: pa.DataType) -> str:
    """Return the type that a column of a table needs for values of an Arrow type, as Spark writes it.

    >>> spark_type("a", pa.uint8()), spark_type("a", pa.timestamp("ns")), spark_type("a", pa.list_(pa.large_string()))
    ('smallint', 'timestamp_ntz', 'array<string>')
    >>> spark_type("a", pa.struct([("x", pa.decimal128(5, 2)), ("y z", pa.date64())]))
    'struct<`x`:decimal(5,2),`y z`:date>'

    Raises `DefinitionError`: there is no such type.
    """
    name = next((name for name, known in _ARROW.items() if known == kind), None) or _WIDER.get(kind)
    if name is not None:
        return name
    if kinds.is_dictionary(kind):
        return spark_type(column, kind.value_type)
    if kinds.is_timestamp(kind):
        return "timestamp_ntz" if kind.tz is None else "timestamp"
    if kinds.is_decimal(kind) and 0 <= kind.scale <= kind.precision <= DECIMAL_DIGITS_MAX:
        return f"decimal({kind.precision},{kind.scale})"
    if _is_list(kind):
        return f"array<{spark_type(column, kind.value_type)}>"
    if kinds.is_fixed_size_binary(kind):
        return "binary"
    if kinds.is_struct(kind):
        fields = (f"`{field.name.replace('`', '``')}`:{spark_type(column, field.type)}" for field in kind)
        return f"struct<{','.join(fields)}>"
    raise DefinitionError(f"column {column!r} is {kind} in Arrow, which no type of Spark stores")


def arrow_fits(given: pa.DataType, wanted: Type) -> bool:
    """Return whether values of an Arrow type may be stored in a column without a CAST, where each of them fits.

    A number becomes another number, a date a timestamp, and anything but a nested value a text; nothing else changes
    its kind.  So it is where Spark stores (`engine/sql/edits.py`), but a field of a struct is found by its name.

    >>> [arrow_fits(pa.int64(), Atom(name)) for name in ("int", "double", "string", "date", "boolean")]
    [True, True, True, False, False]
    >>> [arrow_fits(pa.string(), Atom(name)) for name in ("string", "int", "date", "binary")]
    [True, False, False, False]
    >>> arrow_fits(pa.list_(pa.int8()), Array(Atom("bigint"))), arrow_fits(pa.list_(pa.string()), Array(Atom("bigint")))
    (True, False)
    """
    if kinds.is_null(given):
        return True
    if kinds.is_dictionary(given) or kinds.is_run_end_encoded(given):
        return arrow_fits(given.value_type, wanted)
    match wanted:
        case Atom("string"):
            return not kinds.is_nested(given)
        case Array(element):
            return _is_list(given) and arrow_fits(given.value_type, element)
        case Struct(fields):
            named = {name.lower(): field for name, field in fields}
            return kinds.is_struct(given) and all(
                field.name.lower() in named and arrow_fits(field.type, named[field.name.lower()]) for field in given
            )
    family = _family(given)
    return bool(family) and family == _family(arrow(wanted))


def _is_list(kind: pa.DataType) -> bool:
    return bool(kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_fixed_size_list(kind))


def _family(kind: pa.DataType) -> str:
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        return "number"
    if kinds.is_date(kind) or kinds.is_timestamp(kind):
        return "date"
    if kinds.is_boolean(kind):
        return "boolean"
    is_bytes = (kinds.is_binary, kinds.is_large_binary, kinds.is_fixed_size_binary, kinds.is_binary_view)
    return "binary" if any(each(kind) for each in is_bytes) else ""
