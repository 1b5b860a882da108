"""The columns of an Iceberg table: Spark's simple strings and Iceberg's types.

Iceberg has no integer of fewer than 32 bits: `tinyint` and `smallint` are stored as `int`.

Source: the Iceberg table specification, "Primitive Types".
"""

from __future__ import annotations

from itertools import count
from typing import Final

from pyiceberg import types as ice
from pyiceberg.schema import Schema

from strandline.algebra.schema import quote
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse
from strandline.materialize.drivers.staged.shape import Shape, text

_ATOMS: Final = {
    "boolean": ice.BooleanType(),
    "int": ice.IntegerType(),
    "bigint": ice.LongType(),
    "float": ice.FloatType(),
    "double": ice.DoubleType(),
    "string": ice.StringType(),
    "binary": ice.BinaryType(),
    "date": ice.DateType(),
    "timestamp": ice.TimestamptzType(),
    "timestamp_ntz": ice.TimestampType(),
}
_NAMES: Final = {str(kind): name for name, kind in _ATOMS.items()}
_NARROW: Final = ("tinyint", "smallint")


def widened(kind: Type) -> Type:
    """Return the type as Iceberg has it.

    >>> text(widened(Array(Struct((("a", Atom("tinyint")),)))))
    'array<struct<`a`:int>>'
    """
    match kind:
        case Atom(name):
            return Atom("int") if name in _NARROW else kind
        case Array(element):
            return Array(widened(element))
        case Struct(fields):
            return Struct(tuple((name, widened(field)) for name, field in fields))
        case _:
            return kind


def stored(shape: Shape) -> Shape:
    """Return columns as an Iceberg table has them."""
    return tuple((name, text(widened(parse(name, kind)))) for name, kind in shape)


def schema_of(shape: Shape) -> Schema:
    """Return the schema of a table with these columns, all of which may be NULL; its ids are numbers in order.

    >>> shape_of(schema_of((("a", "array<struct<`b`:decimal(9,2)>>"), ("c", "timestamp_ntz"))))
    (('a', 'array<struct<`b`:decimal(9,2)>>'), ('c', 'timestamp_ntz'))
    """
    ids = count(1)
    return Schema(*(ice.NestedField(next(ids), name, type_of(parse(name, kind), ids)) for name, kind in shape))


def type_of(kind: Type, ids: count[int]) -> ice.IcebergType:
    """Return Iceberg's type, which takes ids of its fields from ``ids``."""
    match kind:
        case Atom(name):
            return _ATOMS[name]
        case Decimal(precision, scale):
            return ice.DecimalType(precision, scale)
        case Array(element):
            return ice.ListType(next(ids), type_of(element, ids), element_required=False)
        case Struct(fields):
            return ice.StructType(*(ice.NestedField(next(ids), name, type_of(field, ids)) for name, field in fields))


def shape_of(schema: Schema) -> Shape:
    """Return the columns in a schema."""
    return tuple(
        (field.name, _text(field.field_type) + (" NOT NULL" if field.required else "")) for field in schema.fields
    )


def _text(kind: ice.IcebergType) -> str:
    match kind:
        case ice.DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case ice.ListType():
            return f"array<{_text(kind.element_type)}>"
        case ice.StructType():
            return f"struct<{','.join(f'{quote(each.name)}:{_text(each.field_type)}' for each in kind.fields)}>"
        case _:
            return _NAMES.get(str(kind), str(kind))
