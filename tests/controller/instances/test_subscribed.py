"""A subscription to a view of an instance goes on whatever becomes of controllers and replicas."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tests.controller.instances.apart import Site, held, site

from strandline.client.subscribing import Progress, Subscription, Updates
from strandline.controller.core import Core
from strandline.controller.location.config import Config, Mode
from strandline.store.clock import SystemClock
from strandline.testing.doubles import CountingIds
from strandline.wiring.loop import RunningTask, side_by_side


@dataclass
class Subscriber:
    """What a subscriber has received."""

    subscription: Subscription
    rows: Counter[tuple[Any, ...]] = field(default_factory=Counter)
    times: list[int] = field(default_factory=list)
    upper: int = 0

    async def take(self, until: int) -> None:
        """Take what comes until all updates before ``until`` have come."""
        while self.upper < until:
            match await self.subscription.next():
                case Updates(rows):
                    for row in rows.to_pylist():
                        time, diff = row.pop("__time"), row.pop("__diff")
                        assert not self.upper or time >= self.upper, "it came already"
                        self.times.append(time)
                        self.rows[tuple(row.values())] += diff
                case Progress(upper):
                    assert upper is not None
                    assert upper > self.upper, "it was said already"
                    self.upper = upper
                case None:
                    raise AssertionError("nothing more comes")

    @property
    def contents(self) -> Counter[tuple[Any, ...]]:
        """The rows that are there."""
        return Counter({row: count for row, count in self.rows.items() if count})


async def reader(at: Site) -> Core:
    """Open the location as a process that only reads."""
    clock = SystemClock()
    assembly = replace(
        at.place.assembly,
        clock=clock,
        ids=CountingIds("reader"),
        together=side_by_side,
        beside=partial(RunningTask, clock),
    )
    return await Core.open(assembly, Config(), Mode.READ)


async def settled(at: Site) -> int:
    """Tick until the view has come to the last time; return that."""
    for _ in range(100):
        time = await at.tick()
        if not at.core.health.problems():
            return time
        await SystemClock().sleep(0.05)  # a connection is tried again after a while
    raise AssertionError(at.core.health.problems())


def test_a_subscription_goes_on_across_restarts_of_the_controller_and_of_the_replica() -> None:
    """Damage: changes come twice, or are missing, after one of the processes was begun anew."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            time = await at.tick(3)
            reading = await reader(at)
            subscription = await Subscription.open(reading, "totals", time, None)
            received = Subscriber(subscription)
            await received.take(time + 1)
            for end in ("controller", "replica", "controller"):
                if end == "controller":
                    at.processes["a:1"].cut()
                    await at.open()
                else:
                    await at.processes["a:1"].kill()
                    await at.tick()
                    at.processes["a:1"].begin()
                time = await settled(at)
                await received.take(time + 1)
                assert received.contents == await held(at.core, "totals", time)
            assert received.times == sorted(received.times)
            await subscription.close()
            await reading.close()

    asyncio.run(body())


def test_a_subscriber_that_restarts_goes_on_from_where_it_was() -> None:
    """Damage: a subscriber in the controller's own process cannot tell what has come before that one died."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            time = await at.tick(3)
            received = Subscriber(await Subscription.open(at.core, "totals", time, None))
            await received.take(time + 1)
            await at.tick(2)
            at.processes["a:1"].cut()
            await at.open()
            again = Subscriber(await Subscription.open(at.core, "totals", received.upper - 1, None))
            await again.take(received.upper)
            assert again.contents == received.contents, "the contents from which it goes on are those that it has"
            time = await settled(at)
            await again.take(time + 1)
            assert again.contents == await held(at.core, "totals", time)

    asyncio.run(body())
