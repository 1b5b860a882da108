"""Rows that come from outside, one bounded table after the other, as a frame: in memory while they are few.

Beyond that they lie in one Parquet file of this machine, which Spark reads; it is gone when the `Aside` is closed.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from strandline.algebra.schema import DIFF, ERROR, TIME, Schema, quote
from strandline.engine.frames import inline
from strandline.engine.frames.rows import Distributed, Frame, Local, wrap
from strandline.errors import Determinate
from strandline.persist.handles.contents import Rows

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of Arrow data that are kept in memory."""


class Aside:
    """See `Aside`.  Rows are added by one thread at a time, and none after `rows` was asked for.

    ``known``: the columns that no file needs to have.
    """

    known: ClassVar[tuple[str, ...]] = (TIME, DIFF)

    def __init__(self, session: SparkSession, schema: Schema, time: int, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._session = session
        self._schema = schema
        self._time = time
        self._held_bytes_max = held_bytes_max
        self._held: list[pa.Table] = []
        self._bytes = 0
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._writer: pq.ParquetWriter | None = None

    def add(self, table: pa.Table) -> None:
        """See `Aside.add`."""
        self._put(inline.stamped(table, self._schema, time=self._time, diff=1))

    def _put(self, table: pa.Table) -> None:
        self._held.append(table)
        self._bytes += table.nbytes
        if self._bytes > self._held_bytes_max:
            self._spill()

    def rows(self) -> Rows:
        """See `Aside.rows`."""
        return wrap(self._frame())

    def __enter__(self) -> Self:
        """Begin with no rows."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Forget all rows; no frame of them can be read after it."""
        self._held.clear()
        self._finish()
        if self._directory is not None:
            self._directory.cleanup()

    def _frame(self) -> Frame:
        if self._directory is None:
            columns = inline.update_schema(self._schema).empty_table().drop_columns([ERROR])
            return Local(pa.concat_tables([columns, *self._held]), plain=True)
        self._spill()
        self._finish()
        scan = self._session.read.schema(self._schema.ddl).parquet(Path(self._directory.name).as_uri())
        columns = [*map(quote, self._schema.names), f"0L AS {TIME}", f"1L AS {DIFF}"]
        return Distributed(scan.selectExpr(*columns), plain=True, origin=self._time)

    def _spill(self) -> None:
        """Move what is in memory behind what is in the file."""
        try:
            for table in self._held:
                rows = table.drop_columns(list(self.known))
                if self._writer is None:
                    self._directory = tempfile.TemporaryDirectory(prefix="strandline-aside-")
                    path = Path(self._directory.name) / "rows.parquet"
                    self._writer = pq.ParquetWriter(path, rows.schema, compression="lz4", store_schema=False)
                self._writer.write_table(rows)
        except OSError as error:
            raise Determinate(f"rows cannot be put aside in {tempfile.gettempdir()}: {error}") from error
        self._held.clear()
        self._bytes = 0

    def _finish(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
