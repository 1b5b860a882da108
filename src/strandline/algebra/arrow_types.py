"""The Arrow types that carry the values of columns, wherever rows are outside Spark."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pyarrow as pa

from strandline.algebra.types import Array, Atom, Decimal, Struct, Type

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
