"""From Spark's data types to the type texts that a `Schema` carries.

The text is Spark's simple string, except that a struct's field names are quoted wherever they are not plain words:
Spark's own does not quote them, so its reader could not read them back.

See `strandline/algebra/schema.py` (a type is Spark's own simple string).
"""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql.types import ArrayType, CharType, DataType, StringType, StructType, VarcharType

from strandline.algebra.schema import Column, Schema, quote

_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def type_text(kind: DataType) -> str:
    """Return the text of a type; `algebra.types.parse` reads it if a collection can hold it."""
    match kind:
        case ArrayType():
            return f"array<{type_text(kind.elementType)}>"
        case StructType():
            fields = (
                f"{f.name if _WORD.fullmatch(f.name) else quote(f.name)}:{type_text(f.dataType)}" for f in kind.fields
            )
            return f"struct<{','.join(fields)}>"
        case CharType() | VarcharType():
            return kind.simpleString()
        case StringType() if kind.collation != "UTF8_BINARY":
            return f"string collate {kind.collation}"
        case _:
            return kind.simpleString()


def schema_of(struct: StructType) -> Schema:
    """Return the schema of Spark's ``struct``; `DefinitionError` names a column that is there twice."""
    return Schema(tuple(Column(field.name, type_text(field.dataType)) for field in struct.fields))
