"""The materializations of an instance: a loop for each, so that a silent endpoint keeps no other one waiting."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from strandline.errors import FencedError
from strandline.instance.loop import Loop, bring
from strandline.instance.problems import Problems
from strandline.materialize.runtime import Task
from strandline.persist.shard.patience import Deadline
from strandline.store.beside import Beside


@dataclass
class Deliveries:
    """The tasks that are open, by name."""

    beside: Beside
    problems: Problems
    tasks: dict[str, Task] = field(default_factory=dict)
    ended: dict[str, FencedError] = field(default_factory=dict)
    """The sessions that an endpoint has ended, by the task's name: whose they are the controller finds out."""
    _loops: dict[str, Loop] = field(default_factory=dict)

    def add(self, name: str, task: Task) -> None:
        """Have a task follow its collections from now on."""
        self.tasks[name] = task
        self._loops[name] = Loop(self.beside, lambda: self._turn(name))

    async def stop(self, name: str) -> None:
        """End a task.  Raises what its endpoint raises."""
        self.ended.pop(name, None)
        loop, task = self._loops.pop(name, None), self.tasks.pop(name, None)
        if loop is not None and task is not None:
            await loop.end()
            await task.close()

    async def halt(self) -> None:
        """End all turns."""
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
        for loop in self._loops.values():
            loop.wake()

    async def bring(self, deadline: Deadline | None) -> None:
        """Let every endpoint follow its collections; return when all have, or at the deadline."""
        await bring(self._loops, deadline)

    def under_way(self) -> Iterator[str]:
        """Yield the tasks that are on their way to where their collections are."""
        yield from (name for name, loop in self._loops.items() if not loop.resting)

    async def _turn(self, name: str) -> None:
        task = self.tasks[name]
        async with self.problems.of(name):
            try:
                await task.advance()
            except FencedError as error:
                self.ended[name] = error
                self.problems.note(name, f"the endpoint ended the session ({error}); the next tick opens another")
            else:
                self.problems.note(name, task.status.waits)
                if task.under_way and name in self._loops:
                    self._loops[name].wake()  # the next transaction was begun while the endpoint committed this one
