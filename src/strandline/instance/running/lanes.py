"""Lanes: where stages step alone whose step takes long, so that no other stage waits for it.

As many lanes as there are step at a time; the other stages wait in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from typing import Any

from strandline.compute.step import StageRun
from strandline.instance.loop import Loop, all_rest
from strandline.persist.shard.patience import Deadline
from strandline.store.beside import Beside


class Lanes:
    """Stages that step alone, each in turn."""

    def __init__(self, beside: Beside, count: int, step: Callable[[StageRun], Coroutine[Any, Any, None]]) -> None:
        self._step = step
        self._waiting: deque[StageRun] = deque()
        self._stepping: dict[int, StageRun] = {}  # by lane
        self._loops = [Loop(beside, lambda lane=lane: self._turn(lane)) for lane in range(count)]  # type: ignore[misc]

    @property
    def resting(self) -> bool:
        """Whether no stage steps in a lane, or waits for one."""
        return all(loop.resting for loop in self._loops)

    @property
    def held(self) -> frozenset[str]:
        """The stages that step in a lane or wait for one, by name."""
        return frozenset(run.name for run in (*self._stepping.values(), *self._waiting))

    def take(self, run: StageRun) -> None:
        """Have a stage step alone."""
        self._waiting.append(run)
        for loop in self._loops:
            loop.wake()

    async def rest(self, deadline: Deadline | None) -> bool:
        """Return whether all have stepped by the deadline; raises as `Loop.rest`."""
        return await all_rest(self._loops, deadline)

    async def drop(self, names: AbstractSet[str]) -> None:
        """Let the stages with these names step no more; a step that is under way is cancelled."""
        self._waiting = deque(run for run in self._waiting if run.name not in names)
        for lane, loop in enumerate(self._loops):
            if (run := self._stepping.get(lane)) is not None and run.name in names:
                await loop.end()
                if self._waiting:
                    loop.wake()

    async def end(self) -> None:
        """End all steps."""
        self._waiting.clear()
        for loop in self._loops:
            await loop.end()

    async def _turn(self, lane: int) -> None:
        while self._waiting:
            run = self._stepping[lane] = self._waiting.popleft()
            try:
                await self._step(run)
            finally:
                del self._stepping[lane]
