"""Splits that keep a schedule replay what was cut off at once, so no part of a transaction is seen alone."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from strandline.materialize.log import Record, peek, register_of
from strandline.materialize.schedule import Begun, Pace, Schedule, paced
from strandline.testing.contracts.drivers.splits_contract import SplitWorld
from strandline.testing.contracts.drivers.world import row
from strandline.testing.doubles import CountingIds
from strandline.testing.endpoints import KeyValueSession, MemoryEndpoint
from strandline.testing.simulation.crashes import Crash, CrashPlan

START = 1_700_000_000_000
EVERY = 600_000
KEYS = range(1, 9)


class PacedSplits(SplitWorld):
    """Two splits of an endpoint that shows each row at once, under a schedule; each process begins by the logs."""

    splits = 2

    def __init__(self) -> None:
        super().__init__(MemoryEndpoint(KeyValueSession, fences=False))
        self.clock.now = START
        self.lists = list(self.feeds)

    def process(self) -> None:
        """Begin as a new process does."""
        self.feeds = list(paced(self.lists, Pace(Schedule(EVERY), self.clock), self.begun))  # type: ignore[arg-type]

    async def begun(self) -> Begun:
        """Ask the logs."""
        whole = await self._record("log/m")
        records = [await self._record(f"log/m/{share.log}") for share in whole.layout] or [whole]
        return Begun.of([record.progress for record in records], self.spec.state_keys)

    async def _record(self, key: str) -> Record:
        return await peek(register_of(key, self.clock, CountingIds("p"), self.consensus))

    def write(self, ms: int, *changes: tuple[str, int]) -> None:
        """Let time pass, and each key get and lose texts."""
        self.clock.now += ms
        for key in KEYS:
            self.lists[0].write(self.clock.now - 1, *((row(key, 0.5, text), diff) for text, diff in changes))
        self.seal(self.clock.now)

    def shown(self) -> set[str]:
        """Return the texts that a reader of the endpoint sees."""
        return {each["s"] for each in self.endpoint.rows("Orders")}


def test_no_part_of_a_transaction_is_seen_alone_until_the_next_one_is_due() -> None:
    """Damage: a process ends in the middle of a store, and for ten minutes some keys are new and others old."""

    async def crashed(at: int, *, after: bool) -> bool:
        world = PacedSplits()
        world.process()
        runtime = world.runtime()
        world.write(1, ("old", 1))
        for _ in range(3):
            await runtime.advance()
        await runtime.close()
        assert world.shown() == {"old"}
        world.write(EVERY, ("old", -1), ("new", 1))
        world.process()
        plan = CrashPlan(at, after=after)
        with suppress(Crash):
            await world.runtime(plan).advance()
        world.process()
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
