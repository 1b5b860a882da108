"""Which DuckDB type stores which of Spark's types.

The runtime hands a driver Arrow values, which DuckDB casts as it reads them; so only what must be declared is
translated: the columns of a table.

Source: Spark SQL "Data Types" (simple strings); DuckDB "Data Types".
"""

from __future__ import annotations

from typing import Final

from strandline.algebra.types import Array, Atom, Decimal, Struct, Type
from strandline.materialize.drivers.sql.text import Sql, compose, identifier, joined

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


def duckdb_type(kind: Type) -> Sql:
    """Return the DuckDB type for ``kind``.

    >>> duckdb_type(Array(Decimal(10, 2))).text
    'DECIMAL(10,2)[]'
    >>> duckdb_type(Struct((("a, b", Atom("int")), ("c", Atom("timestamp_ntz"))))).text
    'STRUCT("a, b" INTEGER, "c" TIMESTAMP)'
    """
    match kind:
        case Atom(name):
            return _ATOMS[name]
        case Decimal(precision, scale):
            return Sql(f"DECIMAL({precision},{scale})")
        case Array(element):
            return compose("{element}[]", element=duckdb_type(element))
        case Struct(fields):
            named = (compose("{name} {type}", name=identifier(name), type=duckdb_type(field)) for name, field in fields)
            return compose("STRUCT({fields})", fields=joined(", ", named))
