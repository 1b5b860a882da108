"""The columns of a table as they are compared: each with its name and the canonical text of its type."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

import pyarrow as pa

from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import RESERVED, quote
from strandline.algebra.types import Array, Atom, Decimal, Struct, Type, parse
from strandline.materialize.protocol.task import Binding

DELETED: Final = f"{RESERVED}deleted"
"""Of a table that is given the last row of each key that changed: whether the key is gone, and this was its row."""
Shape: TypeAlias = tuple[tuple[str, str], ...]
"""Names and texts of types; a text that `parse` refuses is of a column that no binding has."""


def text(kind: Type) -> str:
    """Return the one text of a type.

    >>> text(Array(Struct((("a b", Decimal(10, 2)), ("c", Atom("int"))))))
    'array<struct<`a b`:decimal(10,2),`c`:int>>'
    """
    match kind:
        case Atom(name):
            return name
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Array(element):
            return f"array<{text(element)}>"
        case Struct(fields):
            return f"struct<{','.join(f'{quote(name)}:{text(field)}' for name, field in fields)}>"


def latest_only(binding: Binding) -> bool:
    """Return whether a table is given the last row of each key that changed, and so must say which keys are gone."""
    return binding.delta and bool(binding.key) and not binding.diffs


def shape_of(binding: Binding) -> Shape:
    """Return the columns that a binding's table has.  Raises `DefinitionError` naming a column that cannot be kept."""
    own = tuple((column.name, text(parse(column.name, column.type))) for column in binding.columns)
    return (*own, (DELETED, "boolean")) if latest_only(binding) else own


def arrow_schema(shape: Shape) -> pa.Schema:
    """Return the Arrow schema of rows of a table.  Raises `DefinitionError` naming a column that cannot be kept."""
    return pa.schema([pa.field(name, arrow(parse(name, kind))) for name, kind in shape])


def written(shape: Iterable[tuple[str, str]]) -> str:
    """Return columns as a message shows them.

    >>> written((("a", "int"), ("b c", "date")))
    '`a` int, `b c` date'
    """
    return ", ".join(f"{quote(name)} {kind}" for name, kind in shape)


def missing(there: Shape, wanted: Shape) -> Shape | None:
    """Return the columns that a table lacks and that can be added to it; None: it differs in another way.

    >>> missing((("a", "int"),), (("b", "date"), ("a", "int"))), missing((("a", "int"),), (("a", "bigint"),))
    ((('b', 'date'),), None)
    """
    if set(there) - set(wanted):
        return None
    return tuple(each for each in wanted if each not in there)


def aligned(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return ``rows`` with exactly the columns of ``schema``; a column that is not there is NULL."""
    names = rows.column_names
    columns = [
        _cast(rows.column(names.index(field.name)), field.type)
        if field.name in names
        else pa.chunked_array([pa.nulls(len(rows), field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    return values if values.type == kind else values.cast(kind)
