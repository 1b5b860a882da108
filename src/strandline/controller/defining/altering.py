"""ALTER, by its statement; and ALTER MATERIALIZATION: options that say how it goes on, and not what its endpoint holds.

The next tick ends the task and begins it anew under them.
"""

from __future__ import annotations

from typing import Final

import msgspec

from strandline.algebra.excerpt import within
from strandline.controller.commanded import spec_of
from strandline.controller.core import Core
from strandline.controller.defining import instances
from strandline.controller.defining.changing import tables
from strandline.controller.defining.triggers import require_trigger
from strandline.controller.language.altering import AddColumns, Alter, AlterMaterialization, KeepHistory, Rename
from strandline.controller.location import on_error
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.items import Materialization
from strandline.errors import DefinitionError
from strandline.materialize.driver import require_all

ALTERABLE: Final = ("every", "on_error", "splits", "trigger", "within")


async def alter(core: Core, statement: Alter) -> None:
    """Do an ALTER.  Raises `DefinitionError` with a position where it is refused; then nothing was changed."""
    match statement:
        case AlterMaterialization():
            await alter_materialization(core, statement)
        case AddColumns():
            await tables.add_columns(core, statement)
        case Rename():
            await tables.rename(core, statement)
        case KeepHistory():
            await tables.keep_history(core, statement)
        case _:
            await instances.alter(core, statement)


async def alter_materialization(core: Core, statement: AlterMaterialization) -> None:
    """ALTER MATERIALIZATION.

    Raises `DefinitionError` if there is none of this name, an option cannot be altered or has no such value, or the
    endpoint refuses it.
    """
    writing = core.require_writing()
    for option, at in statement.places.items():
        if option not in ALTERABLE:
            with within(at):
                raise DefinitionError(
                    f"option {option!r} cannot be altered, only {', '.join(ALTERABLE)}: DROP the materialization and "
                    "CREATE it anew"
                )
    with within(statement.at):
        made = _altered(core.catalog, statement)
        require_trigger(core, made.name, made.common_options.trigger)
        spec = spec_of(made, core.catalog)
        require_all(spec, await core.assembly.drivers(made.endpoint, made.endpoint_options).validate(spec))
    await core.catalogs.change(writing.epoch, lambda catalog: catalog.with_item(_altered(catalog, statement)))


def _altered(catalog: Catalog, statement: AlterMaterialization) -> Materialization:
    present = catalog.one(statement.name, Materialization, "materialization")
    altered = {**present.options, **statement.options}
    options = {name: value for name, value in altered.items() if value is not None}
    on_error.common_to_all(present.name, options, on_error.MaterializationOptions)
    return msgspec.structs.replace(present, options=options)
