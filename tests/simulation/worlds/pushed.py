"""The world of one materialization: the real runtime and recovery log, over collections and an endpoint in memory.

Runtimes, one after the other or side by side, follow two collections that go on changing.  They crash at any I/O, are
ended in the middle of a turn, and begin anew.  The endpoint is one of `PATTERNS`.  Between a runtime and its driver
there may be a pipe with little room: then either side waits until the other one takes something.

What the endpoint holds is judged at each of its commits, and what is said to it at each message.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from laws.broken import judged, require
from laws.logs import LOGS, WatchedConsensus
from strandline.algebra.schema import Schema
from strandline.errors import AsOfError, FencedError, ProtocolViolation, StrandlineError
from strandline.frontier import Frontier
from strandline.materialize.driver import Session
from strandline.materialize.feed import Changes, Feed
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.fsm import QUIET_TIMES_MAX
from strandline.materialize.protocol.task import canonical
from strandline.materialize.runtime import Task
from strandline.materialize.splits import Splits
from strandline.store.clock import Beside
from strandline.store.unreliable import Choose
from strandline.testing.contracts.drivers.world import KEYED_TYPES, TWO, World, row
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.endpoints import MemorySession
from strandline.testing.feed import ListFeed
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import CHANGE, READ, WAIT, Fate, IoPoint, Simulation, nothing, run_sync
from strandline.testing.simulation.places import SimConsensus, SimIds
from worlds.outside import SimDriver
from worlds.pushed_endpoints import PATTERNS, Pattern, Piped, WatchedPlace

LOG: Final = f"{LOGS}m"
ROUNDS: Final = 5
STEPS_MAX: Final = 20_000
END: Final = "in the end"
CALM_AFTER: Final = 600
TURN_S: Final = 0.05
"""After how long a turn may be ended: some of its steps."""
ROOMS: Final = (0, 1, 1, 2)
SPLITS_MAX: Final = 3
SPLIT_PATTERNS: Final = ("staging", "direct", "reducing in stages")
"""Those whose endpoint keeps no checkpoint: in memory, it would be one for all splits."""


class PushedWorld:
    """One run.

    ``watching``: the class of the endpoint.  ``room``: of the pipe to the driver; 0: there is none.  ``generation``:
    the newest epoch.  ``done``: whether the collections will not change again.  ``now``: what runs, the history or what
    comes after it.
    """

    watching: type[WatchedPlace] = WatchedPlace

    def __init__(self, choose: Choose, pattern: str, splits_max: int = 1) -> None:
        self.simulation = self.now = Simulation(choose, tuple(Fate), CALM_AFTER, STEPS_MAX)
        self.marks: Counter[str] = Counter()
        self.pattern: Pattern = PATTERNS[pattern]
        self.splits_max = splits_max
        self.room = ROOMS[self.choose("room", len(ROOMS))]
        self.generation = 1
        self.done = False
        self.spec = self.pattern.spec(TWO)
        self.place = self.watching(judges=self, spec=self.spec)
        self.data = World(self.place, TWO, KEYED_TYPES)  # type: ignore[arg-type]  # of it, only the collections
        self.consensus = WatchedConsensus(HandClock(), CountingIds("observer"))
        self.ids = SimIds()
        self.position = 0

    @property
    def acknowledged(self) -> int:
        """How often rows came to the endpoint."""
        return self.place.commits

    def choose(self, label: str, n: int) -> int:
        """Make a choice of this history."""
        return self.now.choose(label, n)

    def task(self, epoch: int) -> Task | Splits:
        """Return a runtime under an epoch; where there may be splits, with a number of them."""
        logs = partial(RecoveryLog, HandClock(), self.ids, SimConsensus(self.consensus))
        driver, feeds = self.driver(), self.feeds()
        if self.splits_max == 1:
            return Task(self.spec, driver, logs(LOG, epoch), feeds, beside=self.now.beside)
        spec = replace(self.spec, splits=1 + self.choose("splits", self.splits_max))
        of_split = lambda split, of: logs(f"{LOG}/{split}", of)  # noqa: E731
        return Splits(spec, driver, logs(LOG, epoch), of_split, self.ids, feeds, beside=self.now.beside)

    def driver(self) -> Driver:
        """Return one more driver."""
        return Driver(self.place, self.pattern.session, self.room, self.now.beside)

    def feeds(self) -> list[Feed]:
        """Return the feeds of what is bound, in order."""
        return [SimFeed(feed) for feed in self.data.feeds]

    def joined(self) -> None:
        """Begin what goes on besides."""

    def turned(self, task: Task | Splits) -> None:
        """Take note of what a task has come to, after a turn."""

    def run(self) -> None:
        """Make the history, and see the endpoint arrive after it.  Raises what it breaks."""
        with judged():
            self.simulation.drive()
            self.now = Simulation(lambda _label, _n: 0, tuple(Fate), 0, STEPS_MAX)
            self.now.spawn("last", lambda _: self.arrive())
            self.now.drive()

    async def arrive(self) -> None:
        """L1: a runtime that nothing disturbs brings the endpoint to where the collections are."""
        task = self.task(self.generation + 1)
        self.change()
        try:
            while await task.advance():
                pass
        except AsOfError as error:
            require("M2", holds=False, message=f"what the endpoint needs is gone: {error}")
        await task.close()
        require("L1", task.status.position == self.data.upper, f"it stays at {task.status.position}")
        self.judge(task.status.checkpoint if self.splits_max == 1 else task.status.position, END)

    def change(self) -> None:
        """Let the collections change, and a time pass."""
        if not self.pattern.reduces:
            self.data.write_round()
            return
        for feed in self.data.feeds:
            for _ in range(self.choose("rows", 4)):
                added = row(self.choose("key", 3), float(self.choose("value", 5)), "pqr"[self.choose("text", 3)])
                feed.write(self.data.upper, (added, 1))
        self.data.seal(self.data.upper + 1)

    def truth(self, index: int, time: int) -> list[str]:
        """Return the rows that a binding's resource comes to with the changes before ``time``."""
        if not self.pattern.reduces:
            return self.data.truth(index, time)
        changes = ((at, canonical(each), each) for each, at, _ in self.data.feeds[index].timed_before(time))
        reduced: dict[int, dict[str, Any]] = {}
        for _, _, each in sorted(changes, key=lambda change: change[:2]):
            before = reduced.get(each["k"])
            reduced[each["k"]] = each if before is None else {**each, "f": before["f"] + each["f"]}
        return sorted(canonical(each) for each in reduced.values())

    def judge(self, time: int, when: str) -> None:
        """M2: what the endpoint holds is what the collections hold before ``time``; M4, of what is pushed likewise.

        Before the end some splits may be ahead of others.
        """
        if self.splits_max > 1 and when != END:
            return
        for index, binding in enumerate(self.spec.bindings):
            wanted = self.truth(index, time)
            found = sorted(canonical(each) for each in self.place.held(index, time))
            law = "M4" if binding.delta else "M2"
            require(law, found == wanted, f"{when}, at {time}, {binding.resource!r} holds {found}, not {wanted}")


