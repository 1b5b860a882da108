"""ALTER, by its statement; and options of sources and materializations that say how these go on.

They do not say what a collection or an endpoint holds.  The next tick ends the item and begins it anew under them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from strandline.algebra.notation import within
from strandline.controller.commanded import spec_of
from strandline.controller.core import Core
from strandline.controller.defining import creating, sources
from strandline.controller.defining.changing import rebinding, tables
from strandline.controller.defining.changing.comparing import alterable, options_anew
from strandline.controller.defining.definitions import require_trigger
from strandline.controller.defining.ground import Ground
from strandline.controller.defining.project.settings import Defined
from strandline.controller.language.altering import (
    AddColumns,
    Alter,
    AlterMaterialization,
    AlterMaterializationViews,
    AlterSource,
    KeepHistory,
    Of,
    Rename,
    SetOptions,
)
from strandline.controller.language.statements import CreateMaterialization, CreateSource, CreateSourceTable
from strandline.controller.location import on_error
from strandline.controller.location.audits import audited
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Item, Materialization, SharedSource, Source, SourceTable, Table
from strandline.errors import DefinitionError
from strandline.materialize.driver import require_all


async def alter(core: Ground, statement: Alter) -> None:
    """Do an ALTER.  Raises `DefinitionError` with a position where it is refused; then nothing was changed."""
    match statement:
        case AlterMaterialization():
            await alter_materialization(core, statement)
        case AlterMaterializationViews():
            await rebinding.alter_views(core, statement)
        case AlterSource():
            await alter_source(core, statement)
        case AddColumns():
            await tables.add_columns(core, statement)
        case Rename():
            await tables.rename(core, statement)
        case KeepHistory():
            await tables.keep_history(core, statement)
        case _:
            await creating.alter(core, statement)


async def keep_options(core: Ground, item: Item, defined: Defined) -> None:
    """Alter what `options_anew` finds.  Raises as ALTER does."""
    if not (options := options_anew(core, item, defined)):
        return
    match defined.statement:
        case CreateMaterialization(at=at):
            await alter_materialization(core, AlterMaterialization(item.name, options, at=at))
        case CreateSource(at=at) | CreateSourceTable(at=at):
            kind: Of = "TABLE" if isinstance(item, SourceTable) else "SOURCE"
            await alter_source(core, AlterSource(item.name, options, kind=kind, at=at))


async def alter_materialization(core: Ground, statement: AlterMaterialization) -> None:
    """ALTER MATERIALIZATION.

    Raises `DefinitionError` if there is none of this name, an option cannot be altered or has no such value, or the
    endpoint refuses it.
    """
    writing = core.require_writing()
    _require_alterable(statement, on_error.ALTERABLE, "the materialization")
    with within(statement.at):
        made = _altered(core.catalog, statement)
        require_trigger(core, made.name, made.common_options.trigger)
        spec = spec_of(made, core.catalog)
        require_all(spec, await core.assembly.drivers(made.endpoint, made.endpoint_options).validate(spec))
    await core.catalogs.change(writing.epoch, lambda catalog: catalog.with_item(_altered(catalog, statement)))


def _altered(catalog: Catalog, statement: AlterMaterialization) -> Materialization:
    present = catalog.one(statement.name, Materialization, "materialization")
    options = _set(present.options, statement)
    on_error.common_to_all(present.name, options, on_error.MaterializationOptions)
    return msgspec.structs.replace(present, options=options)


async def alter_source(core: Ground, statement: AlterSource) -> None:
    """ALTER SOURCE … {SET | RESET}, and ALTER TABLE of a source's table.

    Raises `DefinitionError` if there is none of this name, or an option cannot be altered or has no such value.
    """
    writing = core.require_writing()
    with within(statement.at):
        made = _altered_source(core.catalog, statement)
    _require_alterable(statement, alterable(core, made), f"the {statement.kind.lower()}")
    if not isinstance(made, SourceTable):
        with within(statement.at):
            sources.check_again(core, core.catalog.with_item(made), made.name)
    await core.catalogs.change(writing.epoch, lambda catalog: catalog.with_item(_altered_source(catalog, statement)))
    await writing.reconcile()


def _altered_source(catalog: Catalog, statement: AlterSource) -> Source | SharedSource | SourceTable:
    present = catalog.find(statement.name)
    if statement.kind == "TABLE":
        if isinstance(present, Table):
            raise DefinitionError(f"{present.name!r} is fed by no source, and has no options")
        item: Source | SharedSource | SourceTable = catalog.one(statement.name, SourceTable, "table")
    else:
        item = present if isinstance(present, Source) else catalog.one(statement.name, SharedSource, "source")
    options = _set(item.options, statement)
    on_error.others(item.name, options, on_error.SourceOptions)
    return msgspec.structs.replace(item, options=options)


def _set(options: Mapping[str, str], statement: SetOptions) -> dict[str, str]:
    return {name: value for name, value in {**options, **statement.options}.items() if value is not None}


def _require_alterable(statement: SetOptions, alterable: Sequence[str], what: str) -> None:
    for option, at in statement.places.items():
        if option not in alterable:
            with within(at):
                raise DefinitionError(
                    f"option {option!r} cannot be altered, only {', '.join(alterable)}: DROP {what} and CREATE it anew"
                )


async def audit(core: Core, name: str) -> None:
    """Make the next step of every stage of a view recompute it in full and append what is wrong."""
    writing = core.require_writing()
    if writing.running.elsewhere(name.lower()):  # all replicas, also one that is away now
        await core.catalogs.change(writing.epoch, lambda catalog: audited(catalog, name))
    else:
        await writing.instance.audit(name.lower())
