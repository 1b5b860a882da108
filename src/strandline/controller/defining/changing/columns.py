"""Which columns a project's definition of a table or a source has besides those that are there."""

from __future__ import annotations

from strandline.algebra.schema import Column, Schema
from strandline.controller.core import Core
from strandline.controller.defining import sources
from strandline.controller.language.clauses import INCLUDE
from strandline.controller.language.statements import Create, CreateSource, CreateSourceTable, CreateTable
from strandline.controller.location import on_error
from strandline.controller.location.items import Fed, Item, SharedSource, Source, SourceTable, Table, made_with


def more_columns(core: Core, wanted: Create, present: Item) -> tuple[Column, ...]:
    """Return the columns that a definition has besides those that are there; none if it differs otherwise.

    Those of a table are behind all that it has.
    """
    match wanted, present:
        case CreateTable(), Table():
            return behind(core.assembly.analyst.parse_ddl(wanted.columns), present.schema)
        case CreateSource(), Source():
            return gained(core, wanted, present) or ()
        case CreateSourceTable(), SourceTable():
            return gained(core, wanted, present) or ()
        case _:
            return ()


def behind(wanted: Schema, there: Schema) -> tuple[Column, ...]:
    """Return the columns that ``wanted`` has behind all those that are there; none if it does not begin with these."""
    begin, added = wanted.columns[: len(there.columns)], wanted.columns[len(there.columns) :]
    return added if begin == there.columns else ()


def gained(core: Core, wanted: CreateSource | CreateSourceTable, present: Fed) -> tuple[Column, ...] | None:
    """Return the columns that a source, or its table, lacks of its definition; None if it differs otherwise.

    One that gets columns by itself may have others besides, in any order, and each may have those that it was given
    since it was created.  Columns of metadata stand where they were when the source was created.
    """
    if isinstance(wanted, CreateSource):
        said, options = sources.schema_of(core, wanted) or Schema(()), wanted.options
    else:
        said = core.assembly.analyst.parse_ddl(wanted.columns)
        source = core.catalog.one(wanted.source, SharedSource, "source")
        options = {**core.catalog.source_options(source), **wanted.options}
    there = {column.name.lower(): column for column in present.schema}
    added = tuple(column for column in said if column.name.lower() not in there)
    if any(there.get(column.name.lower(), column) != column for column in said):
        return None
    if on_error.evolves(options):
        return added
    metadata = {text.lower() for name, text in options.items() if name.startswith(INCLUDE)}
    first = made_with(present)
    ours, theirs = ([c for c in each if c.name.lower() not in metadata] for each in (said, first))
    named = {column.name.lower() for column in said}
    whole = ours[: len(theirs)] == theirs and named.issuperset(column.name.lower() for column in first)
    return added if whole else None
