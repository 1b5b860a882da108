"""Spool: rows kept between two messages, in memory up to a limit and in a temporary file beyond it.

All rows of a transaction are known before the first one is sent (the extent must be checked and durable first), and a
first sync may have more rows than fit in memory.  The file has no name, so a process that dies leaves nothing behind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import BinaryIO, Final, cast

import pyarrow as pa

from strandline.errors import Determinate, InvalidUsage

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of Arrow data that a spool keeps in memory."""
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")


class Spool:
    """Tables of one schema, returned in the order in which they were added, any number of times.

    Not for concurrent use: one read at a time, and no `add` after the first read.
    """

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.rows = 0
        self._held_bytes_max = held_bytes_max
        self._held: list[pa.Table] = []
        self._bytes = 0
        self._file: BinaryIO | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None
        self._closed = False

    @property
    def spilled(self) -> bool:
        """Whether the rows are in a file."""
        return self._file is not None

    def add(self, table: pa.Table) -> None:
        """Append ``table``.  Raises `Determinate` if the operating system refuses the temporary file."""
        if not table.num_rows:
            return
        self.rows += table.num_rows
        self._held.append(table)
        self._bytes += table.nbytes
        if self._bytes > self._held_bytes_max:
            self._spill()

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows, in tables of the sizes in which they were added.  Raises `InvalidUsage` if it is closed."""
        self._require_open()
        if self._file is None:
            yield from self._held
            return
        for batch in self._reader():
            yield pa.Table.from_batches([batch])

    def relation(self) -> pa.Table | pa.RecordBatchReader:
        """Return all rows: as a table, or, if they are in a file, as a stream that can be read once.

        Raises `InvalidUsage` if it is closed.
        """
        self._require_open()
        assert self.rows, "an empty spool has no schema"
        return pa.concat_tables(self._held) if self._file is None else self._reader()

    def close(self) -> None:
        """Drop all rows."""
        self._closed = True
        self._held.clear()
        self._writer = None
        if self._file is not None:
            self._file.close()

    def _require_open(self) -> None:
        if self._closed:
            raise InvalidUsage("the rows of this transaction were dropped")

    def _spill(self) -> None:
        try:
            if self._writer is None:
                self._file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - `close` does
                sink = pa.PythonFile(self._file, mode="w")
                self._writer = pa.ipc.new_stream(sink, self._held[0].schema, options=_OPTIONS)
            for table in self._held:
                self._writer.write_table(table)
        except OSError as error:
            raise Determinate(f"rows cannot be spooled in {tempfile.gettempdir()}: {error}") from error
        self._held.clear()
        self._bytes = 0

    def _reader(self) -> pa.RecordBatchReader:
        assert self._file is not None
        if self._writer is not None:
            self._spill()
            self._writer.close()
            self._writer = None
        self._file.seek(0)
        return pa.ipc.open_stream(pa.PythonFile(self._file, mode="r"))
