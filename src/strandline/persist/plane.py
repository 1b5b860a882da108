"""The data plane, as persist and everything above see it: rows are opaque, jobs are asked for by name.

Python decides, the JVM moves rows: whoever holds `Rows` may hand them on, never look inside.  `Engine` is the only way
to Spark. What lies in a store is described by plain data (`Contents` to read, `Staged` written), so a request can be
made by one process and served by another.

Source: design pages "persist" (handles, stage) and "the house planned" (where things meet).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NewType, Protocol

import pyarrow as pa

from strandline.algebra.nodes import Node
from strandline.algebra.schema import Schema
from strandline.frontier.antichain import Frontier, as_time
from strandline.persist.batch import Batch, Staged, Window

Rows = NewType("Rows", object)
"""An update frame of the engine: a collection's columns plus ``__time BIGINT`` and ``__diff BIGINT``; lazy where it can
be."""

NET_BATCH_ROWS: Final = 10_000
NET_BATCH_BYTES: Final = 8 * 1024 * 1024
"""What a batch of `Engine.net` has at most: so many rows, and about so many bytes."""


class Half(Enum):
    """Which rows of a shard: those that are right, or those that record an error (see `algebra.schema.ERROR`)."""

    OK = "ok"
    ERR = "err"
    BOTH = "both"
    """All columns and ``__error``: for whoever rewrites updates and does not look at them."""


@dataclass(frozen=True, slots=True)
class Contents:
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
    """Add up what is read (only where all times are advanced to one): a withdrawn row is then not there at all.

    Nothing that is computed from what was read is evaluated on a row that was withdrawn.
    """
    seqno: int = 0
    """The version of the shard that this was planned from."""

    def through(self, window: Window | None) -> Contents | None:
        """Return these contents as they are to be read from parts that show through ``window``; None: nothing shows."""
        if window is None:
            return self
        # Moved times count, and what is moved into the contents' times lies before them as it is stored.
        lower = 0 if self.lower <= window.advance else self.lower
        lower, upper = max(lower, window.lower), min(self.upper, as_time(window.upper))
        if lower >= upper or window.advance >= self.upper:
            return None
        return replace(self, lower=lower, upper=upper, advance=max(self.advance, window.advance))

    @property
    def rows(self) -> int:
        """Updates in these batches: an upper bound on what is read, known without reading."""
        return sum(b.rows for b in self.batches)

    @property
    def size(self) -> int:
        """Bytes of the parts of these batches, as they are stored."""
        return sum(part.size for b in self.batches for part in b.parts)

    @property
    def plain(self) -> bool:
        """Whether every update is one inserted row, so that nothing needs to be consolidated."""
        return all(b.plain for b in self.batches)


@dataclass(frozen=True, slots=True)
class StageRequest:
    """Where and how to write a batch.

    ``prefix`` is a fresh Blob prefix that nothing else ever uses; ``sort`` the columns to sort by before ``__time``
    (all columns when empty); ``small`` a hint that the result is likely to fit in an inline part; ``inline_bytes_max``
    how many inline bytes the shard still has room for; ``normalised`` promises that the rows need neither normalising
    nor consolidating (bulk input of a source that did the former at its door and whose updates are all insertions).
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
    """What is left of an update frame: how many rows too few and too many, and a few of them with their ``__diff``."""

    missing: int
    extra: int
    sample: pa.Table


@dataclass(frozen=True, slots=True)
class Errors:
    """What an error half sums up to: how many errors, and the first of them in the order of their text."""

    count: int
    sample: tuple[str, ...] = ()


class Merger(Protocol):
    """Whoever can rewrite a shard's parts: the part of `Engine` that compaction needs."""

    async def merge(self, contents: Contents, request: StageRequest) -> Staged:
        """Rewrite all that ``contents`` shows as one batch: times advanced, equal updates added up, zeros dropped.

        Small ones without a job.  The digest is that of the batches read, since nothing is hashed again; the sums are
        counted anew.  ``since`` of what is returned is ``contents.advance``.
        """
        ...

    async def verify(self, contents: Contents) -> int:
        """Read all that ``contents`` shows, every byte of its parts, and return the sum of its diffs.

        Raises `CorruptionError` if a part is not as it was appended.
        """
        ...


