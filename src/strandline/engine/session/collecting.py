"""Collecting the whole result of a query as one Arrow table, with little of it in memory; and cancelling its jobs.

Batches are taken as Spark hands them over.  Beyond `HELD_BYTES_MAX` they go to a temporary file, which the table maps:
the kernel reads its pages when they are used, and drops them when memory is short.  The file has no name, so a process
that dies leaves nothing behind, and it goes with the last buffer of the table.  (Linux only: it is mapped by its name
in ``/proc``.)

A result is one job after another, each over the next few of its partitions.  Spark computes no more before this
process has taken what a job gave, so a slow disk fills no heap.  The first job has a partition per core: running tasks
hold as much anyway, and most results have no more.  Each later job should give `HEAP_SHARE` of the heap at most, by
the size of the partitions before.  Spark refuses a job that gives more than ``spark.driver.maxResultSize``; then its
partitions are asked for one by one.

Trap: PySpark's ``toArrow`` keeps all batches until the last has come, and the JVM those that wait for this process.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Generic, TypeVar, cast

import pyarrow as pa
from pyspark.serializers import FramedSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.util import _load_from_socket

from strandline.engine.session.causes import causes
from strandline.engine.session.start import RESULT_SIZE_KEY, heap_bytes
from strandline.errors import Determinate, InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


T = TypeVar("T")

QUERIES: Final = "queries"
"""The pool of the jobs of queries (``pools.xml``)."""
POOL_KEY: Final = "spark.scheduler.pool"


# Jobs of a thread: the tags they carry, the pool they wait in, and how another thread cancels them.
def tag_jobs(session: SparkSession, tag: str) -> None:
    """Have the jobs that this thread begins carry ``tag``, if Spark still runs."""
    with suppress(Exception):  # whatever Spark cannot do now, the next job meets
        session.sparkContext.addJobTag(tag)


def untag_jobs(session: SparkSession, tag: str) -> None:
    """Have the jobs that this thread begins carry ``tag`` no longer, if Spark still runs."""
    with suppress(Exception):  # whatever Spark cannot do now, the next job meets
        session.sparkContext.removeJobTag(tag)


def cancel_jobs(session: SparkSession, tag: str) -> None:
    """Cancel the jobs that carry ``tag``, if Spark still runs."""
    with suppress(Exception):  # at worst, they come to their end
        session.sparkContext.cancelJobsWithTag(tag)


def jobs_of_queries(session: SparkSession, tag: str) -> None:
    """As `tag_jobs`, of a thread that computes for queries alone."""
    tag_jobs(session, tag)
    with suppress(Exception):
        session.sparkContext.setLocalProperty(POOL_KEY, QUERIES)


class Cancellable(Generic[T]):
    """Called, it makes ``call``, whose jobs are a group of their own; ``text`` describes them in Spark's own pages.

    ``group``: no other call's.
    """

    def __init__(self, session: SparkSession, group: str, text: str, call: Callable[[], T]) -> None:
        self._context: Any = session.sparkContext
        self._group = group
        self._text = text
        self._call = call

    def __call__(self) -> T:
        """Make the call; the jobs of one that was cancelled before fail."""
        with suppress(Exception):  # whatever Spark cannot do now, the next job meets
            self._context.setJobGroup(self._group, self._text, interruptOnCancel=True)
        try:
            return self._call()
        finally:
            with suppress(Exception):
                self._context._jsc.clearJobGroup()  # noqa: SLF001 - PySpark has no call for that

    def cancel(self) -> None:
        """Cancel the jobs of the call, with the threads of their tasks interrupted, and those that it would begin."""
        with suppress(Exception):  # at worst, they come to their end
            self._context._jsc.sc().cancelJobGroupAndFutureJobs(self._group)  # noqa: SLF001 - as above


HELD_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a result in memory before a temporary file takes the rest."""
HEAP_SHARE: Final = 16
"""A job should give at most this fraction of the heap: of eight queries at a time, half of it."""
GROWTH_MAX: Final = 4
"""A job has at most so many times the partitions of the one before: those may have been empty by chance."""
_TOO_LARGE: Final = "Job aborted due to stage failure: Total size of serialized results of "
"""How Spark's words begin for a result beyond ``spark.driver.maxResultSize``; it has no condition for that."""


