"""Spark's types as DuckDB's.

Spark is the authority on types and returns them as simple strings (``array<struct<a:int>>``); this module maps each to
the DuckDB type that holds all its values, or refuses it by name.

Source: Spark SQL "Data Types" (simple strings); DuckDB "Data Types".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from strandline.algebra.schema import decimal_digits
from strandline.errors import DefinitionError
from strandline.materialize.drivers.sql import Sql, compose, identifier, joined

PRECISION_MAX: Final = 38

_ATOMS: Final = {
    "boolean": Sql("BOOLEAN"),
    "tinyint": Sql("TINYINT"),
    "smallint": Sql("SMALLINT"),
    "int": Sql("INTEGER"),
    "bigint": Sql("BIGINT"),
    "float": Sql("FLOAT"),
    "double": Sql("DOUBLE"),
    "string": Sql("VARCHAR"),
    "binary": Sql("BLOB"),
    "date": Sql("DATE"),
    "timestamp": Sql("TIMESTAMP WITH TIME ZONE"),
    "timestamp_ntz": Sql("TIMESTAMP"),
}
_TEXT: Final = re.compile(r"(?:char|varchar)\(\d+\)|string collate \w+", re.IGNORECASE)
_NESTED: Final = re.compile(r"(array|map|struct)<(.*)>", re.IGNORECASE | re.DOTALL)


def duckdb_type(spark: str) -> Sql:
    """Return the DuckDB type for a Spark simple type string.

    >>> duckdb_type("decimal(10,2)").text, duckdb_type("map<string,array<int>>").text
    ('DECIMAL(10,2)', 'MAP(VARCHAR, INTEGER[])')
    >>> duckdb_type("struct<a b:int,c:timestamp_ntz>").text
    'STRUCT("a b" INTEGER, "c" TIMESTAMP)'

    Raises:
        DefinitionError: DuckDB has no type for it.
    """
    spark = spark.strip()
    if spark.lower() in _ATOMS:
        return _ATOMS[spark.lower()]
    if _TEXT.fullmatch(spark):
        return _ATOMS["string"]
    digits = decimal_digits(spark)
    if digits and digits[0] <= PRECISION_MAX:
        return Sql(f"DECIMAL({digits[0]},{digits[1]})")
    nested = _NESTED.fullmatch(spark)
    if nested:
        return _nested(nested[1].lower(), tuple(_split(nested[2])), spark)
    raise DefinitionError(f"DuckDB has no type for Spark's {spark}")


def comparable(spark: str) -> bool:
    """Return whether values of the type can be compared in a key.

    >>> comparable("array<int>"), comparable("array<map<int,int>>")
    (True, False)
    """
    return "map<" not in spark.lower()


def _nested(kind: str, inner: tuple[str, ...], spark: str) -> Sql:
    match kind, inner:
        case "array", (element,):
            return compose("{element}[]", element=duckdb_type(element))
        case "map", (key, value):
            return compose("MAP({key}, {value})", key=duckdb_type(key), value=duckdb_type(value))
        case "struct", fields if any(fields):
            return compose("STRUCT({fields})", fields=joined(", ", map(_field, fields)))
        case _:
            raise DefinitionError(f"DuckDB has no type for Spark's {spark}")


def _field(text: str) -> Sql:
    name, _, spark = text.partition(":")
    return compose("{name} {type}", name=identifier(name), type=duckdb_type(spark))


def _split(text: str) -> Iterator[str]:
    """Yield the parts of ``text`` between commas that no bracket encloses."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += (char in "<(") - (char in ">)")
        if char == "," and depth == 0:
            yield text[start:at]
            start = at + 1
    yield text[start:]
