"""Creating: every CREATE by its statement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.controller.defining import definitions, indexes, instances, sources
from strandline.controller.defining.changing import replacing
from strandline.controller.defining.ground import Ground
from strandline.controller.language import statements
from strandline.controller.language.indexes import CreateIndex
from strandline.controller.language.instances import CreateInstance
from strandline.controller.location.items import View
from strandline.errors import NoExecutor, StrandlineError


async def foreseen_statement(core: Ground, statement: statements.Create) -> None:
    """Ask Spark what `create` will ask it, so that this then takes little time.  It changes nothing.

    Other calls may be made meanwhile.  A wrong statement is for `create` to refuse.  Raises `NoExecutor` if
    Spark has to run a job for an answer and cannot: `create` would wait for it, and all other calls with it.
    """
    if not isinstance(statement, statements.CreateView) or core.writing is None or core.assembly.aside is None:
        return
    with left_for_later():
        if isinstance(core.catalog.find(statement.name), View):
            if statement.replaces:
                await core.assembly.planning(lambda: replacing.drawn_up(core, core.catalog, (statement,)))
        else:
            instance = definitions.instance_of(core.catalog, statement)
            given = (core, statement.name, statement.query, statement.refresh, instance)
            await core.assembly.planning(lambda: definitions.plan(*given))


@contextmanager
def left_for_later() -> Iterator[None]:
    """Leave what is refused to the call that is foreseen, which refuses it likewise."""
    try:
        yield
    except NoExecutor:
        raise
    except StrandlineError:
        pass


async def create(core: Ground, statement: statements.Create) -> None:
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
