"""A reader's lease: what it holds, and when it last beat.

No thread sends the heartbeats.  Each call of the reader beats if a quarter of the lease has passed since the last beat;
a holder that is idle for longer calls `beat` itself.

The `Contents` that a reader handed out name parts of the version they were planned from.  The lease holds the oldest
such version until its user reports that they are read (`gave_back`), so that no collector deletes those parts
meanwhile.

A lease that is `shared` is taken up by several processes, by its name.  None of them knows what the others handed out
and still read, so none releases a version: it holds all from the first on until it ends.
"""

from __future__ import annotations

from collections import Counter

from strandline.errors import AsOfError
from strandline.frontier.antichain import MINIMUM, Frontier, join
from strandline.persist.shard.holds import BEAT_MS, downgrade_leased, expire_leased, register_leased
from strandline.persist.shard.machine import Machine
from strandline.persist.shard.patience import Deadline
from strandline.store.clock import Clock


class Lease:
    """The leased reader ``reader`` of one shard.  Call `register` first."""

    def __init__(self, machine: Machine, clock: Clock, reader: str, *, shared: bool = False) -> None:
        self._machine = machine
        self._shared = shared
        self._clock = clock
        self._reader = reader
        self._beaten_ms = 0
        self._out: Counter[int] = Counter()  # versions whose contents were handed out and not given back
        self.since = MINIMUM

    @property
    def needed(self) -> bool:
        """Whether contents were handed out that were not given back yet."""
        return bool(self._out)

    async def register(self) -> Frontier:
        """Register the lease, or find it registered; return the since that it holds."""
        now = self._clock.now_ms()
        held = await self._machine.commit(lambda state: register_leased(state, self._reader, now))
        self._beaten_ms = now
        self.since = held.since
        return held.since

    async def beat(self, deadline: Deadline | None = None) -> None:
        """Renew the lease, and release the versions that no handed-out contents need.

        Raises `AsOfError` if the reader missed a whole lease: what it held may be gone.
        """
        await self.downgrade(self.since, deadline)

    async def beat_if_due(self, deadline: Deadline | None = None) -> None:
        """Beat if a quarter of the lease has passed since the last time (or the clock went back)."""
        if not 0 <= self._clock.now_ms() - self._beaten_ms < BEAT_MS:
            await self.beat(deadline)

    async def downgrade(self, since: Frontier, deadline: Deadline | None = None) -> Frontier:
        """Release all times before ``since`` (the hold never goes back), and beat; return the since it holds."""
        now = self._clock.now_ms()
        seqno = 0 if self._shared else min(self._out, default=self._machine.state.seqno)  # a hold never goes back
        moved = await self._machine.commit(
            lambda state: downgrade_leased(state, self._reader, since, seqno, now), deadline=deadline
        )
        if moved is None:
            raise AsOfError(
                f"the reader {self._reader!r} of shard {self._machine.shard!r} sent no heartbeat for a whole lease, "
                "and its hold was released; open it again"
            )
        self._beaten_ms = now
        self.since = join((self.since, moved.since))  # another coroutine may have moved it on meanwhile
        return moved.since

    def took(self, seqno: int) -> None:
        """Hold the parts that version ``seqno`` names, from the next beat on; until then an older hold covers them."""
        self._out[seqno] += 1

    def gave_back(self, seqno: int) -> None:
        """Release contents that were handed out once from version ``seqno``."""
        self._out[seqno] -= 1
        self._out += Counter()

    async def expire(self) -> None:
        """End the lease.  The shard's since stays where it is."""
        await self._machine.commit(lambda state: expire_leased(state, self._reader))
