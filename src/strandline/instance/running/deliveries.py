"""The materializations of an instance: a loop for each, and calls of triggers after their transactions.

With a loop for each, a silent endpoint keeps no other one waiting.

A trigger is called beside the transactions, which never wait for it, with the time that is reached.  One call is made
at a time; while it is made, or fails and is to be made again, further transactions share one call, the next one.  So
for each transaction at least one call is made afterwards that names its time or a later one.  The last call before the
process ended may not have been made, so a process begins by naming the time that it finds.

Ticks make the next attempt; after a failure, not before a pause, which grows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

import msgspec

from strandline.errors import FencedError, reason
from strandline.instance.connections import Trigger
from strandline.instance.loop import Loop, bring
from strandline.instance.problems import Problems
from strandline.instance.reports import ENDED
from strandline.materialize.schedule import Pace
from strandline.materialize.splits import Splits
from strandline.persist.shard.patience import Deadline
from strandline.problem import Problem, Stopped, Way, joined
from strandline.store.clock import Beside, Clock

PAUSE_MS: Final = 1_000
PAUSE_MS_MAX: Final = 60_000
"""How long to wait after the first failure, and at most: each time twice as long."""


REFUSED: Final = Problem(
    "trigger-refused",
    "its trigger {why}; it is called again",
    Stopped.NOTHING,
    (
        Way("mend what it calls"),
        Way("call it no longer", "ALTER MATERIALIZATION {item:sql} RESET (trigger)"),
    ),
    "The endpoint is up to date; what the trigger starts may not know of it.",
)


class Announcer:
    """The announcements of one materialization.  Its loop is woken by the owner."""

    def __init__(self, name: str, key: str, trigger: Trigger, clock: Clock, beside: Beside, problems: Problems) -> None:
        """``key``: another one for each materialization, also for one of a name that was used before."""
        self._name = name
        self._key = key
        self._trigger = trigger
        self._clock = clock
        self._problems = problems
        self._wanted = self._done = 0
        self._pause = PAUSE_MS
        self._next_ms = 0
        self.trouble = ""
        """Why the last call failed; empty if it did not."""
        self.loop = Loop(beside, self._turn)

    @property
    def behind(self) -> bool:
        """Whether a call is to be made."""
        return self._done < self._wanted

    def reached(self, checkpoint: int) -> None:
        """Take note of a time before which everything is at the endpoint; 0: of nothing yet."""
        self._wanted = max(self._wanted, checkpoint)

    async def _turn(self) -> None:
        now = self._clock.now_ms()
        while self.behind and not self._next_ms - PAUSE_MS_MAX <= now < self._next_ms:
            wanted, before = self._wanted, self.trouble
            body = msgspec.json.encode({"materialization": self._name, "checkpoint": wanted})
            try:
                refusal = await self._trigger(body, f"{self._key}-{wanted}")
            except Exception as error:  # noqa: BLE001 - a trigger never stops its materialization
                refusal = reason(error)
            if refusal:
                self.trouble = REFUSED.said(why=refusal, item=self._name)
                self._next_ms, self._pause = now + self._pause, min(2 * self._pause, PAUSE_MS_MAX)
                self._problems.setdefault(self._name, self.trouble)
                return
            self._done, self._pause, self._next_ms, self.trouble = wanted, PAUSE_MS, 0, ""
            if before and self._problems.get(self._name) == before:
                self._problems.note(self._name, "")


@dataclass
class Deliveries:
    """The tasks that are open, by name."""

    beside: Beside
    problems: Problems
    tasks: dict[str, Splits] = field(default_factory=dict)
    ended: dict[str, FencedError] = field(default_factory=dict)
    """The sessions that an endpoint has ended, by the task's name: whose they are the controller finds out."""
    paces: dict[str, Pace] = field(default_factory=dict)
    """When the tasks begin their transactions."""
    _loops: dict[str, Loop] = field(default_factory=dict)
    _announcers: dict[str, Announcer] = field(default_factory=dict)

    def add(self, name: str, task: Splits, pace: Pace, announcer: Announcer | None = None) -> None:
        """Have a task follow its collections from now on, whose feeds keep ``pace``; ``announcer``: and say so."""
        self.tasks[name], self.paces[name] = task, pace
        if announcer is not None:
            self._announcers[name] = announcer
        self._loops[name] = Loop(self.beside, lambda: self._turn(name))

    async def stop(self, name: str) -> None:
        """End a task.  Raises what its endpoint raises."""
        self.ended.pop(name, None)
        self.paces.pop(name, None)
        if (announcer := self._announcers.pop(name, None)) is not None:
            await announcer.loop.end()
        loop, task = self._loops.pop(name, None), self.tasks.pop(name, None)
        if loop is not None and task is not None:
            await loop.end()
            await task.close()

    async def halt(self) -> None:
        """End all turns."""
        for announcer in self._announcers.values():
            await announcer.loop.end()
        for name, loop in list(self._loops.items()):
            await loop.end()
            if name in self.tasks:
                await self.tasks[name].halt()

    async def close(self) -> None:
        """End all.  Raises what an endpoint raises, once all are ended."""
        async with AsyncExitStack() as ending:
            for name in list(self.tasks):
                ending.push_async_callback(self.stop, name)

    def wake(self) -> None:
        """Let every endpoint follow its collections, beside the caller."""
        for loop in (*self._loops.values(), *self._announcing().values()):
            loop.wake()

    async def bring(self, deadline: Deadline | None) -> None:
        """Let every endpoint follow its collections; return when all have, or at the deadline."""
        await bring(self._loops, deadline)
        await bring(self._announcing(), deadline)

    def _announcing(self) -> dict[str, Loop]:
        """Return the loops that have something to announce."""
        return {name: announcer.loop for name, announcer in self._announcers.items() if announcer.behind}

    def hurry(self, asked: Mapping[str, int]) -> None:
        """Let the tasks that are here, by name, come to the times that are asked for, as soon as they can."""
        for name, time in asked.items():
            if name in self.paces:
                self.paces[name].hurry(time)

    @property
    def due(self) -> bool:
        """Whether a transaction that waited as its schedule says may begin now."""
        return any(pace.due for pace in self.paces.values())

    def notices(self) -> dict[str, list[str]]:
        """Return when the tasks go on that wait as their schedules say, by name."""
        return {name: [pace.waits] for name, pace in self.paces.items() if pace.waits}

    def under_way(self) -> Iterator[str]:
        """Yield the tasks that are on their way to where their collections are."""
        yield from (name for name, loop in self._loops.items() if not loop.resting)

    def _announced(self, name: str) -> str:
        """Have announced how far a task is; return why that fails, if it does."""
        announcer = self._announcers.get(name)
        if announcer is None:
            return ""
        announcer.reached(self.tasks[name].status.checkpoint)
        if announcer.behind:
            announcer.loop.wake()
        return announcer.trouble

    async def _turn(self, name: str) -> None:
        task = self.tasks[name]
        async with self.problems.of(name):
            try:
                await task.advance()
            except FencedError as error:
                self.ended[name] = error
                self.problems.note(name, ENDED.said(why=error))
            else:
                self.problems.note(name, joined((task.status.waits, self._announced(name))))
                if task.under_way and name in self._loops:
                    self._loops[name].wake()  # the next transaction was begun while the endpoint committed this one
