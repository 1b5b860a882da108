"""Sharing: the feeds of a task that has splits.  Each split sees the rows whose key hash is in its range.

The splits stand at one time when a round begins, so what changed since is read once for all of them, and put aside for
each (`Shared.read`).  A split that must read another window, after a failure, reads it by itself.

Trap: what a split may forget, the others may need.  The hold follows the split that is furthest behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import aclosing, closing

import pyarrow as pa

from strandline.extras import FLOW, require
from strandline.frontier.antichain import Frontier
from strandline.materialize.feed import Batches, Changes, Feed
from strandline.materialize.protocol.task import Binding, KeyRange
from strandline.materialize.spool import Spool


class Shared:
    """One feed, of which each of ``ranges`` has a part.  Not for concurrent use, but by its parts.

    Raises `ConfigError` if the library that hashes keys is not installed.
    """

    def __init__(self, feed: Feed, binding: Binding, ranges: Sequence[KeyRange]) -> None:
        require("a materialization with splits", (FLOW,))
        self.feed = feed
        self._binding = binding
        self._ranges = tuple(ranges)
        self._aside: dict[KeyRange, tuple[int, int, Spool]] = {}
        self._holds: dict[KeyRange, Frontier] = {}

    async def read(self, lower: int, upper: int) -> None:
        """Read a window, and put the changes of each part aside.  Raises as `Feed.changes`."""
        self.close()
        changes = await self.feed.changes(lower, upper, key=self._binding.key, times=self._binding.by_time)
        self._aside = {each: (lower, upper, Spool()) for each in self._ranges}
        async with aclosing(changes.batches) as batches:
            async for batch in batches:
                for range_, rows in self.parted(batch, self._ranges):
                    self._aside[range_][2].add(rows)

    def parted(self, batch: pa.RecordBatch, ranges: Iterable[KeyRange]) -> list[tuple[KeyRange, pa.Table]]:
        """Return the rows of a batch that belong to each range; nothing for a range that has none."""
        from strandline.materialize.wire.hashing import key_hashes, within

        rows = pa.Table.from_batches([batch])
        hashes = key_hashes([rows[name] for name in self._binding.key or self._binding.schema.names])
        parts = [(each, rows.filter(within(each, hashes))) for each in ranges]
        return [(each, part) for each, part in parts if part.num_rows]

    def taken(self, range_: KeyRange, lower: int, upper: int) -> Spool | None:
        """Return the spool of a part, which its reader closes; None: another window was put aside."""
        begin, end, spool = self._aside.get(range_, (-1, -1, None))
        if spool is None or (begin, end) != (lower, upper):
            return None
        del self._aside[range_]
        return spool

    async def hold(self, range_: KeyRange, frontier: Frontier) -> None:
        """Move the hold to where the furthest behind of all parts may be, as soon as all have said where."""
        self._holds[range_] = frontier
        if len(self._holds) == len(self._ranges):
            await self.feed.hold(min(self._holds.values()))

    def close(self) -> None:
        """Drop the rows that were put aside."""
        for _, _, spool in self._aside.values():
            spool.close()
        self._aside = {}


class Part:
    """The rows of one range: a `Feed`."""

    def __init__(self, shared: Shared, range_: KeyRange) -> None:
        self._shared = shared
        self._range = range_
        self.name = shared.feed.name
        self.schema = shared.feed.schema

    @property
    def waits(self) -> str:
        """See `Feed.waits`."""
        return self._shared.feed.waits

    async def upper(self) -> Frontier:
        """See `Feed.upper`."""
        return await self._shared.feed.upper()

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """See `Feed.changes`."""
        aside = self._shared.taken(self._range, lower, upper)
        if aside is not None:
            return Changes(aside.rows, _aside(aside))
        changes = await self._shared.feed.changes(lower, upper, key=key, times=times)
        return Changes(changes.about, self._own(changes.batches))

    async def hold(self, frontier: Frontier) -> None:
        """See `Feed.hold`."""
        await self._shared.hold(self._range, frontier)

    async def _own(self, all_: Batches) -> Batches:
        async with aclosing(all_) as batches:
            async for batch in batches:
                for _, rows in self._shared.parted(batch, [self._range]):
                    for own in rows.combine_chunks().to_batches():
                        yield own


async def _aside(spool: Spool) -> Batches:
    with closing(spool):
        for table in spool.tables():
            for batch in table.combine_chunks().to_batches():
                yield batch
