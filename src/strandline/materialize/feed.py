"""Feed: a collection as its materialization sees it, a stream of net changes over windows of time.

A window comes in batches of bounded size, so that the first sync of a large collection never lies in memory as a whole.

Source: design page "materialize" (documents and reductions; scale and shape).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from strandline.algebra.schema import Schema
from strandline.frontier.antichain import Frontier

Batches: TypeAlias = AsyncGenerator[pa.RecordBatch, None]
"""Batches of bounded size; to be closed (`aclosing`) by the reader that does not want all of them."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one window, to be read once.

    ``about`` is how many updates they are made of: they are as many rows or fewer.
    """

    about: int
    batches: Batches


class Feed(Protocol):
    """One bound collection.

    Definite: the same window always has the same changes, whenever and by whichever process it is read.
    """

    name: str
    schema: Schema

    async def upper(self) -> Frontier:
        """Return the time before which every window can be read.

        This is the one place where the runtime asks how far it may go: a feed that must wait (before a time with
        errors, say) returns the time at which it waits, and the task follows up to there.
        """
        ...

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """Return the changes over ``[lower, upper)``: the schema's columns, in order, plus ``__diff`` bigint.

        Consolidated: a row is there at most once, and its diff (a count, never so many copies) is not 0.
        ``lower == 0``: all contents before ``upper``.

        Args:
            lower: the first time of the window.
            upper: the first time after it.
            key: rows that agree in these columns come one after the other, also across batches.
            times: tell the times apart: a column ``__time`` bigint stands before ``__diff``, a row is there at most
                once per time, and earlier times come first.  Else they are summed out: the net changes.

        Raises (now, or when the batches are read):
            AsOfError: the collection no longer tells times before ``lower`` from later ones (it was not held).
            CollectionError: a row is there a negative number of times, or its error half is not empty in the window.
        """
        ...

    async def hold(self, frontier: Frontier) -> None:
        """Move this task's critical since hold to ``frontier``, which is never past what is durably committed."""
        ...
