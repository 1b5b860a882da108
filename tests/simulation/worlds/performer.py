"""Performers of scripts over whole environments.

A script is a list of *acts*; a performer opens the location, does one act after another, and in the end sees everything
catch up without help.  An act that is not answered is done again.  A performer that crashes begins anew with its name,
and with the act that it was at: the environment's caller knows which acts are over, and under which token a commit was
asked for; the environment does not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias
from unittest import mock

from laws.broken import require
from laws.views import Attempt
from strandline.controller.core import Core
from strandline.controller.defining.project.settings import Defined, Project
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.version import Version
from strandline.controller.preparing.preparation import Preparation, settle
from strandline.errors import FencedError, StoreError, Unavailable
from strandline.persist.shard import trace
from strandline.testing.simulation.kernel import run_sync
from strandline.testing.simulation.places import SimClock
from worlds.instance import Instance, parsed
from worlds.meanings import Row
from worlds.one_fault import OneFault
from worlds.system import World
from worlds.whole import prepare

UNANSWERED: Final = (StoreError, Unavailable, OSError)
PREPARED_TICKS: Final = 3
"""How often a version that is prepared follows the writer before it is promoted."""
TRIES_MAX: Final = 50
"""How often one act is done: never reached with one fault."""


class Stage(World):
    """A world in which a script is performed; ``choose`` is notified when the script is over."""

    def __init__(self, choose: OneFault, script: Script, patience: int) -> None:
        super().__init__(choose)
        self.fault = choose
        self.script = script
        self.later_patience = patience
        self.keep_history = script.keep_history
        self.ticks_between = 1
        if script.upkeep:
            self.fan, self.inline_bytes, self.rollup_every = 2, 100, 4
        self.over: Counter[str] = Counter()  # by performer: how many of its acts are over
        self.asked: dict[tuple[str, int], Attempt] = {}
        self.taking_over = False  # whether the second performer has begun

    def perform(self) -> None:
        """Perform the script to its end.  Raises what it breaks."""
        run_sync(prepare(self, self.script.defined))
        self.patience = self.later_patience
        large = 0 if self.script.upkeep else trace.LARGE_UPDATES
        with mock.patch.object(trace, "LARGE_UPDATES", large), self.constants():
            self.simulation.spawn("first", self._first)
            self.run()
        require("L2", self.marks["caught up"] == 1, "the script was not performed to its end")

    def take_over(self) -> None:
        """Let the second performer begin, once."""
        if not self.taking_over:
            self.taking_over = True
            self.simulation.spawn("second", lambda _: Performer(self, "second", self.script.second).live())

    def _first(self, incarnation: int):
        if incarnation and self.taking_over:
            return None  # the second has taken its place
        return Performer(self, "first", self.script.acts).live()


class Performer(Instance):
    """An instance that performs acts; the last one sees everything catch up."""

    def __init__(self, world: Stage, name: str, acts: Sequence[Act]) -> None:
        super().__init__(world, name, world.script.defined, 0)
        self.stage = world
        self.acts = acts

    async def live(self) -> None:
        """Open the location until that is answered, and perform what is left of the acts."""
        stage = self.stage
        for _ in range(TRIES_MAX):
            try:
                core = await self._opened()
                break
            except UNANSWERED:
                await SimClock(stage.simulation).sleep(0.05)
        else:
            raise AssertionError(f"{self.name} cannot open the location")
        try:
            await self._perform(core)
        except FencedError:
            require("fence", stage.taking_over and self.name == "first", f"{self.name} is fenced by no other writer")
            stage.marks["fenced"] += 1
        finally:
            await self._close(core)

    async def _opened(self) -> Core:
        """Open the location for writing; the second performer of a script promotes its next version, if it has one."""
        stage = self.stage
        config = Config(take_over=True, keep_history=stage.keep_history)
        if self.name == "first" or not stage.script.promoted:
            return await Core.open(stage.assembly(), config, Mode.FULL)
        version = await self._prepared(config)
        core = await Core.open(stage.assembly(), config, Mode.FULL, version.promoted)
        try:
            await settle(core, version)
        except UNANSWERED:
            stage.marks["settle: unknown"] += 1  # it stays there, and is what the catalog has
        return core

    async def _prepared(self, config: Config) -> Version:
        """Prepare the next version beside the first performer, until it has caught up; empty: it was promoted."""
        stage = self.stage
        defined = tuple(Defined(f"{n}.sql", parsed(text)) for n, text in enumerate(stage.script.promoted))
        core = await Core.open(stage.assembly(), config, Mode.READ)
        try:
            await core.look()
            preparation = Preparation(core, Project(Path(), "", None, {}, 1_000, {}, defined))
            try:
                for _ in range(PREPARED_TICKS):
                    version = await preparation.tick()
                    await SimClock(stage.simulation).sleep(0.01)
                stage.marks["prepared"] += bool(version.views)
                return version
            finally:
                await preparation.close()
        finally:
            await core.close()

    async def _perform(self, core: Core) -> None:
        stage = self.stage
        while stage.over[self.name] < len(self.acts):
            await self._until_answered(core, self.acts[stage.over[self.name]])
            stage.over[self.name] += 1
        if self.name == "first" and stage.taking_over:
            return
        stage.fault.over = True
        await self._catch_up(core)
        await stage.observer.look()

    async def _until_answered(self, core: Core, act: Act) -> None:
        for _ in range(TRIES_MAX):
            try:
                return await act(self, core)
            except UNANSWERED:
                await core.client.clock.sleep(0.01)
        raise AssertionError(f"an act of {self.name} was done {TRIES_MAX} times")

    # ---- what acts are made of -----------------------------------------------------------------------------------

    async def tick(self, core: Core) -> None:
        """Tick, and hold everything against the laws."""
        await self._tick(core)

    async def commit(self, core: Core, rows: dict[str, list[tuple[Row, int]]]) -> None:
        """Commit rows under this act's token, until that is answered."""
        stage, at = self.stage, (self.name, self.stage.over[self.name])
        if at not in stage.asked:
            stage.asked[at] = Attempt(f"{self.name}.{at[1]}", rows)
            stage.observer.attempts.append(stage.asked[at])
        await self._ask(core, stage.asked[at])
        if stage.asked[at].time is None:
            await self._ticked(core, core.tick())  # a table that could not be opened is opened by it
            raise Unavailable("the commit was not answered")


Act: TypeAlias = Callable[[Performer, Core], Awaitable[None]]


@dataclass(frozen=True)
class Script:
    """What is performed: what is defined beforehand, the acts, and those of an instance that takes over meanwhile.

    ``promoted``: the definitions of the version that the second one prepares, and then takes over with.
    ``upkeep``: batches are merged and moved to objects as soon as that can be.
    """

    name: str
    defined: tuple[str, ...]
    acts: tuple[Act, ...]
    second: tuple[Act, ...] = ()
    promoted: tuple[str, ...] = ()
    patience: tuple[int, ...] = (64, 1)
    keep_history: str = "1 hour"
    upkeep: bool = False