class Engine(Merger, Protocol):
    """Rows in, rows out.  Calls are async; the work runs on Spark.  Cancelling a call does not undo it."""

    async def read(self, contents: Contents) -> Rows:
        """Return the updates (lazy): columns of the half, ``__time``, ``__diff``; not consolidated.

        Raises `CorruptionError` if a part is missing or its footer is not the one that was appended.
        """
        ...

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """Return the updates of ``node`` (lazy), whose `Get` leaves name ``frames``; not consolidated.

        The times that ``node`` names count from ``origin``, which no update of ``frames`` is before.  Trap: a plan that
        names absolute times is compiled anew at every step.
        """
        ...

    async def union(self, schema: Schema, frames: Sequence[Rows], *, advance: int, negate: Sequence[bool]) -> Rows:
        """Return all frames' updates in one (lazy), times advanced to ``advance``, those of a negated frame negated.

        A frame of the ERR half is filled up with NULLs; the result has ``__error`` if some frame has.
        """
        ...

    async def stage(self, rows: Rows, request: StageRequest) -> Staged:
        """Normalise, consolidate, and write ``rows`` (one or two jobs); the result is durable and in no shard yet.

        A frame may have the column ``__error``; else all rows are of the ok half.
        """
        ...

    async def trim(self, staged: Staged, schema: Schema, lower: Frontier, upper: Frontier) -> Staged:
        """Return ``staged`` as it shows in ``[lower, upper)`` alone, with sums counted anew; no part is rewritten.

        Raises `InvalidUsage` if the bounds are not within the batch's own.
        """
        ...

    async def discard(self, staged: Staged) -> None:
        """Delete the parts of a batch that was definitely refused.  Idempotent."""
        ...

    async def multiset(self, rows: Rows, schema: Schema) -> Rows:
        """Return the plain rows (no time, no diff) that the updates sum up to, each as often as its count.

        Raises (when the result is used) an error that names the row if a count is negative.
        """
        ...

    async def collect(self, rows: Rows) -> pa.Table:
        """Run the job and return all of it: only for what is known to be small."""
        ...

    async def local(self, table: pa.Table, schema: Schema, *, time: int, diff: int) -> Rows:
        """Return rows that Python holds as an update frame, columns taken by name and cast to ``schema``.

        Raises `InvalidUsage` naming the column that is missing, unknown or of a type that cannot be cast.
        """
        ...

    async def query(self, sql: str, relations: Mapping[str, tuple[Schema, Rows]], *, time: int) -> tuple[Schema, Rows]:
        """Return plain Spark's answer to ``sql`` over the multisets of ``relations``: insertions at ``time`` (lazy).

        Raises `DefinitionError` if Spark refuses the text.
        """
        ...

    async def times(self, contents: Contents) -> tuple[int, ...]:
        """Return the distinct times of the updates, ascending: from statistics where they tell, else by a small job."""
        ...

    def net(
        self, contents: Contents, *, key: Sequence[str] = (), times: bool = False
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the net changes in bounded batches: the columns, ``__diff``; each row once, its diff never 0.

        Rows that agree in ``key`` come one after the other, also across batches.  ``times``: the times are not summed
        out; a column ``__time`` stands before ``__diff``, and earlier times come first.  Raises as `read`.
        """
        ...

    async def errors(self, rows: Rows, *, of: str | None = None) -> Errors:
        """Count the errors in a frame of the ERR half, times summed out; ``of``: those alone that name a collection."""
        ...

    async def cancel(self, rows: Rows, held: Rows, *, time: int) -> Rows:
        """Return ``rows``, all at ``time``, less the errors that cancel one another or one in ``held`` (lazy).

        An error cancels the error of the same record taken back: `algebra.undecoded` says which do.
        """
        ...

    async def weights(self, rows: Rows) -> Mapping[int, int]:
        """Return Σ diff at each time of the updates, ascending; for what is small."""
        ...

    async def restrict(self, rows: Rows, to: Rows, schema: Schema) -> Rows:
        """Return those updates of ``rows`` whose row occurs in ``to`` (lazy), and perhaps some others."""
        ...

    async def differences(self, rows: Rows, schema: Schema, *, significant: int | None = None) -> Differences:
        """Return what the updates do not cancel to, times ignored; floats to ``significant`` digits if given."""
        ...
