"""Splits of a task, over any driver: they divide and join while the task runs, and nothing is lost or doubled.

Subclass it as `driver_contract.DriverContract`.

Laws: M2, M3.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from strandline.errors import AsOfError, FencedError, Unavailable
from strandline.materialize.log import RecoveryLog
from strandline.materialize.splits import Splits
from strandline.testing.contracts.drivers.world import EndpointUnderTest, MakeEndpoint, World
from strandline.testing.doubles import CountingIds
from strandline.testing.endpoints import MemoryEndpoint
from strandline.testing.simulation.crashes import Crash, CrashPlan, PausePlan, Tapped

TURNS = (1, 4, 4, 2, 1, 3, 1)
"""How many splits a task has, one after the other."""


class SplitWorld(World):
    """A `World` whose runtimes have as many splits as it says."""

    splits = 1

    def runtime(self, plan: CrashPlan | None = None, epoch: int = 1) -> Splits:  # type: ignore[override]
        """Return a new runtime, as in a new process."""
        plan = CrashPlan() if plan is None else plan
        ids = CountingIds(f"o{next(self._owners)}")
        consensus: Any = Tapped(plan, "consensus", self.consensus)
        feeds: Any = [Tapped(plan, feed.name, feed) for feed in self.feeds]
        driver: Any = Tapped(plan, "driver", self.endpoint.driver(), opens=("open",))

        def logs(key: str, of: int) -> RecoveryLog:
            return RecoveryLog(self.clock, ids, consensus, f"log/m/{key}", of)

        log = RecoveryLog(self.clock, ids, consensus, "log/m", epoch)
        return Splits(replace(self.spec, splits=self.splits), driver, log, logs, ids, feeds, beside=self._beside)


class SplitsContract:
    """What every driver's splits do."""

    def test_splits_divide_and_join_while_the_task_runs(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a row is lost, or there twice, because an operator asked for more splits."""
        asyncio.run(divided_and_joined(make_endpoint()))

    def test_a_binding_begins_anew_in_a_task_with_splits(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: one split empties what another one has filled; or old rows stay."""
        if isinstance(make_endpoint(), MemoryEndpoint):
            pytest.skip("this endpoint's tables are emptied by its own Apply")
        asyncio.run(begun_anew(make_endpoint()))


class SplitsUnderFaultsContract:
    """The same at every point of a change of splits, which takes minutes where an endpoint is slow."""

    def test_a_crash_at_any_point_of_a_change_of_splits_loses_nothing(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a row is lost, or there twice, after a restart; or the task never goes on."""
        asyncio.run(crashed_everywhere(make_endpoint()))

    def test_a_runtime_that_slept_through_a_change_of_splits_does_nothing(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: a process that was presumed dead writes with the splits that were, over what the new ones wrote."""
        if not make_endpoint().fences:
            pytest.skip("this endpoint cannot fence: a zombie may write until its next write to the log")
        asyncio.run(asleep_everywhere(make_endpoint()))


async def divided_and_joined(endpoint: EndpointUnderTest) -> None:
    """Go through all `TURNS`, with changes in between."""
    world = SplitWorld(endpoint)
    for turn, splits in enumerate(TURNS):
        world.splits = splits
        points = CrashPlan()
        runtime = world.runtime(points, epoch=turn + 1)
        sessions = []
        for _ in range(3):
            world.write_round()
            await runtime.advance()
            world.check(world.upper)
            sessions.append(points.points.count("driver.open"))
        assert sessions[0] == sessions[-1], "sessions are opened for each round"
        assert len(runtime.status.splits) == (splits if splits > 1 else 0)
        assert runtime.status.position == world.upper
        await runtime.close()


async def crashed_everywhere(endpoint: EndpointUnderTest) -> None:
    """Change the splits again and again, and die at a later point each time."""
    world = SplitWorld(endpoint)
    at, missed = 0, 0
    while missed < len(TURNS):  # the changes have different numbers of points
        at += 1
        world.splits = TURNS[at % len(TURNS)]
        world.write_round()
        plan = CrashPlan(at, after=at % 2 == 0)
        with suppress(Crash):
            await world.runtime(plan, epoch=at).advance()
        missed = 0 if plan.happened else missed + 1
        recovered = world.runtime(epoch=at)
        await recovered.advance()
        world.check(world.upper)
        await recovered.close()
    assert at > len(TURNS)


async def asleep_everywhere(endpoint: EndpointUnderTest) -> None:
    """Let a runtime sleep before every point of its work, while another one changes the splits."""
    world = SplitWorld(endpoint)
    at, missed = 0, 0
    while missed < len(TURNS):
        at += 1
        missed = 0 if await asleep(world, at) else missed + 1
    assert at > len(TURNS)


async def asleep(world: SplitWorld, at: int) -> bool:
    """Sleep at point ``at``; return whether there is one."""
    met = False

    async def meanwhile() -> None:
        nonlocal met
        met = True
        world.splits = TURNS[(at + 3) % len(TURNS)]
        successor = world.runtime(epoch=at)
        world.write_over()
        await successor.advance()
        world.check(world.upper)
        await successor.close()

    world.splits = TURNS[at % len(TURNS)]
    zombie = world.runtime(PausePlan(at, meanwhile), epoch=at)
    world.write_over()
    with suppress(FencedError, AsOfError, Unavailable):
        await zombie.advance()
    await zombie.close()
    survivor = world.runtime(epoch=at)
    await survivor.advance()
    world.check(world.upper)
    await survivor.close()
    return met


async def begun_anew(endpoint: EndpointUnderTest) -> None:
    """Ask for a backfill between two rounds, and for a binding to come back."""
    world = SplitWorld(endpoint)
    world.splits = 3
    for backfill in range(4):
        world.bump(backfill)
        runtime = world.runtime(epoch=backfill + 1)
        for _ in range(2):
            world.write_round()
            while await runtime.advance():
                pass
            world.check(world.upper)
        assert len(runtime.status.splits) == 3
        await runtime.close()
