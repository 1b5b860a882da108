"""A promotion of views that run in an instance of two replicas, whichever process ends at whichever of its writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import pytest
from promoted import ONE, TWO, Cut, Stored, Writes, project, switch, whole
from tests.controller.instances.apart import Later, Process, Site

from strandline.bench.environment import _change
from strandline.controller.core import Core
from strandline.controller.defining.apply import apply
from strandline.controller.location.catalog import Catalog
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import View
from strandline.controller.preparing.preparation import Preparation, ask
from strandline.errors import FencedError, StoreError
from strandline.instance.carriers.buffer import QueueCarrier
from strandline.store.clock import SystemClock
from strandline.testing.doubles import CountingIds, Crash
from strandline.testing.lists.list_engine import ListEngine
from strandline.wiring.loop import RunningTask, side_by_side

INSTANCE: Final = "CREATE INSTANCE x REPLICAS (a 'a:1', b 'b:1')"
APART: Final = ("totals", "wide", "new", "above")
PATIENCE_S: Final = 120
CUTS: Final = ("before", "after", "lost", "stalled")
PARTS: Final = 4


def placed(texts: dict[str, str]) -> dict[str, str]:
    """Return the definitions of a version with most of its views in the instance; ``over`` is in the controller."""
    found = {"x": INSTANCE}
    for name, text in texts.items():
        found[name] = text.replace(f"VIEW {name} AS", f"VIEW {name} IN INSTANCE x AS") if name in APART else text
    return found


class Mortal(Stored):
    """A store as a replica reaches it: one that has ended waits for ever, since nothing of it goes on."""

    def __init__(self, store: Any, writes: Writes, ended: Callable[[], Awaitable[None]]) -> None:
        super().__init__(store, writes)
        self._end = ended

    async def _made(self, what: str, call: Callable[[], Any]) -> Any:
        try:
            return await super()._made(what, call)
        except Crash:
            asyncio.get_running_loop().create_task(self._end())
            return await asyncio.get_running_loop().create_future()


class Apart(Site):
    """A location with a table, an instance of two replicas with views, and a process that prepares a version."""

    old: Core
    preparation: Preparation

    def __init__(self) -> None:
        super().__init__()
        self.writes: dict[str, Writes] = {}
        self.times: list[int] = []
        self.lines: dict[str, list[QueueCarrier]] = {}
        for name in ("a", "b"):
            self.replica(name)

    def stored(self, name: str, kind: Callable[[Any, Writes], Stored] = Stored) -> Any:
        """Return what a process is given that counts its writes under ``name``."""
        have, writes = self.place.assembly, self.writes.setdefault(name, Writes())
        blob: Any = kind(have.blob, writes)
        consensus: Any = kind(have.consensus, writes)
        return replace(have, blob=blob, consensus=consensus, engine=ListEngine(blob))

    def replica(self, name: str) -> None:
        """Begin the process of a replica, in the place of one that has ended."""
        self.writes.pop(name, None)

        async def end() -> None:
            await process.kill()

        assembly = self.stored(name, partial(Mortal, ended=end))
        self.controllers += 1
        process = Process(replace(self.place, assembly=assembly), f"{name}{self.controllers}x", assembly.engine)
        self.processes[f"{name}:1"] = process

    def assembly(self, name: str) -> Any:
        """Return what the process of a controller is given."""
        lines = self.lines[name] = []

        async def dial(address: str) -> QueueCarrier:
            lines.append(await self.dial(address))
            return lines[-1]

        self.controllers += 1
        clock, found = SystemClock(), self.stored(name)
        return replace(
            found,
            consensus=Later(found.consensus),
            clock=clock,
            ids=CountingIds(f"{name}{self.controllers}"),
            together=side_by_side,
            beside=partial(RunningTask, clock),
            dial=dial,
        )

    async def begin(self, name: str, texts: dict[str, str]) -> Core:
        """Begin a controller that writes a project."""
        self.writes.pop(name, None)
        core = await Core.open(self.assembly(name), Config(take_over=True), Mode.FULL)
        await apply(core, project(placed(texts)))
        return core

    async def prepare(self, name: str) -> Preparation:
        """Begin a process that prepares the second version, and have it catch up beside the writer."""
        self.writes.pop(name, None)
        core = await Core.open(self.assembly(name), Config(), Mode.READ)
        await core.look()
        found = Preparation(core, project(placed(TWO)))
        for _ in range(50):
            if not (await found.tick()).behind:
                return found
        raise AssertionError(f"it does not catch up: {found.version.behind}")

    def end(self, name: str) -> None:
        """End a controller, as by kill -9: what it has begun comes to no end."""
        self.writes[name].ended = True
        for each in self.lines[name]:
            each.cut()

    async def advance(self, core: Core) -> None:
        """Change the table and tick."""
        await _change(core, self.n)
        self.n += 1
        self.times.append(await core.tick())

    async def settled(self, core: Core) -> None:
        """Tick until nothing has a problem, both replicas obey, and no view goes on from what was prepared."""
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until:
            await self.advance(core)
            obeying = core.require_writing().running.instances["x"].obeying
            seeds = [item.name for item in core.catalog.items.values() if isinstance(item, View) and item.seed]
            if not (problems := core.health.problems()) and len(obeying) == 2 and not seeds:
                return
            await asyncio.sleep(0.02)  # noqa: TID251 - a connection is tried again after a while
        raise AssertionError(f"problems: {problems}; {len(obeying)} replicas obey; prepared elsewhere: {seeds}")

    async def promote(self) -> Core | None:
        """Have the process that prepares take over while the other one goes on; return it, if it lives."""
        try:
            core = await self.preparation.promote()
            await apply(core, project(placed(TWO)))
            for _ in range(3):
                await self.advance(core)
        except (Crash, StoreError):
            self.end("following")
            return None
        return core

    async def goes_on(self) -> bool:
        """Have the writer before tick, if it lives; return whether it was not succeeded."""
        try:
            if not self.writes["old"].ended:
                await self.advance(self.old)
                return True
        except (FencedError, Crash):
            self.end("old")
        except StoreError:
            return await self.goes_on()  # as `strandline run` does
        return False

    async def check(self) -> None:
        """End the controllers; then others open the location, which is of one version, whole, and promote the next."""
        for name in ("old", "following"):
            self.end(name)
        for name in ("a", "b"):
            if self.writes[name].ended:
                self.replica(name)
        items = (await self.catalog()).items
        core = await self.begin("old", TWO if whole(items) else ONE)
        await self.settled(core)
        if not whole(items):
            self.preparation = await self.prepare("following")
            await ask(self.preparation._core, force=False)
            await self.preparation.tick()
            promoted = await self.promote()
            assert promoted is not None
            with pytest.raises(FencedError):
                await self.advance(core)
            await core.close()
            core = promoted
            await self.settled(core)
        assert await switch(core, self.times) < len(self.times)
        await core.close()

    async def catalog(self) -> Catalog:
        """Return the catalog as it is durable."""
        core = await Core.open(self.place.assembly, Config(), Mode.READ)
        await core.look()
        return core.catalog


async def ready() -> Apart:
    """Return a location whose second version is prepared and asked for."""
    at = Apart()
    at.old = await at.begin("old", ONE)
    for _ in range(3):
        await at.advance(at.old)
    at.preparation = await at.prepare("following")
    await ask(at.preparation._core, force=False)
    await at.preparation.tick()
    return at


async def cut(whose: str, how: str, number: int) -> bool:
    """Have a promotion with a fault at one write of a process; return whether there was that write."""
    async with asyncio.timeout(150):
        at = await ready()
        promoting: list[asyncio.Task[Core | None]] = []

        async def promote() -> None:
            if not promoting:
                promoting.append(asyncio.get_running_loop().create_task(at.promote()))
            await asyncio.wait(promoting)

        at.writes[whose].count(Cut(number, how, promote))
        await at.goes_on()
        await promote()
        goes_on = await at.goes_on()
        if promoting[0].result() is not None:
            assert not goes_on, "two versions write"
            assert whole((await at.catalog()).items)
        there = len(at.writes[whose].made) >= number
        if there or number == 1:
            await at.check()
        for process in at.processes.values():
            await process.kill()
        return there


def enumerated(whose: str, how: str, part: int) -> None:
    """Have one promotion for each of one in `PARTS` of the writes of a process."""
    number = part + 1
    while asyncio.run(cut(whose, how, number)):
        number += PARTS
    assert number > PARTS, "there are so many writes at least"


@pytest.mark.drawn(8)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", ["before", "after", "lost"])
def test_the_controller_that_takes_over_may_end_at_each_of_its_writes(how: str, part: int) -> None:
    """Damage: replicas write two versions, or none; or a view goes on for ever from where it was prepared."""
    enumerated("following", how, part)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", CUTS)
def test_the_controller_that_is_replaced_may_end_at_each_of_its_writes(how: str, part: int) -> None:
    """Damage: replicas obey the version before for as long as they do not know that it was replaced."""
    enumerated("old", how, part)


@pytest.mark.drawn(8)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("how", CUTS)
def test_a_replica_may_end_or_stall_at_each_of_its_writes(how: str, part: int) -> None:
    """Damage: what a replica computed for the version before comes late, and stands among the rows of the new one."""
    enumerated("a", how, part)
