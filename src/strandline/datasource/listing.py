"""What a registered session asks its driver beside rows, wherever that is: collections' names, a frame's times."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSourceReader, InputPartition

from strandline.algebra.schema import RESERVED
from strandline.controller.location.items import Collected
from strandline.controller.readers import plain
from strandline.datasource.opened import Door, opened
from strandline.datasource.options import Asked, Place
from strandline.datasource.pinned import pin
from strandline.errors import StrandlineError

LISTED: Final = "name string, since bigint, upper bigint"
"""``since`` NULL: it is not complete at any time; ``upper`` NULL: no time of it changes."""


TIMES: Final = "lower bigint, upper bigint"
"""As `Pinned` has them."""


class AnswerReader(DataSourceReader):
    """Reads rows that the driver has when it plans."""

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the rows."""
        yield from (tuple(row) for row in msgspec.json.decode(partition.value))


class TimesReader(AnswerReader):
    """Reads the times at which a frame is pinned, and takes its lease.

    A Connect server resolves a frame when it is used, and may do so again.  So its times are asked for at once, and are
    options from then on.
    """

    def __init__(self, wanted: Asked) -> None:
        self._wanted = wanted

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition, with the one row.  Raises as `pinned.pin`."""
        try:
            pinned = pin(self._wanted)
        except StrandlineError as error:  # Spark shows the whole traceback, and the sentence is what counts
            raise error.with_traceback(None) from None
        return [InputPartition(msgspec.json.encode([(pinned.lower, pinned.upper)]))]


class ListingReader(AnswerReader):
    """Reads the names of collections, and the times at which each can be read."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition, with all rows."""
        with opened(self._place) as door:
            return [InputPartition(msgspec.json.encode(door.run(_listed(door))))]


async def _listed(door: Door) -> list[tuple[str, int | None, int | None]]:
    found: list[tuple[str, int | None, int | None]] = []
    for item in sorted((await door.catalog()).items.values(), key=lambda item: item.name.lower()):
        if not isinstance(item, Collected) or item.name.startswith(RESERVED):  # of subscriptions, or to replace a view
            continue
        handle = await plain(door.client, item)
        if handle is None or handle.state.upper <= handle.since:
            found.append((item.name, None, 0))
        else:
            found.append((item.name, handle.since.at, handle.state.upper.at))
    return found
