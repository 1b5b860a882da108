"""A table that a task has emptied and given up, and that another task fills then.

From then on its rows are those of the other task, whatever the first one does.

Laws: M2, M6.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

from strandline.errors import DefinitionError
from strandline.materialize.feed import NoRows
from strandline.materialize.protocol.task import MaterializationSpec, contents
from strandline.testing.contracts.drivers.coming_and_going import ORDERS, PEOPLE, PLACES, ComingAndGoing, begun
from strandline.testing.contracts.drivers.world import EndpointUnderTest, MakeEndpoint, World, row
from strandline.testing.simulation.crashes import Crash, CrashPlan


class HandingOverContract:
    """What every driver does when a table goes from one task to another; `driver_contract.DriverContract` has it."""

    def test_a_table_that_was_given_up_is_its_taker_s(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: who gave a table up, and wants it again, deletes the rows of the one that has filled it since."""
        asyncio.run(handed_over(make_endpoint()))


async def handed_over(endpoint: EndpointUnderTest) -> None:
    """Have one task empty a table, another one fill it, the first one want it again, and the other one give it up."""
    world = await begun(endpoint)
    if not world.empties:
        return
    came = world.next(PEOPLE)
    world.bind((ORDERS, came))
    await world.caught_up()
    world.drop(came, removes=True, others=(ORDERS,))
    await world.caught_up()
    await world.caught_up()
    taker = _taker(endpoint)
    await _pushed(taker)
    await _goes_on(world, taker)
    await _wants_again(world, taker)
    stays, went = taker.spec.bindings
    emptied = replace(went, backfill=1, gives_up=True)
    taker.spec = replace(taker.spec, bindings=(stays, emptied))
    feeds: list[Any] = [taker.feeds[0], NoRows(emptied.collection, emptied.schema)]
    taker.feeds = feeds
    await _pushed(taker, checks=False)
    assert not endpoint.rows(went.resource)
    world.bind((ORDERS, world.next(PEOPLE)))
    await world.caught_up()
    await _pushed(taker, checks=False)
    world.check(world.upper)


async def handed_over_everywhere(make_endpoint: MakeEndpoint, *, rows: bool) -> None:
    """Have a task crash at each point of emptying a table, which another one wants then; without ``rows`` it has none.

    The other one may be refused as long as the first one has not emptied it; in the end each has what is its own.
    """
    at, alive = 0, True
    while alive:
        at, plan, world = at + 1, CrashPlan(at + 1, after=True), await begun(make_endpoint())
        came = world.next(PEOPLE)
        world.bind((ORDERS, came))
        await world.caught_up()
        if not rows:
            people = world.feeds[1]
            people.write(world.upper, *((each, -1) for each in contents(came, people.before(world.upper)).values()))
            world.seal(world.upper + 1)
            await _pushed(world, writes=False)
        orders = world.feeds[0]
        world.drop(came, removes=True, others=(ORDERS,))
        orders.write(world.upper, (row(4, 4.5, "more"), 1))
        world.seal(world.upper + 1)
        with suppress(Crash):
            await world.runtime(plan).advance()
        getattr(world.endpoint, "died", lambda: None)()
        alive, taker = plan.happened, _taker(world.endpoint)
        with suppress(DefinitionError):
            await _pushed(taker)
        await _pushed(world, checks=False)
        await _pushed(taker)
        await _goes_on(world, taker)
    assert at > 1


def _taker(endpoint: EndpointUnderTest) -> World:
    """Return another task that wants the table of `PEOPLE`."""
    first, wanted = replace(PLACES, collection="firsts", resource="Firsts"), replace(PLACES, resource=PEOPLE.resource)
    return World(endpoint, MaterializationSpec("taker", (first, wanted)))


async def _pushed(world: World, *, writes: bool = True, checks: bool = True) -> None:
    """Have collections change, if they are to, and a fresh runtime push all of that."""
    if writes:
        world.write_over()
    runtime = world.runtime()
    try:
        while await runtime.advance():
            pass
    finally:
        await runtime.close()
    if checks:
        world.check(world.upper)


async def _goes_on(world: ComingAndGoing, taker: World) -> None:
    """Have the one that gave a table up go on, with the table that it was to empty, and without it; the other as well.

    A session of the other one is open all the time, and no one fences it.
    """
    taker.write_over()
    runtime = taker.runtime()
    await runtime.advance()
    await _pushed(world, checks=False)
    world.bind((ORDERS,))
    await _pushed(world)
    taker.check(taker.upper)
    taker.write_over()
    await runtime.advance()
    taker.check(taker.upper)
    await runtime.close()


async def _wants_again(world: ComingAndGoing, taker: World) -> None:
    """Have the one that gave a table up want it again, and give that up as well: rows of the other one stay."""
    again = world.next(PEOPLE)
    world.bind((ORDERS, again))
    try:
        await _pushed(world)
    except DefinitionError:
        pass
    else:
        raise AssertionError(f"{again.resource!r} is filled by two tasks")
    taker.check(taker.upper)
    await _pushed(taker)
    world.bind((ORDERS,), (replace(world.next(PEOPLE), gives_up=True),))
    await _pushed(world, checks=False)
    taker.check(taker.upper)
    world.bind((ORDERS,))
    await _pushed(world)
    await _pushed(taker)
