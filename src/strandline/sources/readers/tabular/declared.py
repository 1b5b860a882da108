"""Rows of an upstream table's located columns as rows of the declared ones."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import Schema
from strandline.algebra.stored_values import converted
from strandline.errors import InvalidUsage


def tables_of(schema: Schema, made: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield tables of the located columns as tables of ``schema``.  Raises `InvalidUsage` naming the column."""
    kinds = types.columns(schema)
    for table in made:
        yield pa.table([_column(table[name], name, kind) for name, kind in kinds], names=[name for name, _ in kinds])


def _column(values: pa.ChunkedArray, name: str, kind: types.Type) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([converted(each, kind) for each in values.chunks], arrow(kind))
    except pa.ArrowInvalid as error:
        raise InvalidUsage(f"column {name!r} cannot be cast to {arrow(kind)}: {error}") from error
