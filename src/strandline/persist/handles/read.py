"""The read handle of a shard: snapshots, changes, listening.

A handle returns plain data (`Contents`): which batches to read and between which times.  The engine reads them, now or
later: a batch stays readable as long as it is held.  A handle with a *lease* holds its since, and the parts of the
contents it handed out until the caller releases them (`release`).  A handle without a lease writes nothing; it relies
on other holds and on the grace period before parts are deleted.  Reading deleted parts raises an error and never
returns wrong rows.

A listen is exclusive of its ``as_of``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from typing import Final

from msgspec.structs import replace

from strandline.algebra.schema import Schema
from strandline.errors import AsOfError, InvalidUsage
from strandline.frontier.antichain import TIME_MAX, Frontier, as_time, join, meet, whole
from strandline.persist.handles.contents import Contents, Half
from strandline.persist.handles.lease import Lease
from strandline.persist.shard.machine import Machine
from strandline.persist.shard.metrics import Metrics
from strandline.persist.shard.patience import Deadline
from strandline.persist.shard.state import ShardState

POLL_S_MIN: Final = 1.2
POLL_S_MAX: Final = 16.0
"""How long a reader waits for a notice before it polls: at first, and after back-off."""
assert POLL_S_MIN < POLL_S_MAX
STUTTER_S: Final = 1.0
"""How long a failing store is retried, also for a caller that does not wait."""


class ReadHandle:
    """One reader of one shard.  ``name`` is the collection's name for messages.

    ``lease`` is registered, or None: then the reader holds nothing and writes nothing.  ``kept`` says, for messages,
    how long the collection's policy keeps its history, if it has such a policy.  ``begins``: the first time at which
    the collection may be read, whatever its shard holds: before that it was another one.
    """

    def __init__(
        self,
        machine: Machine,
        schema: Schema,
        name: str,
        lease: Lease | None = None,
        *,
        kept: str = "",
        begins: int = 0,
    ) -> None:
        self._machine = machine
        self._lease = lease
        self._listening: Counter[int] = Counter()  # the frontiers of listens under way
        self.schema = schema
        self.name = name
        self.kept = kept
        self.begins = begins

    def seeing(self, schema: Schema) -> ReadHandle:
        """Return this reader with these columns of the shard: the same lease, which this one's owner gives up."""
        if schema == self.schema:
            return self
        return ReadHandle(self._machine, schema, self.name, self._lease, kept=self.kept, begins=self.begins)

    @property
    def since(self) -> Frontier:
        """The first time at which it can be read, as far as is known here."""
        return join((self.state.since, Frontier(self.begins)))

    @property
    def state(self) -> ShardState:
        """The newest state known here."""
        return self._machine.state

    @property
    def metrics(self) -> Metrics:
        """The counters of this reader's process."""
        return self._machine.metrics

    @property
    def needed(self) -> bool:
        """Whether something that this handle handed out was not given back yet, or a listen is under way."""
        return bool(self._listening) or (self._lease is not None and self._lease.needed)

    async def refresh(self) -> ShardState:
        """Fetch and return the newest state."""
        await self._beat_if_due()
        return await self._machine.refresh()

    async def beat(self) -> None:
        """Renew the lease: for a reader that is idle for longer than a quarter of its lease.

        Raises `AsOfError` if its hold was released.
        """
        if self._lease is not None:
            await self._lease.beat()

    async def downgrade_since(self, since: Frontier) -> Frontier:
        """Release times before ``since``; return the since it holds: never beyond what a listen still needs.

        Raises:
            InvalidUsage: this reader has no lease, so it holds nothing.
            AsOfError: its lease was lost.
        """
        if self._lease is None:
            raise InvalidUsage(f"this reader of {self.name!r} has no lease: there is nothing to release")
        # A listen can distinguish t from t - 1 only while since is at or before t - 1.
        needed = [Frontier(max(0, frontier - 1)) for frontier in self._listening.elements()]
        return await self._lease.downgrade(meet((since, *needed)))

    def release(self, contents: Contents) -> None:
        """Report that ``contents``, which this handle returned, is read, so that its parts need no hold."""
        if self._lease is not None:
            self._lease.gave_back(contents.seqno)

    async def close(self) -> None:
        """End the lease, if there is one."""
        if self._lease is not None:
            await self._lease.expire()

    async def snapshot(self, as_of: int, *, timeout_s: float | None = None, half: Half = Half.OK) -> Contents:
        """Return the collection's contents at ``as_of``, all times advanced to it; wait until they are complete.

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
        """Return the updates with ``lower <= time < upper``, which must be known and not compacted together.

        With ``lower`` 0 they add up to the contents at ``upper - 1``.

        Raises:
            AsOfError: the shard's upper is before ``upper``, or its since is not before ``lower``, so that compaction
                may have mixed the updates with earlier ones (``lower`` 0: its since is beyond ``upper - 1``).
        """
        state = await self._known_to(upper)
        self._refuse_unreadable(state, lower - 1 if lower else max(0, upper - 1))
        return self._hand_out(contents(state, self.schema, lower, upper, advance=lower, half=half))

    async def history(self, upper: int, *, half: Half = Half.OK) -> Contents:
        """Return the history before ``upper``: the contents at since, as updates there, and every later change.

        Raises `AsOfError` if the shard's upper is before ``upper``, or its since not.
        """
        state = await self._known_to(upper)
        self._refuse_unreadable(state, max(0, upper - 1))
        return self._hand_out(contents(state, self.schema, 0, upper, advance=as_time(self.since), half=half))

    async def listen(self, as_of: int) -> AsyncGenerator[tuple[Contents, Frontier], None]:
        """Yield the updates after ``as_of``, each once, with the frontier up to which they are complete.

        The iteration ends when the collection is closed.

        Raises:
            AsOfError: ``as_of`` is no time, or since has passed the next time to yield: no hold kept it readable.
        """
        lower = self._readable(as_of) + 1
        self._listening[lower] += 1
        try:
            while True:
                self._refuse_unreadable(self.state, lower - 1)
                state = await self.wait_beyond(lower)
                self._refuse_unreadable(state, lower - 1)
                upper = as_time(state.upper)
                # A batch merged with earlier ones holds updates that were yielded before: the bounds leave those out.
                yield self._hand_out(contents(state, self.schema, lower, upper, advance=lower)), state.upper
                if state.upper.empty:
                    return
                self._listening[upper] += 1
                self._stop_needing(lower)
                lower = upper
        finally:
            self._stop_needing(lower)

    def _stop_needing(self, frontier: int) -> None:
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
        """Raise `AsOfError` if since, as far as is known here, is beyond ``time``."""
        self._refuse_unreadable(self.state, time)

    def _refuse_unreadable(self, state: ShardState, time: int) -> None:
        if time < self.begins:
            raise AsOfError(
                f"{self.name!r} cannot be read at {time}: since {self.begins} it, or a view that it reads, is another "
                "query, which has no rows of earlier times"
            )
        if not state.since <= Frontier(time):
            why = f"its history before since {state.since} is compacted"
            if self.kept:
                why = f"history of {self.name!r} is kept for {self.kept}; since is {state.since}"
            raise AsOfError(f"{self.name!r} cannot be read at {time}: {why}")

    async def wait_beyond(self, time: int, *, timeout_s: float | None = None) -> ShardState:
        """Wait for a state whose upper is beyond ``time``, by notices and by polling, and return it.

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
        notices = await self._machine.subscribe()  # before the first refresh, so that no version is missed
        try:
            state = await self._machine.refresh(patience)
            while state.upper <= Frontier(time):
                left = None if deadline is None else deadline.left_s()
                if left is not None and left <= 0:
                    raise AsOfError(f"{self.name!r} is not complete at {time} yet: its upper is {state.upper}")
                notice = await notices.next(pause if left is None else min(pause, left))
                pause = min(POLL_S_MAX, pause * 2) if notice is None else POLL_S_MIN
                await self._beat_if_due(patience)
                if notice is None or not self._machine.heard(notice):
                    await self._machine.refresh(patience)
                state = self.state
        finally:
            notices.close()
        return state


def erring(held: Contents) -> Contents:
    """Return ``held`` without the batches that have no errors: the batches to read for its err half."""
    return replace(held, batches=tuple(batch for batch in held.batches if batch.errors))


def contents(
    state: ShardState, schema: Schema, lower: int, upper: int, *, advance: int, half: Half = Half.OK
) -> Contents:
    """Return the batches of ``state`` that may hold updates with ``lower <= time < upper``."""
    overlapping = tuple(
        b for b in state.batches if b.parts and not Frontier(upper) <= b.lower and not b.upper <= Frontier(lower)
    )
    return Contents(state.shard, schema, overlapping, lower, upper, advance, half, seqno=state.seqno)
