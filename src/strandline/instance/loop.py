"""A loop: what is done for one item again and again, beside everything else.

A loop is *woken*, makes a turn, and rests.  Woken during a turn, it makes one more.  So however often it is woken, one
turn that began afterwards has taken notice, and no two of its turns overlap.  The caller that woke it may wait for
that, for as long as it likes, or go on: no item waits for another one's turn.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

from strandline.errors import FencedError
from strandline.persist.shard.patience import Deadline
from strandline.store.beside import Beside, Running

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

    @property
    def resting(self) -> bool:
        """Whether it has nothing to do."""
        return self._ended == self._woken

    @property
    def busy(self) -> bool:
        """Whether it is in a turn that began before it was woken last."""
        return self._ended < self._begun < self._woken

    def wake(self) -> None:
        """Have it make a turn that begins from now on; not once its item belongs to another environment."""
        if isinstance(self._error, FencedError):
            return
        self._woken += 1
        if self._running is None:
            self._running = self._beside(self._turns())

    async def rest(self, deadline: Deadline | None = None) -> bool:
        """Return, when the turns that it was woken for have ended, whether they have.

        ``deadline``: until when to wait, and not at all for a loop that is `busy`.

        Raises what a turn raised, once; `FencedError` each time.
        """
        wanted = self._woken
        while self._ended < wanted and self._running is not None:
            if deadline is not None and (self.busy or deadline.left_s() <= 0):
                break
            await self._running.wait(None if deadline is None else deadline.left_s())
        if self._error is not None:
            error = self._error
            self._error = error if isinstance(error, FencedError) else None
            raise error
        return self._ended >= wanted

    async def end(self) -> None:
        """End the turn that is under way; the loop rests until it is woken again."""
        if self._running is not None:
            await self._running.cancel()
        self._running = None
        self._begun = self._ended = self._woken

    async def _turns(self) -> None:
        try:
            while self._ended < self._woken:
                self._begun = self._woken
                begun = self._begun
                try:
                    await self._turn()
                except Exception as error:  # noqa: BLE001 - `rest` raises it
                    self._error = error
                self._ended = max(self._ended, begun)
        finally:
            self._running = None


async def all_rest(loops: Iterable[Loop], deadline: Deadline | None) -> bool:
    """Return whether all ``loops`` have rested by the deadline (None: however long it takes); raises as `Loop.rest`."""
    return all([await loop.rest(deadline) for loop in loops])
