"""The data plane, as persist and the layers above see it: rows are opaque, and each job is one named call.

Python decides, the JVM moves rows: a caller may pass `Rows` on but never look inside.  `Engine` is the only way to
Spark.  Plain data describes what is stored (`Contents` to read, `Staged` once written), so one process can make a
request and another can serve it.

Long because the calls of the one way to Spark are declared in one place.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Final, NewType, Protocol

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from strandline.algebra.conditions import Condition
from strandline.algebra.first import First
from strandline.algebra.nodes import Node
from strandline.algebra.schema import Schema
from strandline.frontier.antichain import Frontier, as_time
from strandline.persist.shard.batch import Batch, Staged, Window

Rows = NewType("Rows", object)
"""An update frame of the engine: a collection's columns plus ``__time BIGINT`` and ``__diff BIGINT``; lazy where it can
be."""

NET_BATCH_ROWS: Final = 10_000
NET_BATCH_BYTES: Final = 8 * 1024 * 1024
"""The most rows and (about) the most bytes of one batch of `Engine.net`."""


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


@dataclass(frozen=True, slots=True)
class Differences:
    """The net updates of a frame: how many rows are missing and extra, and a sample of them with ``__diff``."""

    missing: int
    extra: int
    sample: pa.Table


@dataclass(frozen=True, slots=True)
class Errors:
    """The sum of an error half: how many errors, and the first of them in the order of their text."""

    count: int
    sample: tuple[str, ...] = ()


class Merger(Protocol):
    """Rewrites a shard's parts: the part of `Engine` that compaction needs."""

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


class Aside(Protocol):
    """Rows that come from outside, table by table; see `Engine.aside`."""

    def add(self, table: pa.Table) -> None:
        """Put rows behind what is there, as `Engine.local` takes them.  Blocks; for one thread at a time.

        Raises:
            InvalidUsage: a column is missing, unknown, or cannot be cast; the message names it.
            Determinate: the machine refuses a temporary file.
        """
        ...

    def rows(self) -> Rows:
        """Return all of them as insertions at the time that was asked for; nothing is added after it."""
        ...


