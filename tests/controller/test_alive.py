"""What takes long keeps nothing else from going on: a first result, a snapshot, an endpoint that is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest

from strandline.bench.environment import _change, _define, over_lists
from strandline.compute import step
from strandline.controller.core import Core
from strandline.controller.defining import creating, definitions
from strandline.controller.language.statements import Drop, parse
from strandline.controller.location.config import Config, Mode
from strandline.frontier import Frontier
from strandline.instance.problems import LONG_S
from strandline.persist.shard.patience import Deadline
from strandline.store.clock import Beside
from strandline.testing.doubles import HandClock
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver
from strandline.wiring.loop import RunningTask, side_by_side

INTERVAL_S: Final = 1.0
Find = Callable[[Core], tuple[Any, str]]
HELD: Final[dict[str, tuple[Find, set[str]]]] = {
    "a first result": (lambda core: (_views(core).runs_of("highest")[-1], "step"), {"highest", "out"}),
    "a snapshot": (lambda core: (_sources(core)["events"].ingestion, "catch_up"), {"events", "matched"}),
    "an endpoint": (lambda core: (core.require_writing().instance._deliveries.tasks["out"], "advance"), {"out"}),
}
"""Which call is held, and who waits for it."""


def _views(core: Core) -> Any:
    return core.require_writing().instance._views.dataflows


def _sources(core: Core) -> Any:
    return core.require_writing().instance._sources.open


async def others() -> None:
    """Let everything run that can go on."""
    for _ in range(200):
        await asyncio.sleep(0)  # noqa: TID251 - no time passes


class Patient(HandClock):
    """A clock that passes once everything else that can go on has done so."""

    async def sleep(self, seconds: float) -> None:
        """Let the others run first."""
        await others()
        await super().sleep(seconds)


class Site:
    """An environment whose ticks wait for an interval, and one call in it that does not return."""

    def __init__(self, core: Core, clock: HandClock, find: Find) -> None:
        self.core = core
        self.clock = clock
        self.ticks = 0
        self.calls = 0
        self.gate = asyncio.Event()
        owner, name = find(core)
        self._call = getattr(owner, name)
        setattr(owner, name, self._held)

    async def _held(self, *arguments: Any, **options: Any) -> Any:
        self.calls += 1
        await self.gate.wait()
        return await self._call(*arguments, **options)

    async def tick(self) -> int:
        """Change a row and tick, for an interval at the most."""
        self.clock.now += 1_000
        await _change(self.core, self.ticks)
        self.ticks += 1
        return await self.core.tick(deadline=Deadline(self.clock, INTERVAL_S))

    def behind(self, time: int) -> set[str]:
        """Return what is not complete at ``time``."""
        frontiers = self.core.require_writing().instance.report().frontiers
        return {name for name, frontier in frontiers.items() if frontier <= Frontier(time)}


@asynccontextmanager
async def site(find: Find) -> AsyncIterator[Site]:
    """Open an environment with a table, a source, three views and an endpoint, which is where its ticks were."""
    place = over_lists()
    clock = Patient(place.clock.now)
    beside: Beside = partial(RunningTask, clock)
    assembly = replace(
        place.assembly,
        clock=clock,
        together=side_by_side,
        beside=beside,
        lanes=9,
        drivers=lambda endpoint, options: MemoryDriver(Endpoint(), KeyValueSession),
    )
    core = await Core.open(assembly, Config(), Mode.FULL)
    await _define(core)
    await creating.create(core, parse("CREATE MATERIALIZATION out INTO memory AS highest KEY (grp)"))  # type: ignore[arg-type]
    await _change(core, 0)
    await core.tick()
    yield Site(core, clock, find)
    await core.close()


@pytest.fixture(autouse=True)
def _every_step_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "LONG_ROWS_MIN", 0)


@pytest.mark.parametrize("held", HELD)
def test_what_does_not_wait_for_it_is_fresh_at_every_tick(held: str) -> None:
    """Damage: one view is computed for a minute, and everything stands still for that minute."""
    find, waiting = HELD[held]

    async def body() -> None:
        async with asyncio.timeout(150), site(find) as at:
            for _ in range(5):
                time = await at.tick()
                assert at.behind(time) == waiting
                assert not at.core.health.problems(), "it is on its way, and nothing is wrong"
            assert at.calls == 1
            at.gate.set()

    asyncio.run(body())


@pytest.mark.parametrize("held", HELD)
def test_it_arrives_by_itself_once_it_can(held: str) -> None:
    """Damage: what was late stands still until the next tick, or for ever if that does not wait for it either."""
    find, _ = HELD[held]

    async def body() -> None:
        async with asyncio.timeout(150), site(find) as at:
            for _ in range(3):
                time = await at.tick()
            at.gate.set()
            for _ in range(20):
                await others()
            assert at.behind(time) == set()
            assert at.core.require_writing().instance.going_on() == {}
            await at.tick()
            assert at.core.health.problems() == {}

    asyncio.run(body())


@pytest.mark.parametrize("held", HELD)
def test_what_takes_very_long_says_so_and_so_does_what_waits_for_it(held: str) -> None:
    """Damage: a view that is computed for an hour looks as if it were as fresh as the others."""
    find, waiting = HELD[held]

    async def body() -> None:
        async with asyncio.timeout(150), site(find) as at:
            for _ in range(round(LONG_S) + 2):
                await at.tick()
            problems = at.core.health.problems()
            assert problems.keys() == waiting
            assert {text for text in problems.values() if text.startswith("it waits for what was begun for it at ")}
            await at.core.watch()
            assert (await at.core.health.published_problems.read()).keys() >= waiting
            at.gate.set()
            await others()
            await at.tick()
            await others()
            await at.tick()
            assert at.core.health.problems() == {}
            assert await at.core.health.published_problems.read() == {}

    asyncio.run(body())


def test_upstream_learns_what_it_may_forget_while_a_view_is_computed() -> None:
    """Damage: an upstream keeps all that comes for as long as some view is computed for the first time."""

    async def body() -> None:
        async with asyncio.timeout(150), site(HELD["a first result"][0]) as at:
            told = []
            for _ in range(5):
                await at.tick()
                told.append(_sources(at.core)["events"].ingestion.status.resume)
            assert len({str(each) for each in told}) == 5
            at.gate.set()

    asyncio.run(body())


def test_a_view_can_be_dropped_while_it_is_computed() -> None:
    """Damage: a view that was defined by mistake has to be computed to its end before it can be dropped."""

    async def body() -> None:
        async with asyncio.timeout(150), site(HELD["a first result"][0]) as at:
            await at.tick()
            await definitions.drop(at.core, Drop("materialization", "out", if_exists=False))
            await definitions.drop(at.core, Drop("materialized view", "highest", if_exists=False))
            time = await at.tick()
            assert at.behind(time) == set()
            assert at.core.require_writing().instance.going_on() == {}
            assert at.core.health.problems() == {}

    asyncio.run(body())


def test_a_first_result_that_fails_is_a_problem_and_is_tried_once_in_a_tick() -> None:
    """Damage: it is tried again at once and for ever; the tick does not end, and a processor computes in vain."""

    async def failing(*arguments: Any) -> int:
        tried.append(1)
        raise OSError("the disk is full")

    async def body() -> None:
        async with asyncio.timeout(150), site(HELD["a first result"][0]) as at:
            at.gate.set()
            await creating.create(at.core, parse("CREATE MATERIALIZED VIEW fresh AS SELECT grp FROM items"))  # type: ignore[arg-type]
            (run,) = _views(at.core).runs_of("fresh")
            run._go = failing
            for ticks in range(1, 4):
                await _change(at.core, ticks)
                await at.core.tick()
                assert "the disk is full" in at.core.health.problems()["fresh"]
                assert len(tried) == ticks

    tried: list[int] = []
    asyncio.run(body())


def test_closing_does_not_wait_for_it() -> None:
    """Damage: SIGTERM is answered only once a view is computed that is not wanted any longer."""

    async def body() -> None:
        async with asyncio.timeout(150):
            async with site(HELD["a first result"][0]) as at:
                await at.tick()
            assert not at.gate.is_set()

    asyncio.run(body())
