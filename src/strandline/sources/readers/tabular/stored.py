"""The rows of a table's stored files: small ones through Arrow, large plain ones by the data plane itself.

A file is *plain* if the declared columns lie in it under their names and as they are declared, so that reading it as
Parquet gives its rows.  Its rows then never pass through this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq

from strandline.algebra import types
from strandline.algebra.formats import DatedFile, Encoding, FileFormat
from strandline.algebra.schema import Schema
from strandline.algebra.stored import same
from strandline.errors import InvalidUsage, SourceError
from strandline.frontier.gauge import Offsets
from strandline.persist.handles.contents import Rows
from strandline.plane.staging import Staging
from strandline.problem import Problem, Stopped, Way
from strandline.sources.kinds import ANEW
from strandline.sources.reader import FileDecoder
from strandline.sources.readers.tabular.declared import tables_of
from strandline.sources.readers.tabular.gathered import Gathering, Piece

PLAIN_BYTES_MIN: Final = 4 << 20
"""A file that is smaller is read here: that costs less than a Spark job."""
UNHELD: Final = Problem(
    "value-unheld",
    "{table} holds a value that its declared column does not: {why}",
    Stopped.SOURCE,
    (Way("correct the value in a version that is not read yet"), ANEW),
)
_ID: Final = b"PARQUET:field_id"
SMALL_BYTES_MAX: Final = 1 << 20
"""So few bytes of files are likely to be at most some ten thousand rows."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file, or some of its rows, that come (diff 1) or go (diff −1) at ``time``.

    ``tables`` makes the rows, as `Piece` says.  ``plain``: where the file is on this machine, if all its rows count and
    nothing but the file says what is in its columns.  ``ids``: the ids that its columns must have in it, by name.
    """

    time: int
    diff: int
    name: str
    size: int
    tables: Callable[[], Iterator[pa.Table]]
    plain: Path | None = None
    ids: Mapping[str, int] | None = None


class TableRows:
    """The rows of the last read of one table."""

    def __init__(self, engine: Staging, decoder: FileDecoder, schema: Schema, what: str, item: str) -> None:
        """``what``: the table, and ``item``: the source that reads it, for what messages say."""
        self._item = item
        self._engine = engine
        self._decoder = decoder
        self._schema = schema
        self._what = what
        self._gathering = Gathering(engine)
        self.small = True
        self.plain_files = 0  # how many files the data plane has read itself

    async def read(self, files: Sequence[StoredFile], until: Offsets, *, locate: bool) -> Rows:
        """Return the rows of all ``files`` (lazy); the last read's are forgotten, and these once ``until`` is durable.

        Raises `SourceError` if a value is none of its declared column, and what making the tables raises.
        """
        self.small = sum(file.size for file in files) <= SMALL_BYTES_MAX
        plain = await asyncio.to_thread(lambda: {n for n, file in enumerate(files) if self._is_plain(file)})
        pieces = [Piece(file.time, file.diff, self._made(file)) for n, file in enumerate(files) if n not in plain]
        try:
            rows = await self._gathering.rows(self._schema, pieces, until)
        except InvalidUsage as error:
            raise SourceError(UNHELD.said(table=self._what, why=error, item=self._item)) from error
        if not plain:
            return rows
        self.plain_files += len(plain)
        dated = [
            DatedFile(str(file.plain), file.name, file.size, file.time, withdrawn=file.diff < 0)
            for n, file in enumerate(files)
            if n in plain
        ]
        decoded = await self._decoder.decode(dated, self._schema, FileFormat(Encoding.PARQUET), locate=locate)
        return await self._engine.union(self._schema, [rows, decoded], advance=0, negate=[False, False])

    def release(self, durable: Offsets) -> None:
        """Forget the rows if all of them are durable."""
        self._gathering.release(durable)

    def close(self) -> None:
        """Forget the rows.  Idempotent."""
        self._gathering.close()

    def _made(self, file: StoredFile) -> Callable[[], Iterator[pa.Table]]:
        return lambda: tables_of(self._schema, file.tables())

    def _is_plain(self, file: StoredFile) -> bool:
        if file.plain is None or file.size < PLAIN_BYTES_MIN:
            return False
        try:
            if file.plain.stat().st_size != file.size:
                return False
            there = {field.name.lower(): field for field in pq.read_schema(file.plain)}
        except (OSError, pa.ArrowException):
            return False  # reading it here says what is wrong
        for name, kind in types.columns(self._schema):
            stored = there.get(name.lower())
            if stored is None or not same(kind, stored.type):
                return False
            if file.ids is not None and (stored.metadata or {}).get(_ID) != str(file.ids[name]).encode():
                return False
        return True
