"""Collecting: the whole result of a query as one Arrow table, of which this process and the JVM hold little.

Batches are taken as tasks hand them over.  Beyond `HELD_BYTES_MAX` they go to a temporary file, which the table maps:
the kernel reads its pages when they are used, and takes them back when room is needed.  The file has no name, so a
process that dies leaves nothing behind, and it goes with the last buffer of the table.

Trap: PySpark's ``toArrow`` keeps all batches until the last has come.  Its serializer gathers what the serializer below
it yields, and then yields that in the order that the JVM says at the end; so `_Numbers`, put below it, takes each batch
away and yields its number.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any, BinaryIO, Final, cast

import pyarrow as pa
from pyspark.errors.exceptions.captured import unwrap_spark_exception
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.serializers import ArrowCollectSerializer, ArrowStreamSerializer
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _load_from_socket

from strandline.engine.session.start import cancel_jobs, tag_jobs, untag_jobs
from strandline.errors import Determinate, InvalidUsage

HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a result in memory before a temporary file takes the rest."""


class Gathered:
    """Batches of one schema: in memory, and beyond ``held_bytes_max`` in a mapped file.  One thread at a time."""

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.bytes = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes_max = held_bytes_max
        self._file: BinaryIO | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch.  Raises `Determinate` if the operating system refuses the temporary file."""
        self.bytes += batch.nbytes
        if self._writer is None and self.bytes <= self._held_bytes_max:
            self._held.append(batch)
            return
        try:
            if self._writer is None:
                self._file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - it ends with the mapping
                self._writer = pa.ipc.new_stream(self._file, batch.schema)
            self._writer.write_batch(batch)
        except OSError as error:
            raise Determinate(
                f"a result of {self.bytes} bytes has no room in {tempfile.gettempdir()}: {error}"
            ) from error

    def batches(self) -> list[pa.RecordBatch]:
        """Return all batches, in the order in which they came; once."""
        held, self._held = self._held, []
        if self._file is None or self._writer is None:
            return held
        self._writer.close()
        with self._file as file:  # the mapping keeps what has no name
            file.flush()
            mapped = pa.memory_map(f"/proc/self/fd/{file.fileno()}")
        return [*held, *pa.ipc.open_stream(mapped)]

    def close(self) -> None:
        """Drop what was gathered; nothing happens to what was returned."""
        self._held.clear()
        if self._file is not None:
            self._file.close()


class _Numbers(ArrowStreamSerializer):
    def __init__(self, take: Callable[[pa.RecordBatch], None]) -> None:
        super().__init__()
        self._take = take

    def load_stream(self, stream: IO[bytes]) -> Iterator[int]:
        for number, batch in enumerate(super().load_stream(stream)):
            self._take(batch)
            yield number


class InOrder(ArrowCollectSerializer, _Numbers):
    """Yields the numbers of the batches in the order of the result."""


def collected(rows: DataFrame, session: SparkSession, tag: str, bytes_max: int = 0) -> pa.Table:
    """Return the whole result, as ``toArrow`` does.

    ``tag``: one that no other call's jobs carry.

    Raises `InvalidUsage` if it has more than ``bytes_max`` bytes as Arrow (0: no bound): then Spark goes no further.
    """
    large = session.conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true"
    schema = to_arrow_schema(
        rows.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC", prefers_large_types=large
    )
    gathered, over = Gathered(), False

    def take(batch: pa.RecordBatch) -> None:
        nonlocal over
        if over:
            return  # what was on its way
        gathered.add(batch)
        if over := 0 < bytes_max < gathered.bytes:
            cancel_jobs(session, tag)

    tag_jobs(session, tag)
    try:
        order = _received(rows, take)
        batches = gathered.batches()
        return pa.Table.from_batches([batches[number] for number in order], None if order else schema).cast(schema)
    except Exception as error:
        if over:
            raise InvalidUsage(f"the result has more than {bytes_max} bytes: ask for fewer rows or columns") from error
        raise
    finally:
        untag_jobs(session, tag)
        gathered.close()


def _received(rows: DataFrame, take: Callable[[pa.RecordBatch], None]) -> list[int]:
    """Have the result computed, and each batch taken; return their numbers in the order of the result."""
    port, secret, server = cast("Any", rows)._jdf.collectAsArrowToPython()  # noqa: SLF001 - as ``toArrow`` does
    try:
        with _load_from_socket((port, secret), InOrder(take)) as numbers:
            return list(numbers)
    finally:
        with unwrap_spark_exception():
            server.getResult()
