"""A `Feed` over a Python list of changes, which enforces its since as a shard does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from strandline.algebra.schema import DIFF, TIME, Schema
from strandline.errors import AsOfError
from strandline.frontier import MINIMUM, Frontier, join
from strandline.materialize.feed import Batches, Changes
from strandline.materialize.protocol.task import canonical


class ListFeed:
    """A collection whose changes a test writes one by one.

    It is compacted as far as it is held: a window that begins at or before its since, and not at 0, is refused.
    A batch has ``batch_rows`` rows: few, so that the changes of one key lie in two of them.
    """

    def __init__(self, name: str, schema: Schema, types: Mapping[str, pa.DataType], batch_rows: int = 1) -> None:
        self.name = name
        self.schema = schema
        self.since = MINIMUM
        self.waits = ""
        self._types = types
        self._batch_rows = batch_rows
        self._upper = MINIMUM
        self._changes: list[tuple[dict[str, Any], int, int]] = []

    def write(self, time: int, *changes: tuple[dict[str, Any], int]) -> None:
        """Add ``(row, diff)`` changes at ``time``, which the upper must not have passed."""
        assert self._upper.beyond(time), f"{time} is before {self._upper}"
        self._changes.extend((row, time, diff) for row, diff in changes)

    def seal(self, upper: Frontier) -> None:
        """Move the upper."""
        self._upper = upper

    def before(self, time: int) -> list[tuple[dict[str, Any], int]]:
        """Return the ``(row, diff)`` of all changes before ``time``."""
        return [(row, diff) for row, at, diff in self._changes if at < time]

    def timed_before(self, time: int) -> list[tuple[dict[str, Any], int, int]]:
        """Return the ``(row, time, diff)`` of all changes before ``time``."""
        return [(row, at, diff) for row, at, diff in self._changes if at < time]

    async def upper(self) -> Frontier:
        """Return the upper."""
        return self._upper

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """Return the changes over the window."""
        if lower and not self.since <= Frontier(lower - 1):
            raise AsOfError(f"{self.name!r} has compacted the changes from {lower} on: its since is {self.since}")
        assert not self._upper.beyond(upper - 1), f"{upper} is not known yet: the upper is {self._upper}"
        counts: Counter[tuple[int, str]] = Counter()
        rows: dict[str, dict[str, Any]] = {}
        inside = [change for change in self._changes if lower <= change[1] < upper]
        for row, time, diff in inside:
            rows[canonical(row)] = row
            counts[time if times else 0, canonical(row)] += diff
        net = [(rows[each], time, count) for (time, each), count in counts.items() if count]
        net.sort(key=lambda each: ([canonical(each[0][name]) for name in key], each[1], canonical(each[0])))
        columns = {name: pa.array([row[name] for row, _, _ in net], self._types[name]) for name in self.schema.names}
        if times:
            columns[TIME] = pa.array([time for _, time, _ in net], pa.int64())
        table = pa.table({**columns, DIFF: pa.array([count for _, _, count in net], pa.int64())})
        return Changes(len(inside), self._batches(table))

    async def _batches(self, table: pa.Table) -> Batches:
        for batch in table.combine_chunks().to_batches(self._batch_rows):
            yield batch

    async def hold(self, frontier: Frontier) -> None:
        """Move the since up to the hold."""
        self.since = join([self.since, frontier])
