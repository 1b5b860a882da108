"""The columns of an upstream table as declared ones: which can be declared, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pyarrow as pa

from strandline.algebra import types
from strandline.algebra.arrow_types import arrow
from strandline.algebra.schema import Column, Schema
from strandline.algebra.stored import located, type_of
from strandline.algebra.stored_values import converted
from strandline.errors import DefinitionError, InvalidUsage, SourceError
from strandline.problem import Problem, Stopped, Way

UNFITTING: Final = Problem(
    "column-unfitting",
    "{table} cannot be read with this column: {why}",
    Stopped.COMMAND,
    (Way("declare it with the type that upstream has"),),
)
"""An ALTER … ADD COLUMN is refused for it."""


def declarable(there: pa.Schema, locate: Callable[[Schema], object]) -> list[tuple[str, str | None]]:
    """Return the columns with the types to declare them as; None: ``locate``, which the reader asks, refuses it."""
    found = list[tuple[str, str | None]]()
    for field in there:
        kind = type_of(field.type)
        try:
            if kind is not None:
                locate(Schema((Column(field.name, kind),)))
        except (ValueError, SourceError, DefinitionError):
            kind = None
        found.append((field.name, kind))
    return found


def require_fitting(name: str, added: Schema, there: pa.Schema) -> None:
    """Raise `SourceError` if the table called ``name`` has one of the columns ``added`` in a type that does not fit.

    A column that it lacks may come.
    """
    known = {each.lower() for each in there.names}
    try:
        located(Schema(tuple(column for column in added if column.name.lower() in known)), there)
    except ValueError as error:
        raise SourceError(UNFITTING.said(table=name, why=error)) from error


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
