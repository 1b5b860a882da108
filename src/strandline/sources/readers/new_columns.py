"""Columns that an upstream has and a table here lacks: which of them the table could have."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

from strandline.algebra.schema import Column, Schema
from strandline.sources.kinds import discovered

Gained: TypeAlias = Callable[[str, Sequence[Column]], str]
"""See `Surroundings.gained`."""


def unsaid(_: str, __: Sequence[Column]) -> str:
    """Return no notice: a reader that is opened alone takes no new columns."""
    return ""


def new_columns(schema: Schema, found: Iterable[tuple[str, str | None]]) -> tuple[Column, ...]:
    """Return those of ``found`` (name, type) that ``schema`` lacks and could have, in their order.

    It could not have one without a type, one with a reserved name, nor one whose name differs from another's in case
    alone.

    >>> new_columns(Schema((Column("id", "int"),)), [("ID", "int"), ("n", "date"), ("__n", "int"), ("m", None)])
    (Column(name='n', type='date'),)
    """
    every = [*((column.name, column.type) for column in schema), *found]
    return discovered("", every, {}, exact=True).columns.columns[len(schema.columns) :]
