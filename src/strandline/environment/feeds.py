"""Feeds: what a materialization sees of a collection, by persist and the engine.

Source: design page "materialize" (each task holds every bound collection's since just before its durable checkpoint by
a critical reader).
"""

from __future__ import annotations

from collections.abc import Sequence

from strandline.algebra.schema import Schema
from strandline.frontier.antichain import Frontier
from strandline.materialize.feed import Changes
from strandline.persist.plane import Engine
from strandline.persist.read import ReadHandle
from strandline.persist.since import SinceHandle


class CollectionFeed:
    """`materialize.feed.Feed` on one collection."""

    def __init__(self, reader: ReadHandle, since: SinceHandle, engine: Engine) -> None:
        self.name = reader.name
        self.schema: Schema = reader.schema
        self._reader = reader
        self._since = since
        self._engine = engine

    async def upper(self) -> Frontier:
        """Return the collection's upper."""
        return (await self._reader.refresh()).upper

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """Return the changes over ``[lower, upper)``; without a job where they are inline."""
        window = await self._reader.changes(lower, upper)
        return Changes(window.rows, self._engine.net(window, key=key, times=times))

    async def hold(self, frontier: Frontier) -> None:
        """Let go of times before ``frontier``."""
        if self._since.since < frontier:
            await self._since.downgrade(frontier)
