"""Which columns a project's definition of a table or a source has besides those that are there."""

from __future__ import annotations

from collections.abc import Mapping

from strandline.algebra.schema import Column, Schema
from strandline.controller.defining import sources
from strandline.controller.defining.ground import Ground
from strandline.controller.language.clauses import INCLUDE
from strandline.controller.language.statements import Create, CreateSource, CreateSourceTable, CreateTable
from strandline.controller.location import on_error
from strandline.controller.location.items import Fed, Item, SharedSource, Source, SourceTable, Table, made_with


def more_columns(core: Ground, wanted: Create, present: Item) -> tuple[Column, ...]:
    """Return the columns that a definition has besides those that are there; none if it differs otherwise."""
    match wanted, present:
        case CreateTable() | CreateSource() | CreateSourceTable(), Table() | Source() | SourceTable():
            return gained(core, wanted, present) or ()
        case _:
            return ()


def gained(
    core: Ground, wanted: CreateTable | CreateSource | CreateSourceTable, present: Table | Fed
) -> tuple[Column, ...] | None:
    """Return the columns that a table or a source lacks of its definition; None if it differs otherwise.

    It may have those that it was given since it was created, which the definition need not say, nor in their order.
    A source that gets columns by itself may have any others besides.  Columns of metadata stand where they were when
    the source was created.  Names are compared without case.
    """
    said, options = _said(core, wanted)
    there = {column.name.lower(): column.type for column in present.schema}
    added = tuple(column for column in said if column.name.lower() not in there)
    if any(there.get(column.name.lower(), column.type) != column.type for column in said):
        return None
    if on_error.evolves(options):
        return added
    metadata = {text.lower() for name, text in options.items() if name.startswith(INCLUDE)}
    first = [column.name.lower() for column in made_with(present)]
    named = [column.name.lower() for column in said]
    ours, theirs = ([name for name in each if name not in metadata] for each in (named, first))
    return added if ours[: len(theirs)] == theirs and set(first) <= set(named) else None


def _said(core: Ground, wanted: CreateTable | CreateSource | CreateSourceTable) -> tuple[Schema, Mapping[str, str]]:
    """Return the columns that a definition says, and the options."""
    match wanted:
        case CreateTable():
            return core.assembly.analyst.parse_ddl(wanted.columns), {}
        case CreateSource():
            return sources.schema_of(core, wanted) or Schema(()), wanted.options
        case CreateSourceTable():
            source = core.catalog.one(wanted.source, SharedSource, "source")
            options = {**core.catalog.source_options(source), **wanted.options}
            return core.assembly.analyst.parse_ddl(wanted.columns), options