class Driver(SimDriver):
    """The driver of the place; its sessions are at the other end of a pipe that has ``room``, if it has any."""

    def __init__(self, place: WatchedPlace, session: type[Any], room: int = 0, beside: Beside | None = None) -> None:
        super().__init__(place, session)
        self._room = room
        self._pipes = beside

    async def open(self) -> Session:  # type: ignore[override]
        """See `Driver.open`."""
        session: Any = await super().open()
        assert isinstance(session, MemorySession)
        return session if not self._room or self._pipes is None else Piped(session, self._room, self._pipes)  # type: ignore[arg-type]


class SimFeed:
    """A collection, whose every call is an I/O point."""

    def __init__(self, inner: ListFeed) -> None:
        self._inner = inner
        self.name = inner.name
        self.schema: Schema = inner.schema
        self.waits = ""

    async def upper(self) -> Frontier:
        """See `Feed.upper`."""
        return await IoPoint("feed.upper", (self.name,), lambda: run_sync(self._inner.upper()), READ)

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """See `Feed.changes`."""
        read = self._inner.changes
        run = lambda: run_sync(read(lower, upper, key=key, times=times))  # noqa: E731
        return await IoPoint("feed.changes", (self.name, lower, upper), run, READ)

    async def hold(self, frontier: Frontier) -> None:
        """See `Feed.hold`."""
        await IoPoint("feed.hold", (self.name, str(frontier)), lambda: run_sync(self._inner.hold(frontier)), CHANGE)


