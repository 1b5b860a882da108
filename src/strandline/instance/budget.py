"""Error budgets: how many errors a source's collection may hold before its source stands still.

An input that changes its shape upstream would leave an error for each of its records.  A source with ``errors_max``
stops at the tick after it holds more: what came so far is durable and readable, and nothing more is bound.  It goes on
by itself once its errors were dismissed, or the budget was raised.

Source: design page "sources" (error half; nothing is dropped silently).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from strandline.instance import error_half
from strandline.instance.commands import Collection, Output
from strandline.persist.handles.plane import Engine
from strandline.persist.handles.read import ReadHandle


class ErrorBudgets:
    """The budgets of what runs here.  Errors are counted again only where some came or went."""

    def __init__(self, engine: Engine, reader: Callable[[Collection], Awaitable[ReadHandle]]) -> None:
        self._engine = engine
        self._reader = reader
        self._counted: dict[str, tuple[object, int]] = {}

    async def exceeded(self, outputs: Sequence[Output]) -> str:
        """Return which of ``outputs`` holds more errors than it may, and what to do; empty if none does."""
        for output in outputs:
            if output.errors_max is not None and (count := await self._count(output.collection)) > output.errors_max:
                return _told(output.collection.name, count, output.errors_max)
        return ""

    async def _count(self, collection: Collection) -> int:
        reader = await self._reader(collection)
        state = await reader.refresh()
        if not state.upper.at:
            return 0
        seen = (state.since, *(batch.errors for batch in state.batches if batch.errors))
        known = self._counted.get(collection.shard)
        if known is None or known[0] != seen:
            known = seen, await error_half.count(self._engine, reader, state.upper.at - 1)
            self._counted[collection.shard] = known
        return known[1]


def _told(name: str, count: int, most: int) -> str:
    return (
        f"it holds {count} errors and errors_max is {most}, so nothing more is read; look at {name}_errors, then "
        f"dismiss them with `strandline source skip {name}`, or raise errors_max in its definition"
    )
