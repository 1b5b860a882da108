"""Bugs that are planted in how a table gets columns.

Trap: as in `planted.bugs`, these know private names on purpose.
"""

from __future__ import annotations

from typing import Final

from planted.bugs import Bug, registrar
from strandline.errors import ConfigError
from strandline.instance.commands import Collection
from strandline.instance.instance import Instance
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.write import WriteHandle

BUGS: Final[list[Bug]] = []
bug = registrar(BUGS)


@bug("the shard of a table keeps the columns that the table was created with", (WriteHandle, "evolve"))
async def never_wider(self: WriteHandle, schema: str) -> None:
    """Leave the shard as it is."""


@bug("a replica reads a table by the columns that it had when a view read it first", (Instance, "_reader"))
async def read_as_before(self: Instance, collection: Collection) -> ReadHandle:
    """Keep a reader as it was opened."""
    if collection.shard not in self._readers:
        reader = await self._client.reader(collection.shard, collection.schema, collection.name, kept=collection.kept)
        if reader is None:
            raise ConfigError(f"it waits for collection {collection.name!r}, which could not be opened yet")
        self._readers[collection.shard] = reader
    return self._readers[collection.shard]
