"""A subscription gives each update once, in the order of times, whatever happens beside it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from strandline.bench.environment import TICK_MS, Place, _change, _define, over_lists
from strandline.client import Environment
from strandline.client.access import Access
from strandline.client.subscribing import Event, Progress, Subscription, Updates
from strandline.controller.core import Core
from strandline.controller.defining import definitions
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import Drop, parse
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import SUBSCRIBED
from strandline.errors import AsOfError, DefinitionError, InvalidUsage
from strandline.wiring.loop import LoopThread, RunningTask, side_by_side

ROWS = "SELECT grp, count(*) AS n FROM items GROUP BY grp"


class Kept:
    """What a subscriber keeps: the contents that the updates add up to, and how far they have come."""

    def __init__(self) -> None:
        self.rows: Counter[str] = Counter()
        self.upper: int | None = 0
        self.times: list[int] = []

    def take(self, event: Event) -> None:
        """Take what comes."""
        match event:
            case Updates(rows):
                for row in rows.to_pylist():
                    time, diff = row.pop("__time"), row.pop("__diff")
                    assert self.upper is None or time >= self.upper - 1 or not self.upper
                    self.times.append(time)
                    self.rows[str(row)] += diff
            case Progress(upper):
                assert upper is None or self.upper is None or upper > self.upper
                self.upper = upper

    @property
    def contents(self) -> dict[str, int]:
        """The rows that are there."""
        return {row: count for row, count in self.rows.items() if count}


@asynccontextmanager
async def site() -> AsyncIterator[tuple[Core, Place]]:
    """Open an environment over lists, with an event loop."""
    place = over_lists()
    assembly = replace(place.assembly, together=side_by_side, beside=partial(RunningTask, place.clock))
    core = await Core.open(assembly, Config(keep_history="0 seconds"), Mode.FULL)
    await _define(core)
    yield core, place
    await core.close()


async def tick(core: Core, place: Place, n: int) -> int:
    """Change a row, and tick."""
    place.clock.now += TICK_MS
    await _change(core, n)
    return await core.tick()


async def held(core: Core, name: str, time: int) -> dict[str, int]:
    """Return what another reader sees."""
    subscription = await Subscription.open(core, name, time, time + 1)
    kept = Kept()
    while (event := await subscription.next()) is not None:
        kept.take(event)
    await subscription.close()
    return kept.contents


@pytest.mark.parametrize("name", ["items", "events", "totals", "matched", "Highest"])
def test_what_has_come_by_a_progress_is_what_the_collection_holds(name: str) -> None:
    """Damage: a copy that a subscriber keeps differs from the view, by an update that came twice or never."""

    async def body() -> None:
        async with site() as (core, place):
            await tick(core, place, 0)
            kept, subscription = Kept(), await Subscription.open(core, name, None, None)
            for n in range(1, 6):
                time = await tick(core, place, n)
                while kept.upper is not None and kept.upper <= time:
                    event = await subscription.next()
                    assert event is not None
                    kept.take(event)
                assert kept.contents == await held(core, name, time)
            assert kept.times == sorted(kept.times)
            await subscription.close()

    asyncio.run(body())


def test_a_slow_subscriber_holds_what_it_still_needs_and_no_more() -> None:
    """Damage: history is kept for no time, so a subscriber that pauses loses its place; or it is kept for ever."""

    async def body() -> None:
        async with site() as (core, place):
            first = await tick(core, place, 0)
            kept, subscription = Kept(), await Subscription.open(core, "totals", None, None)
            while kept.upper != first + 1:
                kept.take(await subscription.next())  # type: ignore[arg-type]
            for n in range(1, 60):
                time = await tick(core, place, n)
                await core.readers.beat()
            reader = await core.readers.of("totals")
            assert (await reader.refresh()).since.at == first
            while kept.upper != time + 1:
                kept.take(await subscription.next())  # type: ignore[arg-type]
            assert kept.contents == await held(core, "totals", time)
            await tick(core, place, 60)
            assert (await subscription.next()) is not None
            await subscription.close()
            for n in range(61, 100):
                await tick(core, place, n)
            assert (await reader.refresh()).since.at > first

    asyncio.run(body())


def test_it_ends_where_it_is_to_end() -> None:
    """Damage: a program that copies a day's changes gets a part of the next day's, or waits for ever."""

    async def body() -> None:
        async with site() as (core, place):
            first = await tick(core, place, 0)
            await tick(core, place, 1)
            reader = await core.readers.following("totals")  # what it holds can be subscribed to
            last = [await tick(core, place, n) for n in range(2, 5)][-2]
            subscription = await Subscription.open(core, "totals", last, last + 1)
            kept = Kept()
            while (event := await subscription.next()) is not None:
                kept.take(event)
            assert (kept.upper, {*kept.times}) == (last + 1, {last})
            await subscription.close()
            await core.readers.unfollow(reader)
            with pytest.raises(InvalidUsage, match="cannot end at"):
                await (await Subscription.open(core, "totals", last, last)).next()
            with pytest.raises(AsOfError):
                await (await Subscription.open(core, "totals", first - 1, None)).next()

    asyncio.run(body())


async def ending(subscription: Subscription) -> AsyncIterator[Event]:
    """Yield what comes until nothing more does."""
    while (event := await subscription.next()) is not None:
        yield event


@pytest.mark.parametrize("until", [None, 2**40])
@pytest.mark.parametrize("mode", [Mode.FULL, Mode.READ])
@pytest.mark.parametrize(
    ("again", "said"),
    [
        ("", "'w' was dropped: this subscription has every update of it"),
        ("CREATE TABLE w (b INT)", "'w' was dropped and created again: .*subscribe again"),
        (
            "CREATE MATERIALIZED VIEW w AS SELECT id FROM items",
            "'w' was .*dropped and created again: .*subscribe again",
        ),
    ],
)
def test_what_is_dropped_ends_with_an_error(again: str, said: str, mode: Mode, until: int | None) -> None:
    """Damage: a consumer takes DROP for the end of all changes, and its copy for complete."""

    async def body() -> None:
        async with site() as (core, place):
            await create(core, parse("CREATE TABLE w (a INT)"))  # type: ignore[arg-type]
            time = await tick(core, place, 0)
            beside = core if mode is Mode.FULL else await Core.open(core.assembly, Config(), mode)
            subscription, kept = await Subscription.open(beside, "w", None, until and time + until), Kept()
            while kept.upper != time + 1:
                kept.take(await subscription.next())  # type: ignore[arg-type]
            await definitions.drop(core, Drop("table", "w", if_exists=False))
            if again:
                await create(core, parse(again))  # type: ignore[arg-type]
            with pytest.raises(AsOfError, match=said):
                async for event in ending(subscription):
                    kept.take(event)
                    assert kept.upper is not None, "it is not complete for ever"
            assert kept.upper is not None
            assert kept.upper < time + 2**40
            await subscription.close()
            if beside is not core:
                await beside.close()

    asyncio.run(body())


def test_the_view_of_a_query_that_a_successor_drops_ends_with_an_error() -> None:
    """Damage: after a take-over, a consumer in the process before takes what has come for all that will."""

    async def body() -> None:
        async with site() as (core, place):
            await tick(core, place, 0)
            subscription = await Subscription.open(core, ROWS, None, None)
            await tick(core, place, 1)
            await subscription.next()
            successor = await Core.open(core.assembly, Config(take_over=True), Mode.FULL)
            with pytest.raises(AsOfError, match="the view of this query was dropped"):
                async for _ in ending(subscription):
                    pass
            await successor.close()

    asyncio.run(body())


def test_a_view_after_its_last_refresh_ends_without_one() -> None:
    """Damage: a program that waits for the last refresh takes it for a failure."""

    async def body() -> None:
        async with site() as (core, place):
            await tick(core, place, 0)
            await create(core, parse(f"CREATE MATERIALIZED VIEW once REFRESH AT CREATION AS {ROWS}"))  # type: ignore[arg-type]
            for n in range(1, 4):
                await tick(core, place, n)
            subscription = await Subscription.open(core, "once", None, None)
            assert [event async for event in ending(subscription)][-1] == Progress(None)
            await subscription.close()

    asyncio.run(body())


def test_a_query_has_a_view_of_its_own_that_goes_with_it() -> None:
    """Damage: each subscription to a query leaves a view behind, which every tick maintains for ever."""

    async def body() -> None:
        async with site() as (core, place):
            await tick(core, place, 0)
            kept, subscription = Kept(), await Subscription.open(core, ROWS, None, None)
            assert [name for name in core.catalog.items if name.startswith(SUBSCRIBED)]
            for n in range(1, 4):
                time = await tick(core, place, n)
                while kept.upper is not None and kept.upper <= time:
                    kept.take(await subscription.next())  # type: ignore[arg-type]
            assert sum(kept.contents.values()) > 1
            await subscription.close()
            await tick(core, place, 4)
            assert not [name for name in core.catalog.items if name.startswith(SUBSCRIBED)]
            with pytest.raises(DefinitionError):
                await Subscription.open(core, "SELECT nothing FROM items", None, None)
            with pytest.raises(InvalidUsage, match="no as_of"):
                await Subscription.open(core, ROWS, 5, None)
            assert core.health.problems() == {}

    asyncio.run(body())


def test_the_view_of_a_subscription_whose_process_has_died_is_dropped() -> None:
    """Damage: a crash leaves a view that no reader needs and no user can drop."""

    async def body() -> None:
        async with site() as (core, place):
            await tick(core, place, 0)
            await Subscription.open(core, ROWS, None, None)
            await tick(core, place, 1)
            successor = await Core.open(core.assembly, Config(take_over=True), Mode.FULL)
            assert not [name for name in successor.catalog.items if name.startswith(SUBSCRIBED)]
            place.clock.now += TICK_MS
            await successor.tick()
            assert not {*successor.health.problems()} - {"events", "matched"}, (
                "whose upstream has gone with the process"
            )
            assert successor.catalog.dropped == ()
            await successor.close()

    asyncio.run(body())


def plain() -> tuple[Place, LoopThread, Core, Environment]:
    """Open an environment over lists for plain calls, with what is beneath."""
    place, loop = over_lists(), LoopThread()
    assembly = replace(place.assembly, together=side_by_side, beside=partial(RunningTask, place.clock))
    core = loop.run(Core.open(assembly, Config(), Mode.FULL))
    loop.run(_define(core))
    return place, loop, core, Environment(Access(core, assembly, loop))


def test_a_subscription_that_was_never_read_goes_too() -> None:
    """Damage: a program that fails before it reads leaves a view that every tick maintains, and a lease on its past."""
    _, _, core, env = plain()
    for end in (lambda events: events.close(), lambda _: None):
        events = env.subscribe(ROWS)
        assert [name for name in core.catalog.items if name.startswith(SUBSCRIBED)]
        end(events)
        del events
        env.tick()
        env.tick()
        assert not [name for name in core.catalog.items if name.startswith(SUBSCRIBED)]
        assert core.readers._following == []
    env.close()


def test_an_environment_that_holds_nothing_cannot_subscribe_and_one_that_reads_takes_no_query() -> None:
    """Damage: a subscriber without a hold loses its place, and learns of it hours later."""

    async def body() -> None:
        async with site() as (core, place):
            await tick(core, place, 0)
            independent = await Core.open(core.assembly, Config(), Mode.INDEPENDENT)
            with pytest.raises(InvalidUsage, match="holds nothing"):
                await Subscription.open(independent, "totals", None, None)
            reading = await Core.open(core.assembly, Config(), Mode.READ)
            with pytest.raises(InvalidUsage, match="the process that writes"):
                await Subscription.open(reading, ROWS, None, None)
            subscription = await Subscription.open(reading, "totals", None, None)
            assert isinstance(await subscription.next(), Updates)
            await subscription.close()
            await reading.close()

    asyncio.run(body())


def test_a_name_that_nothing_has_is_refused_with_candidates_in_each_process() -> None:
    """Damage: a mistyped name is taken for a query, and the answer says where queries can be subscribed to."""

    async def body() -> None:
        async with site() as (core, place):
            await tick(core, place, 0)
            reading = await Core.open(core.assembly, Config(), Mode.READ)
            await reading.look()
            for each in (core, reading):
                with pytest.raises(DefinitionError, match="^there is no collection 'total'; did you mean 'totals'"):
                    await Subscription.open(each, "total", None, None)
            await reading.close()

    asyncio.run(body())


def taken(events: Any, count: int) -> Sequence[Event]:
    """Return the next events."""
    return [next(events) for _ in range(count)]


def test_a_program_may_tick_between_two_events_and_close_while_it_waits() -> None:
    """Damage: an iterator that waits for a tick keeps every other call of the environment waiting."""
    place, loop, core, env = plain()
    with closing(env.subscribe("totals")) as events:
        loop.run(_change(core, 0))
        first = env.tick()
        kept = Kept()
        while kept.upper != first + 1:
            kept.take(next(events))
        place.clock.now += TICK_MS
        loop.run(_change(core, 1))
        second = env.tick()
        while kept.upper != second + 1:
            kept.take(next(events))
    with pytest.raises(DefinitionError):
        env.subscribe("nothing")
    with closing(env.subscribe("totals")) as events:
        while not isinstance(next(events), Progress):
            pass
        env.close()
        with pytest.raises(InvalidUsage, match="closed"):
            next(events)
