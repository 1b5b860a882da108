"""What is read and written of a shard, and the jobs over rows that persist itself asks for.

Rows are opaque here: persist passes `Rows` on and never looks inside.  Plain data describes what is stored (`Contents`
to read, `StageRequest` to write), so one process can make a request and another can serve it.  `RowJobs` holds only
what persist calls; the room `plane` says what else the data plane does.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NewType, Protocol

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from strandline.algebra.schema import Schema
from strandline.frontier import Frontier, as_time
from strandline.persist.shard.batch import Batch, Staged, Window

Rows = NewType("Rows", object)
"""An update frame of the engine: a collection's columns plus ``__time BIGINT`` and ``__diff BIGINT``; lazy where it can
be."""


class Half(Enum):
    """Which rows of a shard: those that are right, or those that record an error (see `algebra.schema.ERROR`)."""

    OK = "ok"
    ERR = "err"
    BOTH = "both"
    """All columns and ``__error``: for jobs that rewrite updates without evaluating them, such as compaction."""


class Contents(msgspec.Struct, frozen=True):
    """Which updates to read: those of ``batches`` with ``lower <= time < upper``; times before ``advance`` become it.

    ``schema`` is the collection's; the ERR half is read with the one column ``__error``.  ``shard`` is for messages.
    """

    shard: str
    schema: Schema
    batches: tuple[Batch, ...]
    lower: int
    upper: int
    advance: int
    half: Half = Half.OK
    net: bool = False
    """Consolidate while reading (only if all times are advanced to one): withdrawn rows do not appear at all.

    So no expression over these rows is evaluated on a row that was withdrawn.
    """
    seqno: int = 0
    """The version of the shard that this was planned from."""
    here: bool = False
    """Whether a read should bring the rows into this process, if they are few: small windows need them there."""

    def through(self, window: Window | None) -> Contents | None:
        """Return these contents restricted to ``window``; None if the window shows none of them."""
        if window is None:
            return self
        # A window moves times up to its ``advance``, so a part may store earlier times than these contents ask for.
        lower = 0 if self.lower <= window.advance else self.lower
        lower, upper = max(lower, window.lower), min(self.upper, as_time(window.upper))
        if lower >= upper or window.advance >= self.upper:
            return None
        return replace(self, lower=lower, upper=upper, advance=max(self.advance, window.advance))

    @property
    def rows(self) -> int:
        """Updates in these batches: an upper bound on the rows of a read, known without reading."""
        return sum(b.rows for b in self.batches)

    @property
    def size(self) -> int:
        """Bytes of the parts of these batches, as they are stored."""
        return sum(part.size for b in self.batches for part in b.parts)

    @property
    def plain(self) -> bool:
        """Whether every update inserts one row, so that no consolidation is needed."""
        return all(b.plain for b in self.batches)


class StageRequest(msgspec.Struct, frozen=True):
    """Where and how to write a batch.

    ``prefix`` is a fresh Blob prefix that nothing else ever uses; ``sort`` the columns to sort by before ``__time``
    (all columns when empty); ``small`` a hint that the result is likely to fit in an inline part; ``inline_bytes_max``
    how many inline bytes the shard still has room for; ``normalised`` promises that the rows need neither normalising
    nor consolidating (bulk input of a source that normalised its rows while reading and whose updates are all
    insertions).
    """

    shard: str
    schema: Schema
    lower: int
    upper: int
    prefix: str
    sort: tuple[str, ...] = ()
    small: bool = False
    inline_bytes_max: int = 0
    normalised: bool = False


class Merger(Protocol):
    """Rewrites a shard's parts: what compaction needs of the data plane."""

    async def merge(self, contents: Contents, request: StageRequest) -> Staged:
        """Rewrite ``contents`` as one batch: times advanced, equal updates added up, zeros dropped.

        Small contents need no Spark job.  The digest is the sum of the input batches' digests, because no row is hashed
        again; the counts are computed anew.  ``since`` of the result is ``contents.advance``.
        """
        ...

    async def verify(self, contents: Contents) -> int:
        """Read ``contents``, every byte of its parts, and return the sum of its diffs.

        Raises `CorruptionError` if a part is not as it was appended.
        """
        ...


class Reads(Protocol):
    """Reads what shards hold."""

    async def read(self, contents: Contents) -> Rows:
        """Return the updates (lazy): columns of the half, ``__time``, ``__diff``; not consolidated.

        Raises `CorruptionError` if a part is missing or its footer is not the one that was appended.
        """
        ...


class RowJobs(Merger, Reads, Protocol):
    """The jobs over rows that persist needs: of Python's rows into batches, and back.

    Calls are async; the work runs where the rows are.  Cancelling a call does not undo it.
    """

    async def local(self, table: pa.Table, schema: Schema, *, time: int, diff: int) -> Rows:
        """Return Python's rows as an update frame, with columns taken by name and cast to ``schema``.

        Raises `InvalidUsage` naming the column that is missing, unknown or of a type that cannot be cast.
        """
        ...

    async def union(self, schema: Schema, frames: Sequence[Rows], *, advance: int, negate: Sequence[bool]) -> Rows:
        """Return the union of the frames' updates (lazy), times advanced to ``advance``, negated where ``negate`` says.

        A frame of the ERR half gets NULLs for the other columns; the result has ``__error`` if any frame has it.
        """
        ...

    async def stage(self, rows: Rows, request: StageRequest) -> Staged:
        """Normalise, consolidate and write ``rows`` in at most two jobs; the result is durable and in no shard yet.

        A frame may have the column ``__error``; without it, all rows belong to the ok half.
        """
        ...

    async def trim(self, staged: Staged, schema: Schema, lower: Frontier, upper: Frontier) -> Staged:
        """Return ``staged`` restricted to ``[lower, upper)``, with sums counted anew; no part is rewritten.

        Raises `InvalidUsage` if the bounds are not within the batch's own.
        """
        ...

    async def discard(self, staged: Staged) -> None:
        """Delete the parts of a batch that was definitely refused.  Idempotent."""
        ...

    async def collect(self, rows: Rows, bytes_max: int = 0, rows_max: int = 0) -> pa.Table:
        """Run the job and return its whole result; most of a large one may be in a temporary file that it maps.

        Raises `InvalidUsage` if it has more than ``bytes_max`` bytes as Arrow (0: no bound), or more than ``rows_max``
        rows, and was not here already.
        """
        ...