class Engine(Merger, Protocol):
    """Runs jobs over rows.  Calls are async; the work runs on Spark.  Cancelling a call does not undo it."""

    async def read(self, contents: Contents) -> Rows:
        """Return the updates (lazy): columns of the half, ``__time``, ``__diff``; not consolidated.

        Raises `CorruptionError` if a part is missing or its footer is not the one that was appended.
        """
        ...

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """Return the updates of ``node`` (lazy), whose `Get` leaves name ``frames``; not consolidated.

        The times that ``node`` names are relative to ``origin``, and no update of ``frames`` is before ``origin``.
        Trap: a plan that names absolute times is compiled anew at every step.
        """
        ...

    async def derived(self, node: Node, drafted: Mapping[str, tuple[Schema, Rows]]) -> Rows | None:
        """Return the updates of ``node`` (lazy) over frames that are about to be staged, as they will then be read.

        ``node`` names no times.  None: it is better, or only possible, to read them once they are staged.
        """
        ...

    async def union(self, schema: Schema, frames: Sequence[Rows], *, advance: int, negate: Sequence[bool]) -> Rows:
        """Return the union of the frames' updates (lazy), times advanced to ``advance``, negated where ``negate`` says.

        A frame of the ERR half gets NULLs for the other columns; the result has ``__error`` if any frame has it.
        """
        ...

    async def stage(self, rows: Rows, request: StageRequest) -> Staged:
        """Normalise, consolidate and write ``rows`` (one or two jobs); the result is durable and in no shard yet.

        A frame may have the column ``__error``; without it, all rows belong to the ok half.
        """
        ...

    async def stage_many(self, asked: Sequence[tuple[Rows, StageRequest]]) -> list[Staged | BaseException]:
        """Do each `stage` as if alone, in as few jobs as possible; what one of them raises is its outcome."""
        ...

    def planned(self, shard: str) -> str:
        """Return how the rows of a shard were planned that were staged last: prepared, or why not; for people."""
        ...

    async def trim(self, staged: Staged, schema: Schema, lower: Frontier, upper: Frontier) -> Staged:
        """Return ``staged`` restricted to ``[lower, upper)``, with sums counted anew; no part is rewritten.

        Raises `InvalidUsage` if the bounds are not within the batch's own.
        """
        ...

    async def discard(self, staged: Staged) -> None:
        """Delete the parts of a batch that was definitely refused.  Idempotent."""
        ...

    async def multiset(self, rows: Rows) -> Rows:
        """Return the plain rows (no time, no diff) that the updates sum up to, each as often as its count.

        Raises (when the result is used) an error that names the row if a count is negative.
        """
        ...

    async def collect(self, rows: Rows) -> pa.Table:
        """Run the job and return its whole result: only for results that are known to be small."""
        ...

    async def local(self, table: pa.Table, schema: Schema, *, time: int, diff: int) -> Rows:
        """Return Python's rows as an update frame, with columns taken by name and cast to ``schema``.

        Raises `InvalidUsage` naming the column that is missing, unknown or of a type that cannot be cast.
        """
        ...

    def aside(self, schema: Schema, *, time: int) -> AbstractContextManager[Aside]:
        """Return a place for rows that come from outside in many tables, whose memory does not grow with them.

        Its rows can be used until it is closed.
        """
        ...

    def arrivals(self, schema: Schema, *, keyed: bool) -> AbstractContextManager[Aside]:
        """Return a place as `aside` does, for what a reader made of its records: each has its own time and diff.

        A table has the columns of ``schema``, normalised, ``__time`` and ``__diff``; ``keyed``: those of
        `algebra.keyed` too.  ``__error`` and `KEPT` may be left out.
        """
        ...

    async def query(self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], *, time: int) -> tuple[Schema, Rows]:
        """Return plain Spark's result of ``sql`` over the multisets of ``relations``: insertions at ``time`` (lazy).

        Raises `DefinitionError` if Spark refuses the text.
        """
        ...

    async def times(self, contents: Contents) -> Mapping[int, int]:
        """Return how many updates each time has, ascending: from statistics if they suffice, else by a small job."""
        ...

    def net(
        self, contents: Contents, *, key: Sequence[str] = (), times: bool = False
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the net changes in bounded batches: the columns, ``__diff``; each row once, its diff never 0.

        Rows that agree in ``key`` come one after the other, also across batches.  ``times``: keep the times; a column
        ``__time`` comes before ``__diff``, and earlier times come first.  Raises as `read`.
        """
        ...

    async def errors(self, rows: Rows, *, of: str | None = None) -> Errors:
        """Count the errors in a frame of the ERR half, ignoring times; ``of``: only those that name this collection."""
        ...

    async def cancel(self, rows: Rows, held: Rows, *, time: int) -> Rows:
        """Return ``rows``, all at ``time``, less the errors that cancel one another or one in ``held`` (lazy).

        An error cancels the error of the same record taken back: `algebra.undecoded` says which do.
        """
        ...

    async def keyed(
        self, records: Rows, held: Rows | None, errors: Rows | None, schema: Schema, key: Sequence[str]
    ) -> Rows:
        """Return the updates that keyed ``records`` make (lazy; equal ones of both signs may remain).

        They are exact at every time: of each key and time the last record counts (`algebra.keyed`), what was there
        before it goes, and what it says comes.  ``held``: the updates before all records, of these keys and perhaps
        others; ``errors``: those of the err half.  There is ``__error`` if there may be errors.
        """
        ...

    async def weights(self, rows: Rows) -> Mapping[int, int]:
        """Return Σ diff at each time of the updates, ascending; for small frames."""
        ...

    async def lookup(
        self,
        old: Contents,
        columns: Sequence[str],
        keys: Sequence[tuple[Rows, Sequence[str]]],
        *,
        nulls: bool,
        first: tuple[First, Rows] | None = None,
        span: bool = False,
        read: Collection[str] | None = None,
    ) -> Rows | None:
        """Return the rows of ``old`` whose ``columns`` have the values that some row of ``keys`` has in its columns.

        Without columns these are all rows, or if there are ``keys`` but no row in them, none.  Perhaps more rows are
        returned, never fewer, and none that was withdrawn; at ``old.advance``.  ``nulls``: NULL equals NULL; else it
        equals nothing.  ``read``: only these columns are returned, ``columns`` among them.  ``old`` begins at time 0.
        None: reading all of it is the better way, or the only one.

        ``first``: of the rows with one key (all rows, without columns) only the first matter, after any part of these
        updates has been added to ``old``.  So as many more are returned as the updates take away.

        ``span``: returns the rows whose one column has a value from the least to the greatest of the keys' values, of
        an exact type.  None if one of these is NULL, or if the diffs of ``keys`` are not 0 in all at each time.

        Raises `CorruptionError` as `read` does.
        """
        ...

    async def prune(self, old: Contents, column: str, keys: Sequence[tuple[Rows, str]], *, nulls: bool) -> Rows | None:
        """Return the rows of ``old`` whose ``column`` is between the least and the greatest value of ``keys`` (lazy).

        Those are values in a column of each.  ``nulls``: the rows with NULL too; they matter if a key is NULL.  Perhaps
        more are returned, never fewer.  None: reading all of ``old`` is as good, or the only way.  Raises
        `CorruptionError` as `read` does.
        """
        ...

    async def narrowed(self, rows: Rows, conditions: Sequence[Condition]) -> Rows:
        """Return ``rows`` without those for which one of ``conditions`` is not true; some of these may remain."""
        ...

    async def restrict(self, rows: Rows, to: Rows, schema: Schema) -> Rows:
        """Return the updates of ``rows`` whose row occurs in ``to`` (lazy); the result may contain others too."""
        ...

    async def differences(self, rows: Rows, schema: Schema, *, significant: int | None = None) -> Differences:
        """Return the net updates, ignoring times; floats are compared to ``significant`` digits if given."""
        ...
