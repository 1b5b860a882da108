"""What different views append is appended side by side, and each append waits for its own upkeep alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from tests.controller.instances.apart import TABLE, Site, run

from strandline.bench.environment import VIEWS
from strandline.frontier import Frontier
from strandline.store.protocols import CompareAndSet

NAMES = ("one", "two", "three")
LOOKS = 6_000


class Watched:
    """A consensus store that takes a moment for each append; it knows of how many shards some were under way.

    To shards that are ``awaited`` it appends once all of them are under way, or after long.
    """

    def __init__(self, store: Any) -> None:
        self._store = store
        self.awaited: frozenset[str] = frozenset()
        self.under_way: list[str] = []
        self.seen: list[frozenset[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def compare_and_set(self, request: CompareAndSet) -> Any:
        """Append, a moment later."""
        self.under_way.append(request.key)
        self.seen.append(frozenset(self.under_way))
        for _ in range(LOOKS):
            await asyncio.sleep(0.005)  # noqa: TID251 - the time that a store takes
            if self.met or not any(shard in request.key for shard in self.awaited):
                break
        self.under_way.remove(request.key)
        return await self._store.compare_and_set(request)

    @property
    def met(self) -> bool:
        """Whether appends to all shards that are awaited were under way at once."""
        return any(all(any(shard in key for key in keys) for shard in self.awaited) for keys in self.seen)


@asynccontextmanager
async def three_views() -> AsyncIterator[tuple[Site, Watched]]:
    """Open a location with a table and three views of it, which have had their first contents."""
    at = Site()
    store = Watched(at.place.assembly.consensus)
    watched: Any = store
    at.place = replace(at.place, assembly=replace(at.place.assembly, consensus=watched))
    await at.open()
    try:
        texts = [VIEWS["totals"].replace("count(*)", f"count(*) + {number}") for number, _ in enumerate(NAMES)]
        views = [f"CREATE MATERIALIZED VIEW {name} AS {text}" for name, text in zip(NAMES, texts, strict=True)]
        await at.execute(TABLE, *views)
        await at.tick()
        yield at, store
    finally:
        await at.core.close()


def test_what_different_views_append_is_under_way_at_once() -> None:
    """Damage: a tick takes as long as the appends of all its views together."""

    async def body() -> None:
        async with three_views() as (at, store):
            store.seen.clear()
            store.awaited = frozenset(at.core.catalog.collection(name).shard for name in NAMES)
            await at.tick()
            assert store.met

    run(body())


def test_upkeep_that_one_append_caused_keeps_no_other_append_waiting() -> None:
    """Damage: one view is merged for a minute, and all others are a minute old."""

    async def body() -> None:
        async with three_views() as (at, _):
            core, merged = at.core, asyncio.Event()

            async def long_merge() -> bool:
                await merged.wait()
                return True

            first, *others = [core.catalog.collection(name).shard for name in NAMES]
            core.client._machines[first].upkeep.add("a long merge", long_merge)
            ticking = asyncio.get_running_loop().create_task(at.tick())
            before = {shard: core.client.state_of(shard).upper for shard in others}
            async with asyncio.timeout(150):
                while any(core.client.state_of(shard).upper <= before[shard] for shard in others):
                    await core.assembly.clock.sleep(0.01)
            assert not ticking.done()
            merged.set()
            assert Frontier(await ticking) < core.client.state_of(first).upper

    run(body())
