"""Rows into shards: places for rows that come from outside, and batches that are written together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import pyarrow as pa

from strandline.algebra.schema import Schema
from strandline.persist.handles.contents import RowJobs, Rows, StageRequest
from strandline.persist.shard.batch import Staged


class Aside(Protocol):
    """Rows that come from outside, table by table; see `Staging.aside`."""

    def add(self, table: pa.Table) -> None:
        """Put rows behind what is there, as `RowJobs.local` takes them.  Blocks; for one thread at a time.

        Raises:
            InvalidUsage: a column is missing, unknown, or cannot be cast; the message names it.
            Determinate: the machine refuses a temporary file.
        """
        ...

    def rows(self) -> Rows:
        """Return all of them as insertions at the time that was asked for; nothing is added after it."""
        ...


class Staging(RowJobs, Protocol):
    """Takes rows in and writes them: what sources and the stages of a wave need."""

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

    async def stage_many(self, asked: Sequence[tuple[Rows, StageRequest]]) -> list[Staged | BaseException]:
        """Do each `stage` as if alone, in as few jobs as possible; what one of them raises is its outcome."""
        ...

    def planned(self, shard: str) -> str:
        """Return how the rows of a shard were planned that were staged last: prepared, or why not; for people."""
        ...
