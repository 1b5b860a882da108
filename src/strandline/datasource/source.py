"""The data source that Spark knows as ``strandline``, and what a registered session asks its driver beside rows.

The session may be in another process than the driver; it asks for the names of collections and for a frame's times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from strandline.algebra.schema import RESERVED
from strandline.controller.location.items import Collected
from strandline.controller.readers import plain
from strandline.datasource.opened import FORMAT, Asked, Door, Place, asked, opened, refuse_in_stream
from strandline.datasource.pinned import FrameReader, Pinned, pin
from strandline.datasource.stream import StreamReader
from strandline.errors import InvalidUsage, StrandlineError

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


OWN_SCHEMA: Final = f"{FORMAT}: a collection has a schema of its own: leave .schema(…) out"


class Source(DataSource):
    """A collection of a location.  Spark makes one for each frame, asks it for its schema, and pickles it."""

    pinned: Pinned | None = None

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> str:
        """Fix what the frame reads, and return its columns as DDL.  Raises as `pinned.pin`."""
        wanted = asked(self.options)
        if wanted.options.listing:
            return LISTED
        if wanted.options.pinning:
            return TIMES
        try:
            self.pinned = pin(wanted)
        except StrandlineError as error:  # Spark shows the whole traceback, and the sentence is what counts
            raise error.with_traceback(None) from None
        return self.pinned.ddl

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return what reads the frame.  Raises `InvalidUsage` for a schema of the caller's own."""
        wanted = asked(self.options)
        if wanted.options.listing:
            return ListingReader(wanted.place)
        if wanted.options.pinning:
            return TimesReader(wanted)
        if wanted.options.startingtime is not None:
            raise InvalidUsage(f"{FORMAT}: startingTime is of a stream; a frame is read at asOf")
        return FrameReader(self._known(), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return what reads the stream.  Raises `InvalidUsage` for options that only a frame has."""
        wanted, pinned = asked(self.options), self._known()
        refuse_in_stream(wanted.options)
        if pinned.lower is None:
            raise InvalidUsage(
                f"{FORMAT}: a stream gives updates, with __time and __diff: add .option('changes', 'true') "
                "(a session that strandline.register was called with adds it by itself)"
            )
        return StreamReader(pinned, wanted.options.startingtime, schema)

    def _known(self) -> Pinned:
        if self.pinned is None:
            raise InvalidUsage(OWN_SCHEMA)
        return self.pinned