class Gathered:
    """Batches of one schema: in memory, and beyond ``held_bytes_max`` in a mapped file.  One thread at a time."""

    def __init__(self, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self.bytes = 0
        self.rows = 0
        self._held: list[pa.RecordBatch] = []
        self._held_bytes_max = held_bytes_max
        self._file: BinaryIO | None = None
        self._writer: pa.RecordBatchStreamWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        """Keep a batch.  Raises `Determinate` if the operating system refuses the temporary file."""
        self.bytes += batch.nbytes
        self.rows += batch.num_rows
        if self._writer is None and self.bytes <= self._held_bytes_max:
            self._held.append(batch)
            return
        with self._room():
            if self._writer is None:
                self._file = cast("BinaryIO", tempfile.TemporaryFile())  # noqa: SIM115 - it ends with the mapping
                self._writer = pa.ipc.new_stream(self._file, batch.schema)
            self._writer.write_batch(batch)

    def batches(self) -> list[pa.RecordBatch]:
        """Return all batches, in the order in which they came; once.  Raises as `add`."""
        held, self._held = self._held, []
        if self._file is None or self._writer is None:
            return held
        with self._room(), self._file as file:  # the mapping keeps what has no name
            self._writer.close()
            file.flush()
            mapped = pa.memory_map(f"/proc/self/fd/{file.fileno()}")
        return [*held, *pa.ipc.open_stream(mapped)]

    def close(self) -> None:
        """Drop what was gathered; nothing happens to what was returned."""
        self._held.clear()
        if self._file is not None:
            with suppress(OSError):  # closing writes what it could not write before
                self._file.close()

    @contextmanager
    def _room(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise Determinate(
                f"a result of {self.bytes} bytes has no room in {tempfile.gettempdir()}: {error}"
            ) from error


class Messages(FramedSerializer):
    """Length-prefixed messages, as they are."""

    def loads(self, obj: bytes) -> bytes:
        """Return a message."""
        return obj


def collected(rows: DataFrame, session: SparkSession, tag: str, bytes_max: int = 0, rows_max: int = 0) -> pa.Table:
    """Return the whole result, as ``toArrow`` does.

    ``tag``: one that no other call's jobs carry.

    Raises:
        InvalidUsage: It has more than ``bytes_max`` bytes as Arrow (0: no bound), or ``rows_max`` rows, after which
            Spark goes no further; or a partition has more than Spark may hand over.
        Determinate: There is no room for it.
    """
    large = session.conf.get("spark.sql.execution.arrow.useLargeVarTypes") == "true"
    schema = to_arrow_schema(
        rows.schema, error_on_duplicated_field_names_in_struct=True, timezone="UTC", prefers_large_types=large
    )
    gathered = Gathered()
    tag_jobs(session, tag)
    try:
        with closing(_handed_over(rows, session)) as messages:
            for message in messages:
                gathered.add(pa.ipc.read_record_batch(pa.py_buffer(message), schema))
                if 0 < bytes_max < gathered.bytes:
                    raise InvalidUsage(f"the result has more than {bytes_max} bytes: ask for fewer rows or columns")
                if 0 < rows_max < gathered.rows:
                    raise InvalidUsage(f"the result has more than {rows_max} rows: ask for fewer, with LIMIT perhaps")
        return pa.Table.from_batches(gathered.batches(), schema)
    finally:
        untag_jobs(session, tag)
        gathered.close()


def following(partitions: int, size: int, room: int) -> int:
    """Return how many partitions the next job may have, after one of ``partitions`` that gave ``size`` bytes.

    ``room``: the bytes that a job should give at most.

    >>> following(2, 10, 1_000), following(8, 4_000, 1_000), following(8, 10**9, 1_000)
    (8, 2, 1)
    """
    return max(1, min(GROWTH_MAX * partitions, partitions * room // max(1, size)))


def _handed_over(rows: DataFrame, session: SparkSession) -> Generator[bytes, None, None]:
    """Yield the batches of the result, encoded, in its order."""
    context: Any = session.sparkContext
    batches = rows._jdf.toArrowBatchRdd().toJavaRDD()  # noqa: SLF001 - as ``toArrow`` does
    room = heap_bytes(context) // HEAP_SHARE
    begin, end, count = 0, batches.getNumPartitions(), context.defaultParallelism
    while begin < end:
        asked = list(range(begin, min(end, begin + count)))
        try:
            port, secret, server = context._jvm.PythonRDD.runJob(context._jsc.sc(), batches, asked)  # noqa: SLF001
        except Exception as error:
            if not _is_too_large(error):
                raise
            if len(asked) == 1:
                raise InvalidUsage(
                    f"a partition of the result is larger than {RESULT_SIZE_KEY}: ask for fewer rows or columns, or "
                    f"give Spark more memory (spark.driver.memory)"
                ) from error
            count = 1
            continue
        size = 0
        try:
            with _load_from_socket((port, secret), Messages()) as messages:
                for message in messages:
                    size += len(message)
                    yield message
            server.getResult()  # raises if it has sent fewer
        finally:
            context._gateway.detach(server)  # noqa: SLF001 - it holds what it sent until Python's next collection
        begin, count = begin + len(asked), following(len(asked), size, room)


def _is_too_large(error: Exception) -> bool:
    """Tell whether Spark refused what a job gave, rather than a task failed: that has a cause, and begins otherwise."""
    (first, *below) = causes(error) or (None,)
    return first is not None and not below and first.message.startswith(_TOO_LARGE)
