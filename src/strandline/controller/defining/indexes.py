"""Indexes: CREATE INDEX, checked before anything durable changes."""

from __future__ import annotations

from strandline.algebra.excerpt import within
from strandline.controller.defining.definitions import add, instance_of, taken
from strandline.controller.defining.ground import Ground
from strandline.controller.language.indexes import CreateIndex
from strandline.controller.location.catalog import unknown
from strandline.controller.location.items import IndexItem
from strandline.controller.location.version import require_settled
from strandline.errors import DefinitionError
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
