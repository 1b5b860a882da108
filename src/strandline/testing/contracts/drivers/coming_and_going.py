"""Views that come to an endpoint and go from it, while others of the same task go on.

A view that was dropped leaves its rows there, or has them taken out; one that comes back to its table has exactly the
rows of its collection there, whatever was left.

Laws: M2, M6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, TypeVar

import pyarrow as pa

from strandline.algebra.schema import Column, Schema
from strandline.errors import FencedError, Unavailable
from strandline.materialize.feed import NoRows
from strandline.materialize.protocol.task import Binding, MaterializationSpec, canonical
from strandline.testing.contracts.drivers.world import KEYED, TWO, EndpointUnderTest, MakeEndpoint, World
from strandline.testing.feed import ListFeed
from strandline.testing.simulation.crashes import Crash, CrashPlan, PausePlan

T = TypeVar("T")

ORDERS, PEOPLE = TWO.bindings
PLACES: Final = Binding("places", "Places", ("k",), KEYED)
THREE: Final = replace(TWO, bindings=(ORDERS, PEOPLE, PLACES))


class ComingAndGoing(World):
    """Three collections, of which the first is always bound.

    ``empties``: a table can be emptied, or filled again after its view was dropped; else each is filled once.
    ``kept``: the rows of each table that no view is bound to any longer.
    """

    def __init__(self, endpoint: EndpointUnderTest, *, empties: bool) -> None:
        super().__init__(endpoint, THREE)
        self.empties = empties
        self.kept: dict[str, list[str]] = {}
        self._counter = 0
        self.bind((ORDERS,))

    def bind(self, bound: Iterable[Binding], emptied: Iterable[Binding] = ()) -> None:
        """Have these be bound, and have the tables of others be emptied."""
        of = {feed.name: feed for _, feed in self.collections}
        last = [*emptied]
        self.spec = MaterializationSpec(THREE.name, (*bound, *last))
        feeds: list[Any] = [of[each.collection] for each in self.spec.bindings[: len(self.spec.bindings) - len(last)]]
        self.feeds = feeds + [NoRows(each.collection, each.schema) for each in last]
        self.kept = {table: rows for table, rows in self.kept.items() if table not in self._tables}

    @property
    def _tables(self) -> set[str]:
        return {each.resource for each in self.spec.bindings}

    def next(self, binding: Binding) -> Binding:
        """Return a binding as it begins anew: with a counter, or a table, that it never had."""
        self._counter += 1
        number = f"{binding.collection} {self._counter}"
        return replace(binding, backfill=self._counter) if self.empties else replace(binding, resource=number)

    def drop(self, binding: Binding, *, removes: bool, others: Iterable[Binding]) -> None:
        """Drop a view; ``others``: what is bound from now on."""
        if removes and self.empties:
            self.bind(others, (replace(self.next(binding), gives_up=True),))
        else:
            kept = self.truth(self.spec.bindings.index(binding), self.upper)
            self.bind(others)
            self.kept[binding.resource] = kept

    def forget(self) -> None:
        """Have what was emptied be no part of the task any longer."""
        gone = [each for each, feed in zip(self.spec.bindings, self.feeds, strict=True) if isinstance(feed, NoRows)]
        self.bind(each for each in self.spec.bindings if each not in gone)
        self.kept |= {each.resource: [] for each in gone}

    def truth(self, index: int, time: int) -> list[str]:
        """See `World.truth`: a table that is emptied has no rows."""
        return [] if isinstance(self.feeds[index], NoRows) else super().truth(index, time)

    def check(self, time: int) -> None:
        """Check what is bound, and that what was left stays as it was."""
        super().check(time)
        self.check_kept()

    def check_kept(self) -> None:
        """Check that the tables that views have left are as they were then."""
        for table, rows in self.kept.items():
            assert sorted(canonical(each) for each in self.endpoint.rows(table)) == rows, f"{table!r} was left so"

    async def caught_up(self) -> None:
        """Have all collections change, and a fresh runtime push all of that."""
        self.write_round()
        runtime = self.runtime()
        while await runtime.advance():
            pass
        assert runtime.status.position == self.upper
        self.check(self.upper)
        await runtime.close()


class ComingAndGoingContract:
    """What every driver does while views come and go; `driver_contract.DriverContract` has it."""

    def test_views_come_and_go(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a view that comes back has the rows that it left; or those of its neighbours go with it."""
        asyncio.run(come_and_go(make_endpoint()))

    def test_a_crash_while_views_come_and_go_changes_nothing_else(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: after a crash rows that were to be kept are gone, or those that were to go are there."""
        asyncio.run(come_and_go_everywhere(make_endpoint))

    def test_what_slept_since_before_a_view_went_does_not_undo_the_next(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a process that sleeps in its Apply wakes, and drops the rows of the view that has the table now."""
        asyncio.run(older_view(make_endpoint()))


async def begun(endpoint: EndpointUnderTest) -> ComingAndGoing:
    """Return a world whose first collection has rows at the endpoint."""
    verdicts = await endpoint.driver().validate(THREE)
    world = ComingAndGoing(endpoint, empties=all(each.empties for each in verdicts))
    await world.caught_up()
    return world


async def come_and_go(endpoint: EndpointUnderTest) -> None:
    """Add a view, drop it with its rows kept, add it again, and drop it with its rows taken out."""
    world = await begun(endpoint)
    for removes in (False, True, False):
        came = world.next(PEOPLE)
        world.bind((ORDERS, came))
        await world.caught_up()
        await world.caught_up()
        world.drop(came, removes=removes, others=(ORDERS,))
        await world.caught_up()
        world.forget()
        await world.caught_up()


async def come_and_go_everywhere(make_endpoint: MakeEndpoint) -> None:
    """Have one view come and another one go, and crash at every point of the work that follows; then the reverse.

    The first one comes back to the rows that it has left, the other one to a table that is being emptied.
    """
    world = await begun(make_endpoint())
    here, away = world.next(PEOPLE), PLACES
    world.bind((ORDERS, here))
    await world.caught_up()
    at, alive = 0, True
    while alive:
        at += 1
        for plan in (CrashPlan(at), CrashPlan(at, after=True)):
            came = world.next(away)
            world.drop(here, removes=plan.late, others=(ORDERS, came))
            here, away = came, PEOPLE if away is PLACES else PLACES
            alive = await _crash_once(world, plan)
    assert at > 1


async def _crash_once(world: ComingAndGoing, plan: CrashPlan) -> bool:
    """Crash as in ``plan`` in the first transaction after a change; return whether that point was reached."""
    world.write_round()
    with suppress(Crash):
        await world.runtime(plan).advance()
    getattr(world.endpoint, "died", lambda: None)()
    world.check_kept()
    committed, tables = world.held()
    if committed is not None:
        assert tables[0] == world.truth(0, committed.of(ORDERS.state_key) or 0), plan.points[-1]
    await world.caught_up()
    return plan.happened


async def older_view(endpoint: EndpointUnderTest) -> None:
    """Fill a table from another view, with other columns; then let Apply come as it was for the view before."""
    stays, went = (replace(each, incarnation=f"m-1-s-{each.collection}@l-1") for each in TWO.bindings)
    schema = Schema((Column("k", "bigint"), Column("who", "string")))
    came = Binding("places", went.resource, ("k",), schema, backfill=1, incarnation="m-1-s-places@l-1")
    world, driver = World(endpoint, replace(TWO, bindings=(stays, went))), endpoint.driver()
    places = ListFeed("places", schema, {"k": pa.int64(), "who": pa.string()})
    if not all(each.empties for each in await driver.validate(world.spec)):
        return  # there no table is filled twice
    older = world.spec
    world.write_round()
    runtime = world.runtime()
    await runtime.advance()
    await runtime.close()
    places.write(0, *(({"k": k, "who": "came"}, 1) for k in range(3)))
    world.spec, world.feeds = replace(TWO, bindings=(stays, came)), [world.feeds[0], places]
    world.collections = [*zip(world.spec.bindings, world.feeds, strict=True)]
    world.seal(world.upper + 1)
    successor = world.runtime(epoch=2)
    await successor.advance()
    with suppress(FencedError):
        await driver.apply(older, {})
    world.check(world.upper)
    places.write(world.upper, ({"k": 9, "who": "later"}, 1))
    world.seal(world.upper + 1)
    await successor.advance()
    world.check(world.upper)
    await successor.close()


class _AfterApply(CrashPlan):
    """Dies once Apply was called."""

    async def through(self, label: str, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call, and die if it was Apply."""
        answer = await super().through(label, call)
        if label == "driver.apply":
            raise Crash(label)
        return answer


async def emptied_beside(endpoint: EndpointUnderTest) -> None:
    """Pause at every point of a transaction, while a successor begins to empty one of the tables; then go on.

    It is for endpoints whose Apply empties tables.
    """
    world = await begun(endpoint)
    at, met = 0, world.empties
    while met:
        at, met = at + 1, False
        came, emptied = world.next(PEOPLE), replace(world.next(PEOPLE), gives_up=True)
        world.bind((ORDERS, came))
        await world.caught_up()

        async def meanwhile(emptied: Binding = emptied) -> None:
            nonlocal met
            met = True
            bound, feeds = world.spec, world.feeds
            world.bind((ORDERS,), (emptied,))
            with suppress(Crash):
                await world.runtime(_AfterApply(), epoch=1).open()
            world.spec, world.feeds = bound, feeds

        world.write_over()
        zombie = world.runtime(PausePlan(at, meanwhile))
        with suppress(FencedError, Unavailable):
            await zombie.advance()
        await zombie.close()
        world.bind((ORDERS,), (emptied,))
        await world.caught_up()
        world.forget()
        await world.caught_up()
