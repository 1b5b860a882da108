"""Feed: a collection as its materialization sees it, a stream of net changes over windows of time.

A window comes in batches of bounded size, so that the first sync of a large collection never has to fit in memory.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import pyarrow as pa

from strandline.algebra.schema import Schema
from strandline.frontier import EMPTY, Frontier, as_time, meet

Batches: TypeAlias = AsyncGenerator[pa.RecordBatch, None]
"""Batches of bounded size; a reader that stops early must close the iterator (`aclosing`)."""


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one window, which can be read once.

    ``about`` is the number of updates behind them: an upper bound on their rows.
    """

    about: int
    batches: Batches


class Feed(Protocol):
    """One bound collection.

    A feed is definite: the same window always has the same changes, in every process.
    """

    name: str
    schema: Schema

    @property
    def waits(self) -> str:
        """Why the last `upper` was less than the collection's own upper; empty if it was not."""
        ...

    async def upper(self) -> Frontier:
        """Return the time before which every window can be read.

        The runtime learns only here how far it may go: a feed that must wait (for example before a time with errors)
        returns the time at which it waits, and the task follows up to that time.
        """
        ...

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """Return the changes over ``[lower, upper)``: the schema's columns, in order, plus ``__diff`` bigint.

        The changes are consolidated: each row occurs at most once, and its diff is not 0.
        ``lower == 0``: all contents before ``upper``.

        Args:
            lower: the first time of the window.
            upper: the first time after it.
            key: rows with equal values in these columns are adjacent, also across batches.
            times: keep the times: a column ``__time`` bigint comes before ``__diff``, each row occurs at most once per
                time, and earlier times come first: of each key, if there is one, and what of it has one time is in an
                order that is the same each time.  Otherwise the result is the net changes.

        Raises (now, or when the batches are read):
            AsOfError: compaction has merged times before ``lower`` with later ones (no hold kept them).
            CollectionError: a row has a negative count, or the error half is not empty in the window.
        """
        ...

    async def hold(self, frontier: Frontier) -> None:
        """Move this task's critical hold to ``frontier``, which is never past the durable commits."""
        ...


class NoRows:
    """The feed of a table that is emptied: a collection that never has a row, and is complete."""

    def __init__(self, name: str, schema: Schema) -> None:
        self.name = name
        self.schema = schema
        self.waits = ""

    async def upper(self) -> Frontier:
        """Return the empty frontier: nothing will come."""
        return EMPTY

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """Return no change."""
        return Changes(0, _nothing())

    async def hold(self, frontier: Frontier) -> None:
        """Do nothing: there is no history to hold."""


async def _nothing() -> Batches:
    none: tuple[pa.RecordBatch, ...] = ()
    for batch in none:
        yield batch


async def complete(feeds: Iterable[Feed]) -> int:
    """Return the time before which every window of all ``feeds`` can be read; `TIME_MAX` if they have ended."""
    return as_time(meet([await feed.upper() for feed in feeds]))
