"""The data source that Spark knows as ``strandline``."""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from strandline.datasource.batch import FrameReader
from strandline.datasource.listing import LISTED, TIMES, ListingReader, TimesReader
from strandline.datasource.options import FORMAT, asked, refuse_in_stream
from strandline.datasource.pinned import Pinned, pin
from strandline.datasource.stream import StreamReader
from strandline.errors import InvalidUsage, StrandlineError

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
