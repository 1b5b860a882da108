"""CREATE statements, dispatched by kind; and CREATE INDEX, CREATE INSTANCE and ALTER INSTANCE themselves.

All are checked before anything durable changes.

The replicas of an instance are changed in place: its items stay in it.  A replica that is dropped, or has another
address, may run on and can no longer be asked to end.  So the same change of the catalog raises the epoch under which
replicas write (`Catalog.with_writes_raised`): the dropped replica is fenced once the others write under it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from strandline.algebra.notation import within
from strandline.controller.defining import definitions, sources
from strandline.controller.defining.changing import replacing
from strandline.controller.defining.definitions import add, instance_of, taken
from strandline.controller.defining.ground import Ground
from strandline.controller.language import statements
from strandline.controller.language.instances import (
    AddReplica,
    CreateIndex,
    CreateInstance,
    DropReplica,
    refusal_beside,
    refusal_of,
)
from strandline.controller.location.catalog import unknown
from strandline.controller.location.items import IndexItem, InstanceItem, View
from strandline.controller.location.version import require_settled
from strandline.errors import DefinitionError, NoExecutor, StrandlineError
from strandline.instance.indexes.keys import refusal


async def create_index(core: Ground, statement: CreateIndex) -> None:
    """CREATE INDEX.

    Raises `DefinitionError` if the name is taken; if the collection, a column or the instance is not there; or if rows
    cannot be kept in memory, or be found by a column.
    """
    if taken(core, statement, IndexItem):
        return
    instance = instance_of(core.catalog, statement)
    with within(statement.collection_at):
        item = core.catalog.collection(statement.collection)
    require_settled(core.catalog, (item.name.lower(),))
    names = {name.lower(): name for name in item.schema.names}
    for number, column in enumerate(statement.columns):
        with within(statement.columns_at[number] if statement.columns_at else None):
            if column.lower() not in names:
                raise unknown("column", column, names)
            if why := refusal(item.schema, [names[column.lower()]]):
                raise DefinitionError(why)
    key = tuple(names[column.lower()] for column in statement.columns)
    await add(core, IndexItem(statement.name, item.name.lower(), key, instance))


async def create_instance(core: Ground, statement: CreateInstance) -> None:
    """CREATE INSTANCE.  One that replaces another keeps its items, which run in these replicas from now on.

    Raises `DefinitionError` if the name is taken, or a replica has the address of one of another instance.
    """
    present = core.catalog.find(statement.name)
    if not (statement.replaces and isinstance(present, InstanceItem)) and taken(core, statement, InstanceItem):
        return
    with within(statement.at):
        await _put(core, InstanceItem(statement.name, statement.replicas))


async def alter(core: Ground, statement: AddReplica | DropReplica) -> None:
    """ALTER INSTANCE.

    Raises `DefinitionError` if there is no such instance; a replica that is added is there, or one of its address, in
    whatever instance; or one that is dropped is not there.
    """
    core.require_writing()
    with within(statement.at):
        present = core.catalog.one(statement.name, InstanceItem, "instance")
    with within(statement.replica_at):
        await _put(core, InstanceItem(present.name, _altered(present, statement)))


def _altered(present: InstanceItem, statement: AddReplica | DropReplica) -> dict[str, str]:
    """Return the replicas that an instance has after ``statement``."""
    match statement:
        case AddReplica(replica=replica, address=address):
            if replica in present.replicas:
                raise DefinitionError(f"instance {present.name!r} has a replica {replica!r} already; drop it first")
            if refusal := refusal_of(present.replicas, replica, address):
                raise DefinitionError(refusal)
            return {**present.replicas, replica: address}
        case DropReplica(replica=replica):
            if replica not in present.replicas:
                raise unknown(f"replica of instance {present.name!r} called", replica, present.replicas)
            return {name: address for name, address in present.replicas.items() if name != replica}


async def keep(core: Ground, item: InstanceItem, statement: CreateInstance) -> None:
    """Let ``item``, which is there, have the replicas of ``statement`` from now on."""
    if item.replicas != statement.replicas:
        await _put(core, InstanceItem(item.name, statement.replicas))


async def _put(core: Ground, made: InstanceItem) -> None:
    """Put ``made`` into the catalog, in the place of what had its name, and have its items run in its replicas.

    Only addresses that are new are compared with those of other instances: what is there already can be mended.
    """
    writing, present = core.require_writing(), core.catalog.find(made.name)
    before = present.replicas if isinstance(present, InstanceItem) else {}
    _refuse_shared(core, made, {name: there for name, there in made.replicas.items() if before.get(name) != there})
    fences_out = not before.items() <= made.replicas.items()
    await core.catalogs.change(
        writing.epoch,
        lambda catalog: (catalog.with_writes_raised(writing.epoch) if fences_out else catalog).with_item(made),
    )
    await writing.place()


def _refuse_shared(core: Ground, made: InstanceItem, added: dict[str, str]) -> None:
    """Refuse a replica that is one of another instance, too: each would end what the other one runs there."""
    others = {
        item.name: item.replicas
        for item in core.catalog.items.values()
        if isinstance(item, InstanceItem) and item.name.lower() != made.name.lower()
    }
    if refusal := refusal_beside(others, added):
        raise DefinitionError(refusal)


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
            await create_instance(core, statement)
        case CreateIndex():
            await create_index(core, statement)
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
