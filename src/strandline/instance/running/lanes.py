"""Lanes: where stages step alone whose step takes long, so that no other stage waits for it.

As many lanes as there are step at a time; the other stages wait in the order in which they came.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from collections.abc import Set as AbstractSet
from typing import Any

from strandline.compute.step import StageRun
from strandline.instance.loop import Loop
from strandline.persist.shard.patience import Deadline
from strandline.store.beside import Beside


class Lanes:
    """Stages that step alone, each in turn."""

    def __init__(self, beside: Beside, count: int, step: Callable[[StageRun], Coroutine[Any, Any, None]]) -> None:
        self._step = step
        self._waiting: deque[StageRun] = deque()
        self._stepping: dict[int, StageRun] = {}  # by lane
        self._loops = [Loop(beside, lambda lane=lane: self._turn(lane)) for lane in range(count)]  # type: ignore[misc]

    def resting(self, without: AbstractSet[int]) -> bool:
        """Return whether no lane, but for those ``without``, has anything to step."""
        return all(loop.resting for lane, loop in enumerate(self._loops) if lane not in without)

    @property
    def held(self) -> frozenset[str]:
        """The stages that step in a lane or wait for one, by name."""
        return frozenset(run.name for run in (*self._stepping.values(), *self._waiting))

    def take(self, run: StageRun) -> None:
        """Have a stage step alone."""
        self._waiting.append(run)
        for loop in self._loops:
            loop.wake()

    @property
    def busy(self) -> frozenset[int]:
        """The lanes in which a stage steps."""
        return frozenset(self._stepping)

    async def rest(self, deadline: Deadline | None, without: AbstractSet[int]) -> bool:
        """Return whether no lane, but for those ``without``, has anything to step by the deadline.

        Raises as `Loop.rest`.
        """
        for lane, loop in enumerate(self._loops):
            if lane in without:
                loop.check()
            elif not await loop.rest(deadline):
                return False
        return True

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
            except Exception:
                self._loops[lane].wake()  # the others still wait
                raise
            finally:
                del self._stepping[lane]
