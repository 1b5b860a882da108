"""The reading handle of a shard: snapshots, changes, listening.

What is handed out is plain data (`Contents`): which batches to read and between which times.  The engine reads them,
now or later: a batch that was named once stays readable as long as it is held.  A handle with a *lease* holds it: its
since, and the parts of whatever it handed out until that is given back (`release`).  A handle without one writes
nothing, and relies on others' holds and on the grace period before parts are deleted; reading what is gone is an error,
never wrong rows.

Source: design page "persist" (handles): snapshot waits until ``upper > as_of``; a listen is exclusive of its ``as_of``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

from strandline.algebra.schema import Schema
from strandline.errors import AsOfError, InvalidUsage
from strandline.frontier.antichain import TIME_MAX, Frontier, as_time, meet, whole
from strandline.persist.lease import Lease
from strandline.persist.machine import Machine
from strandline.persist.metrics import Metrics
from strandline.persist.patience import Deadline
from strandline.persist.plane import Contents, Half
from strandline.persist.state import ShardState

POLL_S_MIN: Final = 1.2
POLL_S_MAX: Final = 16.0
"""How long a reader that is told nothing waits before it asks again: at first, and at last."""
assert POLL_S_MIN < POLL_S_MAX
STUTTER_S: Final = 1.0
"""How long a store that fails is asked again, also for a caller that does not wait."""


class ReadHandle:
    """One reader of one shard.  ``name`` is what people call the collection, for messages.

    ``lease`` is registered, or None: then nothing is held, and nothing is written.  ``kept`` says for how long the
    collection's history is kept, for messages, where somebody promised that.
    """

    def __init__(
        self, machine: Machine, schema: Schema, name: str, lease: Lease | None = None, *, kept: str = ""
    ) -> None:
        self._machine = machine
        self._lease = lease
        self._listening: Counter[int] = Counter()  # the frontiers of listens under way
        self.schema = schema
        self.name = name
        self.kept = kept

    @property
    def state(self) -> ShardState:
        """The newest state known here."""
        return self._machine.state

    @property
    def metrics(self) -> Metrics:
        """The counters of this reader's process."""
        return self._machine.metrics

    async def refresh(self) -> ShardState:
        """Fetch and return the newest state."""
        await self._beat_if_due()
        return await self._machine.refresh()

    async def beat(self) -> None:
        """Show that this reader is there: for one that is idle for longer than a quarter of its lease.

        Raises `AsOfError` if it was dropped.
        """
        if self._lease is not None:
            await self._lease.beat()

    async def downgrade_since(self, since: Frontier) -> Frontier:
        """Let go of times before ``since``; return where this reader holds: never beyond what a listen still needs.

        Raises:
            InvalidUsage: this reader has no lease, so it holds nothing.
            AsOfError: its lease was lost.
        """
        if self._lease is None:
            raise InvalidUsage(f"this reader of {self.name!r} has no lease: there is nothing to let go of")
        # A listen tells t from t - 1 only while since is at or before t - 1.
        needed = [Frontier(max(0, frontier - 1)) for frontier in self._listening.elements()]
        return await self._lease.downgrade(meet((since, *needed)))

    def release(self, contents: Contents) -> None:
        """Say that ``contents``, handed out by this handle, is read: its parts need not be held any more."""
        if self._lease is not None:
            self._lease.gave_back(contents.seqno)

    async def close(self) -> None:
        """Give the lease up, if there is one."""
        if self._lease is not None:
            await self._lease.expire()

    async def snapshot(self, as_of: int, *, timeout_s: float | None = None, half: Half = Half.OK) -> Contents:
        """Return the collection's contents at ``as_of``, all times advanced to it; wait until they are known.

        Raises:
            AsOfError: ``as_of`` is no time or before since; or the collection is not complete at it within
                ``timeout_s`` (0: do not wait).
            Unavailable: a store does not answer within ``timeout_s`` (or `STUTTER_S`, if that is more).
        """
        as_of = self._readable(as_of)
        self._refuse_unreadable(self.state, as_of)  # since only grows: no use in waiting
        state = await self.wait_beyond(as_of, timeout_s=timeout_s)
        self._refuse_unreadable(state, as_of)
        return self._hand_out(contents(state, self.schema, 0, as_of + 1, advance=as_of, half=half))

    async def changes(self, lower: int, upper: int, *, half: Half = Half.OK) -> Contents:
        """Return the updates with ``lower <= time < upper``, which are known and not compacted together.

        From the very beginning (``lower`` 0) they are what the contents at ``upper - 1`` sum up to.

        Raises:
            AsOfError: the shard's upper is before ``upper``, or its since is not before ``lower``, so that updates
                there cannot be told from earlier ones (``lower`` 0: its since is beyond ``upper - 1``).
        """
        state = await self._known_to(upper)
        self._refuse_unreadable(state, lower - 1 if lower else max(0, upper - 1))
        return self._hand_out(contents(state, self.schema, lower, upper, advance=lower, half=half))

    async def history(self, upper: int, *, half: Half = Half.OK) -> Contents:
        """Return all that is known before ``upper``: the contents at since, as updates there, and every later change.

        Raises `AsOfError` if the shard's upper is before ``upper``, or its since not.
        """
        state = await self._known_to(upper)
        self._refuse_unreadable(state, max(0, upper - 1))
        return self._hand_out(contents(state, self.schema, 0, upper, advance=as_time(state.since), half=half))

    async def listen(self, as_of: int) -> AsyncIterator[tuple[Contents, Frontier]]:
        """Yield the updates after ``as_of``, each once, with the frontier they are complete to, until that is empty.

        Raises:
            AsOfError: ``as_of`` is no time, or the next time to tell is before since: nobody held it for this listener.
        """
        lower = self._readable(as_of) + 1
        self._listening[lower] += 1
        try:
            while True:
                self._refuse_unreadable(self.state, lower - 1)
                state = await self.wait_beyond(lower)
                self._refuse_unreadable(state, lower - 1)
                upper = as_time(state.upper)
                # A batch merged with earlier ones holds what was told before: the window leaves that out.
                yield self._hand_out(contents(state, self.schema, lower, upper, advance=lower)), state.upper
                if state.upper.empty:
                    return
                self._listening[upper] += 1
                self._told(lower)
                lower = upper
        finally:
            self._told(lower)

    def _told(self, frontier: int) -> None:
        self._listening[frontier] -= 1
        if not self._listening[frontier]:
            del self._listening[frontier]

    async def _known_to(self, upper: int) -> ShardState:
        await self._beat_if_due()
        state = self.state if Frontier(upper) <= self.state.upper else await self.refresh()
        if not Frontier(upper) <= state.upper:
            raise AsOfError(f"{self.name!r}: changes up to {upper} are not known yet; its upper is {state.upper}")
        return state

    def _hand_out(self, wanted: Contents) -> Contents:
        if self._lease is not None:
            self._lease.took(wanted.seqno)
        return wanted

    async def _beat_if_due(self, deadline: Deadline | None = None) -> None:
        if self._lease is not None:
            await self._lease.beat_if_due(deadline)

    def _readable(self, as_of: int) -> int:
        time = whole(as_of)
        if time is None or not 0 <= time < TIME_MAX:
            raise AsOfError(
                f"{self.name!r} cannot be read at {as_of!r}: it is no whole number within 0 <= t < 2**63 - 1"
            )
        return time

    def require(self, time: int) -> None:
        """Raise `AsOfError` unless ``time`` can be told from earlier ones, as far as is known here."""
        self._refuse_unreadable(self.state, time)

    def _refuse_unreadable(self, state: ShardState, time: int) -> None:
        if not state.since <= Frontier(time):
            why = f"its history before since {state.since} is compacted"
            if self.kept:
                why = f"history of {self.name!r} is kept for {self.kept}; since is {state.since}"
            raise AsOfError(f"{self.name!r} cannot be read at {time}: {why}")

    async def wait_beyond(self, time: int, *, timeout_s: float | None = None) -> ShardState:
        """Return a state whose upper is beyond ``time``: when it is told of one, or finds it by asking now and then.

        Raises:
            AsOfError: ``timeout_s`` has passed first.
            Unavailable: a store did not answer meanwhile.
        """
        deadline = self._machine.within(timeout_s)
        patience = self._machine.within(None if timeout_s is None else max(timeout_s, STUTTER_S))
        await self._beat_if_due(patience)
        if not self.state.upper <= Frontier(time):
            return self.state
        pause = POLL_S_MIN
        told = await self._machine.subscribe()  # before it asks, so that nothing falls between
        try:
            state = await self._machine.refresh(patience)
            while state.upper <= Frontier(time):
                left = None if deadline is None else deadline.left_s()
                if left is not None and left <= 0:
                    raise AsOfError(f"{self.name!r} is not complete at {time} yet: its upper is {state.upper}")
                notice = await told.next(pause if left is None else min(pause, left))
                pause = min(POLL_S_MAX, pause * 2) if notice is None else POLL_S_MIN
                await self._beat_if_due(patience)
                if notice is None or not self._machine.heard(notice):
                    await self._machine.refresh(patience)
                state = self.state
        finally:
            told.close()
        return state


def contents(
    state: ShardState, schema: Schema, lower: int, upper: int, *, advance: int, half: Half = Half.OK
) -> Contents:
    """Return the batches of ``state`` that may hold updates with ``lower <= time < upper``."""
    overlapping = tuple(
        b for b in state.batches if b.parts and not Frontier(upper) <= b.lower and not b.upper <= Frontier(lower)
    )
    return Contents(state.shard, schema, overlapping, lower, upper, advance, half, seqno=state.seqno)
