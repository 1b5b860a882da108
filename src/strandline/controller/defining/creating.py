"""Creating: every CREATE by its statement."""

from __future__ import annotations

from strandline.controller.core import Core
from strandline.controller.defining import definitions, indexes, instances, sources
from strandline.controller.defining.changing import replacing
from strandline.controller.language import statements
from strandline.controller.language.indexes import CreateIndex
from strandline.controller.language.instances import CreateInstance


async def create(core: Core, statement: statements.Create) -> None:
    """Do a CREATE.  Raises `DefinitionError` with a position where it is refused; then nothing was changed."""
    match statement:
        case statements.CreateConnection():
            await sources.create_connection(core, statement)
        case CreateInstance():
            await instances.create_instance(core, statement)
        case CreateIndex():
            await indexes.create_index(core, statement)
        case statements.CreateSource():
            await sources.create_source(core, statement)
        case statements.CreateSourceTable():
            await sources.create_source_table(core, statement)
        case statements.CreateTable():
            await definitions.create_table(core, statement)
        case statements.CreateView(replaces=True):
            await replacing.replace_views(core, (statement,))
        case statements.CreateView():
            await definitions.create_view(core, statement)
        case statements.CreateMaterialization():
            await definitions.create_materialization(core, statement)
