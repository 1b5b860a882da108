"""The reading handle of a shard: snapshots, changes, listening.

What is handed out is plain data (`Contents`): which batches to read and between which times.  The engine reads them,
now or later: a batch that was named once stays readable as long as it is held.

Source: design page "persist" (handles): snapshot waits until ``upper > as_of``; a listen is exclusive of its ``as_of``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

from strandline.algebra.schema import Schema
from strandline.errors import AsOfError
from strandline.frontier.antichain import TIME_MAX, Frontier
from strandline.persist.machine import Machine
from strandline.persist.plane import Contents, Half
from strandline.persist.state import ShardState
from strandline.store.clock import Clock

POLL_S_MIN: Final = 0.02
POLL_S_MAX: Final = 1.0


class ReadHandle:
    """One reader of one shard.  ``name`` is what people call the collection, for messages."""

    def __init__(self, machine: Machine, clock: Clock, schema: Schema, name: str) -> None:
        self._machine = machine
        self._clock = clock
        self.schema = schema
        self.name = name

    @property
    def state(self) -> ShardState:
        """The newest state known here."""
        return self._machine.state

    async def refresh(self) -> ShardState:
        """Fetch and return the newest state."""
        return await self._machine.refresh()

    async def snapshot(self, as_of: int, *, timeout_s: float | None = None, half: Half = Half.OK) -> Contents:
        """Return the collection's contents at ``as_of``, all times advanced to it; wait until they are known.

        Raises:
            AsOfError: ``as_of`` is no time or before since; or the collection is not complete at it within
                ``timeout_s``
                (0: do not wait).
        """
        if not 0 <= as_of < TIME_MAX:
            raise AsOfError(f"{self.name!r} cannot be read at {as_of}: it is not within 0 <= as_of < 2**63 - 1")
        self._refuse_unreadable(self.state, as_of)  # since only grows: no use in waiting
        state = await self.wait_beyond(as_of, timeout_s=timeout_s)
        self._refuse_unreadable(state, as_of)
        return contents(state, self.schema, 0, as_of + 1, advance=as_of, half=half)

    async def changes(self, lower: int, upper: int, *, half: Half = Half.OK) -> Contents:
        """Return the updates with ``lower <= time < upper``, which are known and not compacted together.

        From the very beginning (``lower`` 0) they are what the contents at ``upper - 1`` sum up to.

        Raises:
            AsOfError: the shard's upper is before ``upper``, or its since is beyond ``lower`` (``upper - 1`` if that is
                0).
        """
        state = self.state if Frontier(upper) <= self.state.upper else await self.refresh()
        if not Frontier(upper) <= state.upper:
            raise AsOfError(f"{self.name!r}: changes up to {upper} are not known yet; its upper is {state.upper}")
        self._refuse_unreadable(state, lower or max(0, upper - 1))
        return contents(state, self.schema, lower, upper, advance=lower, half=half)

    async def listen(self, as_of: int) -> AsyncIterator[tuple[Contents, Frontier]]:
        """Yield the updates after ``as_of``, each once, with the frontier they are complete to, until that is empty.

        Raises:
            AsOfError: the next time to tell is before since: nobody held it for this listener.
        """
        lower = as_of + 1
        while True:
            self._refuse_unreadable(self.state, lower)
            state = await self.wait_beyond(lower)
            self._refuse_unreadable(state, lower)
            upper = TIME_MAX if state.upper.at is None else state.upper.at
            yield contents(state, self.schema, lower, upper, advance=lower), state.upper
            if state.upper.empty:
                return
            lower = upper

    def _refuse_unreadable(self, state: ShardState, time: int) -> None:
        if not state.since <= Frontier(time):
            raise AsOfError(
                f"{self.name!r} cannot be read at {time}: its history before since {state.since} is compacted"
            )

    async def wait_beyond(self, time: int, *, timeout_s: float | None = None) -> ShardState:
        """Return a state whose upper is beyond ``time``, polling with back-off.

        Raises `AsOfError` when ``timeout_s`` has passed first.
        """
        waited, pause = 0.0, POLL_S_MIN
        state = self.state
        while state.upper <= Frontier(time):
            state = await self.refresh()
            if not state.upper <= Frontier(time):
                break
            if timeout_s is not None and waited >= timeout_s:
                raise AsOfError(f"{self.name!r} is not complete at {time} yet: its upper is {state.upper}")
            await self._clock.sleep(pause)
            waited, pause = waited + pause, min(POLL_S_MAX, pause * 2)
        return state


def contents(
    state: ShardState, schema: Schema, lower: int, upper: int, *, advance: int, half: Half = Half.OK
) -> Contents:
    """Return the batches of ``state`` that may hold updates with ``lower <= time < upper``."""
    overlapping = tuple(
        b for b in state.batches if b.parts and not Frontier(upper) <= b.lower and not b.upper <= Frontier(lower)
    )
    return Contents(state.shard, schema, overlapping, lower, upper, advance, half)
