"""Reading a frame: the shares that Spark's planner is given, and the rows that its tasks read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from strandline.algebra.schema import DIFF
from strandline.datasource.options import Place
from strandline.datasource.pinned import Pinned, shares_of
from strandline.datasource.rows import updates
from strandline.datasource.rows.scan import Look, given
from strandline.datasource.rows.shares import Share, decode, encode
from strandline.errors import CorruptionError, StrandlineError
from strandline.wiring.stores import parts_of


class FrameReader(DataSourceReader):
    """Reads what is pinned.  Spark pickles it for its tasks: it holds options and a schema, and nothing open.

    It takes no filters from Spark.  Spark 4.3 keeps in the relation what a source made of the filters of one query, and
    a later query of the same frame or view that has none reads that again, so rows would be missing from it.
    """

    def __init__(self, pinned: Pinned, schema: StructType) -> None:
        self._pinned = pinned
        self._look = pinned.look
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return a partition for each task, at least one."""
        try:
            return as_partitions(shares_of(self._pinned))
        except StrandlineError as error:  # Spark shows the whole traceback, and the sentence is what counts
            raise error.with_traceback(None) from None

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task.  Raises as `read`; the message says what to do where a plan is too old."""
        try:
            yield from read(self._pinned.place, self._look, self._schema, partition)
        except CorruptionError as error:
            raise CorruptionError(
                f"{error}; if this frame was first used more than a day ago, and nothing held it since (a temporary "
                "view of SQL or Scala, a Connect client elsewhere), load it again: what Spark keeps of it names parts "
                "that were replaced and deleted"
            ) from error


def as_partitions(shares: Sequence[Share]) -> list[InputPartition]:
    """Return shares as Spark's partitions: bytes of our own encoding, the only thing of them that Spark pickles."""
    return [InputPartition(encode(share)) for share in shares]


def read(place: Place, look: Look, schema: StructType, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, which reads parts from Blob and opens nothing else.

    Raises `CorruptionError` for a part that is missing or damaged, `CollectionError` for a row with a negative count.
    """
    if partition.value is None:  # Spark makes such a partition where there is none
        return
    kinds = to_arrow_schema(schema, timezone="UTC")
    with ExitStack() as opened:
        parts = parts_of(place.location, dict(place.storage), opened)
        for table in given(parts, decode(partition.value), look):
            for rows in [table] if look.times else _repeated(table):
                for batch in rows.cast(kinds).combine_chunks().to_batches(updates.BATCH_ROWS):
                    if batch.num_rows:
                        yield batch


def _repeated(counted: pa.Table) -> Iterator[pa.Table]:
    """Yield each row as often as it is there."""
    if pc.all(pc.equal(counted[DIFF], 1)).as_py() is not False:
        yield counted.drop_columns([DIFF])
    else:
        yield from updates.copies(counted)
