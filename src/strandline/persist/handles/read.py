"""The read handle of a shard: snapshots, changes, listening, and the holds that keep what it reads.

A handle returns plain data (`Contents`): which batches to read and between which times.  The engine reads them, now or
later: a batch stays readable as long as it is held.  A handle with a lease (`Lease`) holds its since, and the parts of
the contents that it handed out until the caller releases them (`release`).  A handle without a lease writes nothing;
it relies on other holds and on the grace period before parts are deleted.  A hold that survives its owner's process is
a `SinceHandle`.

Reading deleted parts raises an error and never returns wrong rows (`definitely`).

A listen is exclusive of its ``as_of``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Final, TypeVar

from msgspec.structs import replace

from strandline.algebra.schema import Schema
from strandline.errors import AsOfError, CorruptionError, FencedError, InvalidUsage
from strandline.frontier import MINIMUM, TIME_MAX, Frontier, as_time, join, meet, whole
from strandline.persist.handles.contents import Contents, Half, Reads, Rows
from strandline.persist.shard.holds import BEAT_MS, downgrade_leased, expire_leased, register_leased
from strandline.persist.shard.machine import Command, Machine
from strandline.persist.shard.patience import Deadline, Metrics
from strandline.persist.shard.state import (
    Downgraded,
    OpaqueMismatch,
    ShardState,
    compare_and_downgrade,
    expire_critical,
    register_critical,
)
from strandline.store.clock import Clock


class Lease:
    """The leased reader ``reader`` of one shard.  Call `register` first.

    No thread sends the heartbeats.  Each call of the reader beats if a quarter of the lease has passed since the last
    beat; a holder that is idle for longer calls `beat` itself.

    The `Contents` that a reader handed out name parts of the version they were planned from.  The lease holds the
    oldest such version until its user reports that they are read (`gave_back`), so that no collector deletes those
    parts meanwhile.

    Several processes use a lease that is `shared`, by its name.  None of them knows what the others handed out and
    still read, so none releases a version: the lease holds all versions from the first on until it ends.
    """

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


class SinceHandle:
    """The hold ``reader`` on one shard; its owner's epoch is its token.  Opened by `PersistClient.since`.

    A critical reader has no lease, so its hold survives the process of its owner.  Only the owner moves it, forward,
    by `compare_and_downgrade` with the token (`opaque`) that it wrote last time.  An owner of an older epoch finds
    another token, which shows that a newer owner has taken over.
    """

    def __init__(self, machine: Machine, reader: str, epoch: int) -> None:
        self._machine = machine
        self._reader = reader
        self._epoch = epoch
        self._opaque = 0
        self.since = Frontier(0)

    async def register(self) -> Frontier:
        """Register the hold, or take it over from an older epoch; return the since it holds.

        Raises `FencedError` if a newer epoch holds it.
        """
        held = await self._machine.commit(lambda state: register_critical(state, self._reader))
        if held.opaque > self._epoch:
            raise self._fenced(held.opaque)
        self._opaque = held.opaque
        return await self.downgrade(held.since)

    @property
    def shard(self) -> str:
        """The shard's id."""
        return self._machine.shard

    async def downgrade(self, since: Frontier) -> Frontier:
        """Release all times before ``since``; return the since it holds (the hold never goes back).

        Raises `FencedError` if a newer epoch holds it.
        """
        return await self.settled(since, await self._machine.commit(self.command(since)))

    def command(self, since: Frontier) -> Command[Downgraded | OpaqueMismatch]:
        """Return the command that `downgrade` would commit (for `downgrade_many`); pass its answer to `settled`."""
        expected = self._opaque
        return lambda state: compare_and_downgrade(state, self._reader, expected, self._epoch, since)

    async def settled(self, since: Frontier, answer: Downgraded | OpaqueMismatch) -> Frontier:
        """Record the answer of a `command`, and retry it if need be; returns and raises as `downgrade`."""
        match answer:
            case Downgraded(stands):
                self._opaque = self._epoch
                self.since = join((self.since, stands))  # another coroutine may have moved it on meanwhile
                return stands
            case OpaqueMismatch(opaque, _) if opaque > self._epoch:
                raise self._fenced(opaque)
            case OpaqueMismatch(opaque, _):
                # Our own downgrade, whose answer was lost, or one of an older epoch: this owner may take the hold.
                self._opaque = opaque
                return await self.downgrade(since)

    async def expire(self) -> None:
        """Release the hold for good.  Raises `FencedError` if a newer epoch holds it."""
        outcome = await self._machine.commit(lambda state: expire_critical(state, self._reader, self._opaque))
        if outcome is not None:
            raise self._fenced(outcome.opaque)

    def _fenced(self, opaque: int) -> FencedError:
        return FencedError(
            f"fenced: hold {self._reader!r} on shard {self._machine.shard!r} is epoch {opaque}'s, not {self._epoch}'s"
        )


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


T = TypeVar("T")
REPLANS_MAX: Final = 8
"""How often a reader may be overtaken by compaction and collection before it gives up."""


async def read_definitely(
    engine: Reads, handle: ReadHandle, plan: Callable[[], Awaitable[Contents]]
) -> tuple[Contents, Rows]:
    """Return the contents that ``plan`` (a call of ``handle``) plans, with their rows; see `definitely`."""
    return await definitely(handle, plan, engine.read)


async def definitely(
    handle: ReadHandle, plan: Callable[[], Awaitable[Contents]], read: Callable[[Contents], Awaitable[T]]
) -> tuple[Contents, T]:
    """Return the contents that ``plan`` (a call of ``handle``) plans, with what ``read`` finds; plan anew if overtaken.

    `Contents` are planned from a version of the shard, and read a moment later.  A reader without a hold may find a
    part missing: its batch was merged into another one, and the part was collected.  Then the newest state says where
    the same rows are now, or that since has passed the reader's time.

    Raises:
        AsOfError: the time is no longer readable; or compaction overtook every attempt.
        CorruptionError: a part that the newest state names is missing or damaged.
    """
    wanted = await plan()
    for _ in range(REPLANS_MAX):
        try:
            return wanted, await read(wanted)
        except CorruptionError:
            handle.release(wanted)
            await handle.refresh()
            again = await plan()
            if again.batches == wanted.batches:
                handle.release(again)
                handle.metrics.corruption_errors += 1
                raise
            wanted = again
    handle.release(wanted)
    raise AsOfError(
        f"{handle.name!r} was compacted and collected {REPLANS_MAX} times while it was read without a hold; "
        "read it under a lease"
    )
