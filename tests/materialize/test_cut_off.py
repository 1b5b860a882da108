"""A transaction that was cut off is replayed before anything else, whatever became of the materialization since."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeAlias

from strandline.frontier import MINIMUM, Frontier
from strandline.materialize.protocol.task import MaterializationSpec, canonical
from strandline.testing.contracts.drivers.coming_and_going import ORDERS, PEOPLE
from strandline.testing.contracts.drivers.splits_contract import SplitWorld
from strandline.testing.contracts.drivers.world import World, row
from strandline.testing.endpoints import KeyValueSession, MemoryEndpoint
from strandline.testing.feed import ListFeed
from strandline.testing.simulation.crashes import Crash, CrashPlan

MakeWorld: TypeAlias = Callable[[], World]
NEW: Final = range(100, 105)
"""The keys of the transaction that is cut off."""


class NotYet:
    """A collection that cannot be read before ``opens``, as a view before its first refresh."""

    def __init__(self, inner: ListFeed) -> None:
        self.name, self.schema, self.waits = inner.name, inner.schema, "it has errors from its beginning"
        self.opens = False
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def upper(self) -> Frontier:
        """See `Feed.upper`."""
        return await self._inner.upper() if self.opens else MINIMUM


class LastWrites(MemoryEndpoint):
    """An endpoint where the last write wins, as in Redis: it does not look at what the runtime says of a row."""

    def __init__(self) -> None:
        super().__init__(KeyValueSession, fences=False)
        self._endpoint.wrong = lambda what: None  # type: ignore[method-assign]


def split_world() -> SplitWorld:
    """Return a world whose task has two splits."""
    world = SplitWorld(LastWrites())
    world.splits = 2
    return world


def table(world: World) -> list[str]:
    """Return the rows of the first table."""
    return sorted(canonical(each) for each in world.endpoint.rows(ORDERS.resource))


async def cut_off(world: World, at: int) -> bool | None:
    """Bind orders only, and die at point ``at`` of a transaction of some new rows.

    Return whether some of the rows are there, and some are not; None: there is no such point.
    """
    world.spec, world.feeds = MaterializationSpec("m", (ORDERS,)), world.feeds[:1]
    orders = world.feeds[0]
    orders.write(0, *((row(k, 1.5, "old"), 1) for k in range(3)))
    world.seal(1)
    runtime = world.runtime()
    await runtime.advance()
    await runtime.close()
    orders.write(1, *((row(k, 1.5, "new"), 1) for k in range(100, 106)))
    world.seal(2)
    plan = CrashPlan(at)
    with suppress(Crash):
        await world.runtime(plan).advance()
    if not plan.happened:
        return None
    return table(world) not in (world.truth(0, 1), world.truth(0, 2))


async def gone_on(world: World, people: NotYet) -> None:
    """Go on while the view cannot be read; once it can, the rows of the transaction have gone again."""
    runtime = world.runtime()
    await runtime.advance()
    assert table(world) == world.truth(0, 2), "a part of a transaction is read for as long as the view cannot be"
    world.feeds[0].write(2, *((row(k, 1.5, "new"), -1) for k in NEW))
    world.seal(3)
    people.opens = True
    await runtime.close()
    runtime = world.runtime()
    while await runtime.advance():
        pass
    world.check(3)
    await runtime.close()


async def each_cut(make_world: MakeWorld) -> None:
    """Cut a transaction off at every point that leaves a part of its rows; bind a view that cannot be read; go on."""
    at, cuts = 0, 0
    while True:
        at += 1
        world = make_world()
        people = NotYet(world.feeds[1])
        found = await cut_off(world, at)
        if found is None:
            break
        if found:
            cuts += 1
            world.spec = MaterializationSpec("m", (ORDERS, PEOPLE))
            world.feeds = [world.feeds[0], people]  # type: ignore[list-item]
            await gone_on(world, people)
    assert cuts, "no point is in the middle of the transaction"


def test_it_is_replayed_though_a_view_that_came_cannot_be_read() -> None:
    """Damage: readers see a part of a transaction for as long as the view that came has errors."""
    asyncio.run(each_cut(lambda: World(LastWrites())))


def test_the_splits_of_a_task_are_joined_after_it() -> None:
    """Damage: rows that a cut transaction stored, and that went since, stay at the endpoint for ever."""
    asyncio.run(each_cut(split_world))
