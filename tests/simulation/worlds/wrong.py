"""The world of instances apart in which one of two replicas is wrong: now and then it adds a row to what it writes.

The views are right in spite of it: such a row is one that no other writer has, as those of a vandal, so the laws of
views tell it from what is the view's own.  Beside ticks the controller judges what replicas report, as an environment
does.  The laws are: the right replica is never named (N1); and once the wrong one is named, and a right one is there,
it runs nothing, and all that was written is right again (N2).
"""

from __future__ import annotations

import random
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

from laws.broken import require
from laws.views import FOREIGN
from strandline.controller.asking.wrong_replicas import WrongReplicas
from strandline.controller.core import Core
from strandline.controller.location.items import View
from strandline.errors import StoreError, Unavailable
from strandline.persist.handles.contents import Rows, StageRequest
from strandline.persist.shard.batch import Staged
from strandline.store.protocols import Blob
from strandline.testing.lists.list_engine import Listed, listed
from strandline.testing.simulation.exploration import Seeded
from worlds.apart import FOCI, INSTANCE, ApartWorld, Controller, populate
from worlds.instance import REFRESHED_WITHIN_MS, scheduled
from worlds.system import FailingEngine
from worlds.whole import CALM_AFTER

T = TypeVar("T")

WRONG: Final = "b"
CHOSEN: Final = {"replicas": 1, "placed": 1, "instances": 0, "vandal": 1}
"""What is not left to chance: there are two replicas, which run all that they may, one controller, and no vandal."""
EVER: Final = 1 << 60
CHANGES: Final = 10
SETTLED_WITHIN: Final = 200
"""Within so many ticks after the last fault, the first of which change tables, all that was found wrong is right."""


class LyingEngine(FailingEngine):
    """The engine of the wrong replica, which adds a row to every third batch of a view."""

    async def stage(self, rows: Rows, request: StageRequest) -> Staged:
        """See `Engine.stage`."""
        world, frame = self._world, listed(rows)
        catalog = await world.observer.catalog()
        final = any(isinstance(item, View) and item.shard == request.shard for item in catalog.items.values())
        if final and frame.rows and world.choose("lie", 3) == 0:
            world.observer.spoilt[request.shard].append(range(request.lower, EVER))
            world.observer.mistaken.add(request.shard)
            world.marks["lied"] += 1
            made = {c.name: "foreign" if c.type == "string" else FOREIGN + world.number() for c in request.schema}
            lie = {**dict.fromkeys(frame.names), **made, "__time": request.lower, "__diff": 1}
            rows = Rows(Listed(frame.names, (*frame.rows, lie)))
        return await super().stage(rows, request)


class WrongWorld(ApartWorld):
    """One run, in which a replica is wrong."""

    def engine(self, address: str, blob: Blob) -> FailingEngine:
        """See `ApartWorld.engine`."""
        return (LyingEngine if address == f"{WRONG}:1" else FailingEngine)(self, blob)

    def controller(self, name: str, wanted: list[str], tasks: int) -> Controller:
        """See `ApartWorld.controller`."""
        return Judge(self, name, wanted, tasks)


class Judge(Controller):
    """An environment's program, which judges what replicas report."""

    _judging: tuple[Core, WrongReplicas] | None = None
    _excused = False

    async def _ticked(self, core: Core, tick: Coroutine[Any, Any, T]) -> T:
        """See `Instance._ticked`."""
        found = await super()._ticked(core, tick)
        judge = self._judge(core)
        try:
            await judge.turn()
            await judge.settle()
        except (StoreError, Unavailable):
            self.world.marks["not judged"] += 1
        named = {replica for _, replica in judge._named}
        require("N1", named <= {WRONG}, f"{judge._named} are named, and {WRONG} alone is wrong")
        if named:
            self.world.marks["named"] += 1
        if self._excused:
            core.health.wrong = {}
        return found

    def _judge(self, core: Core) -> WrongReplicas:
        if self._judging is None or self._judging[0] is not core:
            self._judging = core, WrongReplicas(core)
        return self._judging[1]

    def _due(self, core: Core) -> int | None:
        """Return a time at which each view with a schedule is due: only then is it right again, and clocks may go back.

        None: there is none.
        """
        due = any(scheduled(item) for item in core.catalog.items.values())
        return core.require_writing().oracle.now() + REFRESHED_WITHIN_MS if due else None

    async def _catch_up(self, core: Core) -> None:
        """See `Instance._catch_up`; before that, let the wrong replica be found."""
        world, judge = self.world, self._judge(core)
        for n in range(SETTLED_WITHIN):
            if n < CHANGES:
                await self._commit(core)
            await self._ticked(core, core.tick(self._due(core)))
            await core.client.clock.sleep(0.05)
            instance = core.require_writing().running.instances.get(INSTANCE)
            if n > CHANGES and judge.settled and (instance is None or instance.obeying):
                break
        else:
            require("N2", False, f"{judge._wrong} is wrong {SETTLED_WITHIN} ticks after the last fault")
        if instance is not None and judge._named:
            require("N2", set(instance.trust.bars) == {WRONG}, f"{judge._named} is named, and runs on")
            now = core.require_writing().oracle.floor
            for shard, times in world.observer.spoilt.items():
                world.observer.spoilt[shard] = [range(each.start, min(each.stop, now)) for each in times]
            world.marks["histories: named"] += 1
        self._excused = True  # what the wrong replica did stays a problem for as long as its process is there
        await super()._catch_up(core)


def play(seed: int) -> WrongWorld:
    """Make the history that ``seed`` is, to its end.  What it breaks is raised, with how to make it again."""
    rng = random.Random(seed)
    world = WrongWorld(Seeded(rng, FOCI[int(rng.random() * len(FOCI))]), calm_after=CALM_AFTER[int(rng.random() * 3)])
    choose = world.choose
    world.choose = world.simulation.choose = lambda label, n: CHOSEN[label] if label in CHOSEN else choose(label, n)
    try:
        populate(world)
        world.run()
    except Exception as error:
        error.add_note(f"replay this history: worlds.wrong.play({seed})")
        raise
    return world
