"""The reading handle of a shard: snapshots, changes, listening.

What is handed out is plain data (`Contents`): which batches to read and between which times.  The engine reads them, now or later: a
batch that was named once stays readable as long as it is held.

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
            AsOfError: ``as_of`` is before since; or the collection is not complete at it within ``timeout_s`` (0: do not wait).
        """
        state = await self.wait_beyond(as_of, timeout_s=timeout_s)
        if not state.since <= Frontier(as_of):
            raise AsOfError(f"{self.name!r} cannot be read at {as_of}: its history before since {state.since} is compacted")
        return contents(state, self.schema, 0, as_of + 1, advance=as_of, half=half)

    async def changes(self, lower: int, upper: int, *, half: Half = Half.OK) -> Contents:
        """Return the updates with ``lower <= time < upper``; both are known and not compacted together.

        Raises `AsOfError` if the shard's upper is before ``upper``, or its since is beyond ``lower`` and times there are merged.
        """
        state = self.state if Frontier(upper) <= self.state.upper else await self.refresh()
        if not Frontier(upper) <= state.upper:
            raise AsOfError(f"{self.name!r}: changes up to {upper} are not known yet; its upper is {state.upper}")
        if not state.since <= Frontier(lower) and lower > 0:
            raise AsOfError(f"{self.name!r}: changes from {lower} are compacted together; its since is {state.since}")
        return contents(state, self.schema, lower, upper, advance=lower, half=half)

    async def listen(self, as_of: int) -> AsyncIterator[tuple[Contents, Frontier]]:
        """Yield the updates after ``as_of``, each once, with the frontier up to which they are complete; end when it closes."""
        lower = as_of + 1
        while True:
            state = await self.wait_beyond(lower)
            upper = TIME_MAX if state.upper.at is None else state.upper.at
            yield contents(state, self.schema, lower, upper, advance=lower), state.upper
            if state.upper.empty:
                return
            lower = upper

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
        b
        for b in state.batches
        if b.parts and not Frontier(upper) <= b.lower and not b.upper <= Frontier(lower)
    )
    return Contents(state.shard, schema, overlapping, lower, upper, advance, half)
