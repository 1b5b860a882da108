"""A loop: what is done for one item again and again, beside everything else.

A loop is *woken*, makes a turn, and rests.  Woken during a turn, it makes one more.  So however often it is woken, one
turn that began afterwards has taken notice, and no two of its turns overlap.  The caller that woke it may wait for
that, for as long as it likes, or go on: no item waits for another one's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias, TypeVar

from strandline.errors import FencedError
from strandline.persist.shard.patience import Deadline
from strandline.store.clock import Beside, Running

T = TypeVar("T")
Turn: TypeAlias = Callable[[], Coroutine[Any, Any, None]]


class Loop:
    """Makes turns, one at a time, whenever it was woken since the last one began."""

    def __init__(self, beside: Beside, turn: Turn) -> None:
        """``turn`` deals with the failures of its item; what else it raises, `rest` raises."""
        self._beside = beside
        self._turn = turn
        self._running: Running | None = None
        self._woken = 0
        self._begun = 0  # how often it had been woken when the last turn began
        self._ended = 0  # the same of the last turn that has ended
        self._error: Exception | None = None
        self._ending = False

    @property
    def resting(self) -> bool:
        """Whether it has nothing to do."""
        return self._ended == self._woken

    @property
    def again(self) -> bool:
        """Whether it was woken since the turn began that is under way."""
        return self._ended < self._begun < self._woken

    def wake(self) -> bool:
        """Have it make a turn that begins from now on, and return whether it rested until now.

        It makes none once its item belongs to another environment.
        """
        rested = self.resting
        if not isinstance(self._error, FencedError):
            self._woken += 1
            if self._running is None:
                self._running = self._beside(self._turns)
        return rested

    async def rest(self, deadline: Deadline | None = None) -> bool:
        """Return, when the turns that it was woken for have ended or at the deadline, whether they have.

        Raises what a turn raised, once; `FencedError` each time.
        """
        wanted = self._woken
        while self._ended < wanted and self._running is not None:
            if deadline is not None and deadline.left_s() <= 0:
                break
            await self._running.wait(None if deadline is None else deadline.left_s())
        self.check()
        return self._ended >= wanted

    def check(self) -> None:
        """Raise what a turn raised, as `rest` does."""
        if self._error is not None:
            error = self._error
            self._error = error if isinstance(error, FencedError) else None
            raise error

    async def idle(self) -> None:
        """Return when no turn is under way, nor about to be; raises nothing."""
        while not self.resting and self._running is not None:
            await self._running.wait(None)

    async def end(self) -> None:
        """End the turn that is under way; the loop rests until it is woken again."""
        self._ending = True  # also if the turn makes another failure of its being cancelled
        try:
            if self._running is not None:
                await self._running.cancel()
        finally:
            self._ending, self._running = False, None
            self._begun = self._ended = self._woken

    async def _turns(self) -> None:
        try:
            while self._ended < self._woken and not self._ending:
                self._begun = self._woken
                begun = self._begun
                try:
                    await self._turn()
                except Exception as error:  # noqa: BLE001 - `rest` raises it
                    self._error = error
                self._ended = max(self._ended, begun)
        finally:
            self._running = None


async def bring(loops: Mapping[T, Loop], deadline: Deadline | None) -> set[T]:
    """Wake ``loops``, wait until they rest, and return which of them are late: those that do not by the deadline.

    One that was in the middle of an older turn is late at once: it is not waited for.  Without a deadline, all are
    waited for, however long that takes.

    Raises as `Loop.rest`.
    """
    prompt = {name for name, loop in loops.items() if loop.wake() or deadline is None}
    late: set[T] = set()
    for name, loop in loops.items():
        if name not in prompt:
            loop.check()
            late.add(name)
        elif not await loop.rest(deadline):
            late.add(name)
    return late
