"""Forms: an answer's columns as Arrow has them, whatever Spark's types and names are.

A collection refuses what cannot be stored, and an answer refuses nothing: two columns may have one name, or none that
could be one.  A column with something inside of which Arrow has no form (an interval of months, a variant, a struct
with a name twice, the elements of an `array()`) is a text, as Spark's `CAST(… AS STRING)` writes it.
"""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name all of Spark's documentation uses
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, NullType, StructField, StructType, VariantType

_PLACE = "c"
"""How the name of a column begins that has its place for a name, while Spark and Arrow know it by name alone."""


def carried(rows: DataFrame) -> DataFrame:
    """Return an answer in columns that Arrow has types for; if some had none, each is named after its place."""
    if all(_has_form(field.dataType) for field in rows.schema):
        return rows
    placed = rows.toDF(*(f"{_PLACE}{place}" for place in range(len(rows.columns))))
    cells = [
        F.col(field.name) if _has_form(field.dataType) else F.col(field.name).cast("string").alias(field.name)
        for field in placed.schema
    ]
    return placed.select(*cells)


def shape(rows: DataFrame) -> pa.Schema:
    """Return the columns of an answer: Spark's names in its order, and the types that Arrow has for them."""
    return named(to_arrow_schema(carried(rows).schema, timezone="UTC"), rows.columns)


def named(carried_as: pa.Schema, names: list[str]) -> pa.Schema:
    """Return the columns that an answer has for its client; ``names``: Spark's.

    >>> named(pa.schema([("c0", pa.int64())]), ["count(1)"])
    count(1): int64
    """
    return pa.schema([field.with_name(name) for name, field in zip(names, carried_as, strict=True)])


def _has_form(kind: DataType) -> bool:
    """Tell whether Arrow has a type for values of this one."""
    match kind:
        case VariantType():  # PySpark makes a struct of Spark's own bytes of it
            return False
        case ArrayType():
            return _has_form_inside(kind.elementType, nullable=kind.containsNull)
        case MapType():
            return _has_form_inside(kind.keyType, nullable=False) and _has_form_inside(
                kind.valueType, nullable=kind.valueContainsNull
            )
        case StructType():
            names = [field.name for field in kind]
            return len(set(names)) == len(names) and all(
                _has_form_inside(field.dataType, nullable=field.nullable) for field in kind
            )
    try:
        to_arrow_schema(StructType([StructField(_PLACE, kind)]), timezone="UTC")
    except PySparkException:
        return False
    return True


def _has_form_inside(kind: DataType, *, nullable: bool) -> bool:
    """Tell the same of a part of a value. What `array()` holds is VOID and never NULL: Arrow has no such type."""
    return (nullable or not isinstance(kind, NullType)) and _has_form(kind)
