"""Answers out of the data plane: contents and frames as counts, samples, tables and batches of changes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

from strandline.algebra.schema import DIFF, Schema
from strandline.persist.handles.contents import Contents, Reads, Rows

NET_BATCH_ROWS: Final = 10_000
NET_BATCH_BYTES: Final = 8 * 1024 * 1024
"""The most rows and (about) the most bytes of one batch of `Reading.net`."""
SIGNIFICANT_DIGITS: Final = 12
"""Floats that were computed twice are equal when they agree to so many decimal digits: Spark adds them in no fixed
order."""
EXAMPLE_CHARS_MAX: Final = 300
"""How long the text of one row may be in a message."""


@dataclass(frozen=True, slots=True)
class Differences:
    """The net updates of a frame: how many rows are missing and extra, and a sample of them with ``__diff``."""

    missing: int
    extra: int
    sample: pa.Table

    @property
    def example(self) -> str:
        """The first row of the sample as text, for a message; empty if there is none."""
        return example(self.sample)


@dataclass(frozen=True, slots=True)
class Errors:
    """The sum of an error half: how many errors, and the first of them in the order of their text."""

    count: int
    sample: tuple[str, ...] = ()


def example(sample: pa.Table) -> str:
    """Return the first row of a sample of differences as text; empty if there is none.

    >>> example(pa.table({"k": ["a"], "__diff": [-2]})), example(pa.table({"k": [], "__diff": []}))
    ("{'k': 'a'} (missing)", '')
    """
    for row in sample.slice(0, 1).to_pylist():
        sign = "missing" if row.pop(DIFF) < 0 else "too many"
        text = str(row)
        shown = text if len(text) <= EXAMPLE_CHARS_MAX else f"{text[:EXAMPLE_CHARS_MAX]}…"
        return f"{shown} ({sign})"
    return ""


class Counting(Reads, Protocol):
    """Reads what is stored, and counts errors: what asks only whether a collection may be read."""

    async def errors(self, rows: Rows, *, of: str | None = None) -> Errors:
        """Count the errors in a frame of the ERR half, ignoring times; ``of``: only those that name this collection."""
        ...

    async def weights(self, rows: Rows) -> Mapping[int, int]:
        """Return Σ diff at each time of the updates, ascending; for small frames."""
        ...


class Reading(Counting, Protocol):
    """Reads what is stored, and sums up frames: what delivers, counts and compares."""

    async def times(self, contents: Contents) -> Mapping[int, int]:
        """Return how many updates each time has, ascending: from statistics if they suffice, else by a small job."""
        ...

    def net(
        self, contents: Contents, *, key: Sequence[str] = (), times: bool = False
    ) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the net changes in bounded batches: the columns, ``__diff``; each row once, its diff never 0.

        Rows that agree in ``key`` come one after the other, also across batches.  ``times``: keep the times; a column
        ``__time`` comes before ``__diff``, and earlier times come first: of each key, if there is one, and what of it
        has one time is in an order that is the same each time.  Raises as `read`.
        """
        ...

    async def multiset(self, rows: Rows) -> Rows:
        """Return the plain rows (no time, no diff) that the updates sum up to, each as often as its count.

        Raises (when the result is used) an error that names the row if a count is negative.
        """
        ...

    async def differences(self, rows: Rows, schema: Schema, *, significant: int | None = None) -> Differences:
        """Return the net updates, ignoring times; floats are compared to ``significant`` digits if given."""
        ...