# ---- users -----------------------------------------------------------------------------------------------------------


async def write(world: PushedWorld) -> None:
    """Let the collections change, and time pass."""
    for _ in range(ROUNDS):
        await pause(world, "write", 60)
        match world.choose("round", 5):
            case 0:
                world.data.seal(world.data.upper + 1)
            case 1:
                world.data.seal(world.data.upper + QUIET_TIMES_MAX)
            case _:
                world.change()
    world.done = True


async def follow(world: PushedWorld, epoch: int) -> None:
    """Run the task until it has arrived, or belongs to another epoch."""
    task: Task | Splits | None = None
    spec = world.spec
    while True:
        if task is not None and spec is not world.spec:
            await task.close()
            task = None
        if task is None:
            task, spec = world.task(epoch), world.spec
        try:
            rests = await turn(world, task)
            world.turned(task)
            if rests and world.done and task.status.position == world.data.upper and spec is world.spec:
                await task.close()
                return
        except ProtocolViolation as error:
            require("M1", holds=False, message=str(error))
        except FencedError:
            world.marks["fenced"] += 1
            if epoch < world.generation:
                return
            task = None
        except AsOfError:
            world.marks["history gone"] += 1
            newest = epoch == world.generation and spec is world.spec
            require("M2", not newest, "the newest runtime cannot read what it needs")
            if epoch < world.generation:
                return
        except StrandlineError as error:
            world.marks[type(error).__name__] += 1
        if task is not None and not task.under_way:
            await pause(world, "turn", 40)


async def turn(world: PushedWorld, task: Task | Splits) -> bool:
    """Let the task advance; or begin it, and end it in the middle.  Return whether it came to its end."""
    if world.simulation.calm or world.choose("patience", 8):
        moved = await task.advance()
        world.marks["under way"] += task.under_way
        return not moved
    raised: list[Exception] = []

    async def advance() -> None:
        try:
            await task.advance()
        except Exception as error:  # noqa: BLE001 - it is raised below
            raised.append(error)

    running = world.simulation.beside(advance)
    if not await running.wait(TURN_S):
        world.marks["ended"] += 1
        await running.cancel()
        await task.close()
    if raised:
        raise raised[0]
    return False


async def take_over(world: PushedWorld) -> None:
    """Begin later, under an epoch of its own."""
    await pause(world, "take over", 200)
    world.place.alone = False
    world.generation = 2
    await follow(world, 2)


async def pause(world: PushedWorld, label: str, most: int) -> None:
    """Let some time pass."""
    await IoPoint("clock.sleep", (label,), nothing, WAIT, delay_ms=1 + world.choose(label, most))


def play_split(seed: int) -> PushedWorld:
    """Make the history of ``seed``, in which each runtime has some number of splits.  Raises what it breaks."""
    return play(seed, SPLIT_PATTERNS, SPLITS_MAX)


def play(
    seed: int,
    patterns: Sequence[str] = tuple(PATTERNS),
    splits_max: int = 1,
    kind: type[PushedWorld] = PushedWorld,
) -> PushedWorld:
    """Make the history of ``seed``, in a world of some ``kind``.  Raises what it breaks."""
    pattern = patterns[seed % len(patterns)]
    world = kind(Seeded(random.Random(seed)), pattern, splits_max)
    world.simulation.spawn("writer", lambda n: write(world) if n == 0 else finish(world))
    world.joined()
    world.simulation.spawn("a", lambda _: follow(world, 1))
    if world.pattern.shared and world.choose("two", 2):
        world.simulation.spawn("b", lambda _: take_over(world))
    try:
        world.run()
    except Exception as error:
        error.add_note(f"seed {seed}")
        raise
    return world


async def finish(world: PushedWorld) -> None:
    """Let the collections stay as they are: who wrote them has crashed."""
    world.done = True
