"""Feeds: what a materialization sees of a collection, by persist and the engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from strandline.algebra.schema import Schema
from strandline.errors import WAITS
from strandline.frontier.antichain import MINIMUM, Frontier
from strandline.instance import error_half
from strandline.materialize.feed import Changes
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.since import SinceHandle
from strandline.plane.reading import Reading
from strandline.problem import Problem, Stopped, Way

ERRORS: Final = Problem(
    "errors-hold-endpoint",
    "{collection!r} has errors since {start}: what came before is delivered",
    Stopped.ENDPOINT,
    (
        Way("mend or withdraw the rows that caused them"),
        Way("push the good rows meanwhile", "ALTER MATERIALIZATION {item:sql} SET (on_error 'continue')"),
    ),
)
REFRESH: Final = Problem("first-refresh", WAITS + "the first refresh of {collection!r}", Stopped.ENDPOINT)


class CollectionFeed:
    """`materialize.feed.Feed` on one collection."""

    def __init__(
        self, reader: ReadHandle, since: SinceHandle, engine: Reading, *, item: str, continues: bool = False
    ) -> None:
        """``continues``: pass on the good rows while the collection has errors, instead of waiting.

        ``item``: the materialization's name, for what messages advise.
        """
        self._item = item
        self.name = reader.name
        self.schema: Schema = reader.schema
        self._reader = reader
        self._since = since
        self._engine = engine
        self._continues = continues
        self.waits = ""

    async def upper(self) -> Frontier:
        """Return the collection's upper; where it waits, the time from which on there are errors.

        The minimum as long as it cannot be read at any time, though something is stored: before its first refresh.
        """
        state = await self._reader.refresh()
        self.waits = ""
        if state.upper <= state.since:
            self.waits = REFRESH.said(collection=self.name) if state.upper.at else ""
            return MINIMUM
        start = None if self._continues else await error_half.began(self._engine, self._reader)
        if start is None:
            return state.upper
        self.waits = ERRORS.said(collection=self.name, start=start, item=self._item)
        return Frontier(start) if state.since < Frontier(start) else MINIMUM

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """Return the changes over ``[lower, upper)``; without a job where they are inline."""
        if not self._continues:
            await error_half.refuse(self._engine, self._reader, upper - 1)
        window = await self._reader.changes(lower, upper)
        return Changes(window.rows, self._engine.net(window, key=key, times=times))

    async def hold(self, frontier: Frontier) -> None:
        """Release the hold on times before ``frontier``."""
        if self._since.since < frontier:
            await self._since.downgrade(frontier)
