"""A task over paced feeds moves when its schedule lets it, loses nothing, and replays what was cut off at once."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from strandline.frontier import Frontier
from strandline.materialize.log import Record, peek, register_of
from strandline.materialize.schedule import Begun, Pace, Schedule, paced
from strandline.testing.contracts.drivers.splits_contract import SplitWorld
from strandline.testing.contracts.drivers.world import World, row
from strandline.testing.doubles import CountingIds
from strandline.testing.endpoints import KeyValueSession, MemoryEndpoint, StagingSession
from strandline.testing.simulation.crashes import Crash, CrashPlan

START = 1_700_000_000_000
EVERY = 600_000


class PacedWorld(World):
    """A world whose runtimes keep a schedule."""

    def __init__(
        self, session: type[KeyValueSession | StagingSession] = KeyValueSession, *, fences: bool = True
    ) -> None:
        super().__init__(MemoryEndpoint(session, fences=fences))
        self.clock.now = START
        self.lists = list(self.feeds)
        self.pace = Pace(Schedule(EVERY), self.clock)

    async def process(self) -> None:
        """Begin as a new process does: from what the log says."""
        self.pace = Pace(Schedule(EVERY), self.clock)
        self.feeds = list(paced(self.lists, self.pace, self.begun))  # type: ignore[arg-type]

    async def begun(self) -> Begun:
        """Ask the log, or those of the splits that it names."""
        whole = await self._record("log/m")
        records = [await self._record(f"log/m/{share.log}") for share in whole.layout] or [whole]
        return Begun.of([record.progress for record in records], self.spec.state_keys)

    async def _record(self, key: str) -> Record:
        return await peek(register_of(key, self.clock, CountingIds("p"), self.consensus))

    def write(self, ms: int) -> None:
        """Let time pass, and something change in one collection."""
        self.clock.now += ms
        now, (orders, _) = self.clock.now, self.lists
        orders.write(now - 1, (row(now, 0.5, f"at {now}"), 1))
        self.seal(now)

    def check_at(self, time: int) -> None:
        """Check law M2 by the collections themselves."""
        kept, self.feeds = self.feeds, self.lists
        self.check(time)
        self.feeds = kept


class PacedSplits(PacedWorld, SplitWorld):
    """Two splits of an endpoint that shows each row at once."""

    splits = 2

    def change(self, ms: int, *changes: tuple[str, int]) -> None:
        """Let time pass, and each of eight keys get and lose texts."""
        self.clock.now += ms
        for key in range(1, 9):
            self.lists[0].write(self.clock.now - 1, *((row(key, 0.5, text), diff) for text, diff in changes))
        self.seal(self.clock.now)

    def shown(self) -> set[str]:
        """Return the texts that a reader of the endpoint sees."""
        return {each["s"] for each in self.endpoint.rows("Orders")}


def test_nothing_is_delivered_before_it_is_due_and_everything_then() -> None:
    """Damage: a schedule is not kept, or what was written while the task waited never arrives."""

    async def body() -> None:
        world = PacedWorld()
        await world.process()
        runtime = world.runtime()
        world.write(1)
        assert await runtime.advance(), "the first transaction waits for nothing"
        first = world.upper
        for _ in range(9):
            world.write(60_000)
            assert not await runtime.advance()
            world.check_at(first)
        assert world.pace.waits.endswith("2023-11-14T22:23:20+00:00")
        assert all(feed.since <= Frontier(first) for feed in world.lists), "what it waits for must stay readable"
        world.write(60_000)
        assert await runtime.advance()
        assert runtime.status.position == world.upper
        world.check_at(world.upper)
        assert world.pace.waits == ""
        await runtime.close()

    asyncio.run(body())


def test_all_collections_of_a_task_come_to_one_time() -> None:
    """Damage: tables of one materialization disagree, or the task waits for a second beginning."""

    async def body() -> None:
        world = PacedWorld()
        await world.process()
        runtime = world.runtime()
        world.write(1)
        world.lists[1].seal(Frontier(world.upper - 1))  # the other one lags
        assert await runtime.advance()
        assert runtime.status.position == world.upper - 1
        await runtime.close()

    asyncio.run(body())


def test_a_transaction_that_was_cut_off_is_replayed_at_once_and_the_next_one_waits() -> None:
    """Damage: readers see half a transaction until the next one is due; or a crash begins one more."""

    async def once(at: int, *, after: bool) -> bool:
        world = PacedWorld()
        await world.process()
        plan = CrashPlan(at, after=after)
        world.write(1)
        with suppress(Crash):
            await world.runtime(plan).advance()
        cut_off = world.upper
        stored = {each["s"] for each in world.endpoint.rows("Orders")}
        world.write(1)
        await world.process()
        successor = world.runtime()
        while await successor.advance():
            pass
        if stored or successor.status.checkpoint == cut_off:
            world.check_at(cut_off)
            assert not await successor.advance()
        world.write(EVERY)
        while await successor.advance():
            pass
        world.check_at(world.upper)
        return plan.happened

    async def body() -> None:
        for after in (False, True):
            at = 1
            while await once(at, after=after):
                at += 1
            assert at > 10

    asyncio.run(body())


def test_no_part_of_a_transaction_is_seen_alone_until_the_next_one_is_due() -> None:
    """Damage: a process ends in the middle of a store, and for ten minutes some keys are new and others old."""

    async def crashed(at: int, *, after: bool) -> bool:
        world = PacedSplits(fences=False)
        await world.process()
        runtime = world.runtime()
        world.change(1, ("old", 1))
        for _ in range(3):
            await runtime.advance()
        await runtime.close()
        assert world.shown() == {"old"}
        world.change(EVERY, ("old", -1), ("new", 1))
        await world.process()
        plan = CrashPlan(at, after=after)
        with suppress(Crash):
            await world.runtime(plan).advance()
        await world.process()
        world.clock.now += 1
        restarted = world.runtime(epoch=2)
        for _ in range(3):
            await restarted.advance()
        await restarted.close()
        assert world.shown() in ({"old"}, {"new"}), f"crashed {'behind' if after else 'before'} call {at}"
        return plan.happened

    async def body() -> None:
        for after in (False, True):
            at = 1
            while await crashed(at, after=after):
                at += 2

    asyncio.run(body())
