"""The collections of a location as rows: `register` makes views of them, wherever the session's driver is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition

from strandline.controller.location.items import Collected
from strandline.datasource.opened import Door, opened
from strandline.datasource.options import Place

LISTED: Final = "name string, since bigint, upper bigint"
"""``since`` NULL: it is not complete at any time; ``upper`` NULL: no time of it changes."""


class ListingReader(DataSourceReader):
    """Reads the names of collections, and the times at which each can be read."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition, with all rows."""
        with opened(self._place) as door:
            return [InputPartition(msgspec.json.encode(door.run(_listed(door))))]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows."""
        yield from (tuple(row) for row in msgspec.json.decode(partition.value))


async def _listed(door: Door) -> list[tuple[str, int | None, int | None]]:
    found: list[tuple[str, int | None, int | None]] = []
    for item in sorted((await door.catalog()).items.values(), key=lambda item: item.name.lower()):
        if not isinstance(item, Collected):
            continue
        handle = await door.client.reader(item.shard, item.schema, item.name)
        if handle is None or handle.state.upper <= handle.state.since:
            found.append((item.name, None, 0))
        else:
            found.append((item.name, handle.state.since.at, handle.state.upper.at))
    return found
