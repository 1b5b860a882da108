"""The write handle of a shard.

`WriteHandle.compare_and_append` appends staged batches as one, at the expected upper, at most once, under the writer's
epoch.  The three outcomes are values: `Appended`, `UpperMismatch` (the caller's view is stale), `Fenced` (stop).

Ownership of a staged batch: after `Appended` the shard owns it.  After `UpperMismatch` the caller owns it, to discard
or to use elsewhere.  After `Fenced` or an exception (`Indeterminate`) it may be in the shard, so the caller must leave
it alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from strandline.errors import FencedError, InvalidUsage
from strandline.frontier import Frontier
from strandline.persist.shard.batch import INLINE_SHARD_BYTES_MAX, Staged
from strandline.persist.shard.evolution import evolve
from strandline.persist.shard.machine import Command, Machine
from strandline.persist.shard.state import (
    Append,
    Appended,
    AppendOutcome,
    Fenced,
    ShardState,
    UpperMismatch,
    admit,
    append,
    open_at,
)
from strandline.store.clock import Ids

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Written:
    """All of the data is durable.  ``unused``: batches that are in no shard, which the caller must discard."""

    upper: Frontier
    unused: tuple[Staged, ...]


class WriteHandle:
    """A writer of one shard, under one epoch; several coroutines may share it.  Opened by `PersistClient.writer`.

    The shard remembers the last token of each writer's *name*.  One append at a time uses a name and returns it once
    the outcome is known.  So an append whose answer was lost finds its token, whatever other appends did meanwhile.
    """

    def __init__(
        self, machine: Machine, ids: Ids, epoch: int, *, owner: str = "", made: bool = False, schema: str = ""
    ) -> None:
        """``made``: the shard was made to open this handle, so no other one was opened before it.

        ``schema``: it appends only while this is the shard's schema; empty: whatever that is.
        """
        self._machine = machine
        self._ids = ids
        self._idle: list[str] = []  # names that no append uses now
        self.names: tuple[str, ...] = ()
        """The names that its appends have had: no other handle has them."""
        self._owner = owner
        self._schema = schema
        self.epoch = epoch
        self.made = made

    @property
    def shard(self) -> str:
        """The shard's id."""
        return self._machine.shard

    @property
    def state(self) -> ShardState:
        """The newest state known here."""
        return self._machine.state

    async def refresh(self) -> ShardState:
        """Fetch and return the newest state."""
        return await self._machine.refresh()

    async def commit(self, command: Command[T], *, in_doubt: Callable[[], None] | None = None) -> T:
        """Change the shard's state by the caller's own transition; see `Machine.commit`."""
        return await self._machine.commit(command, in_doubt=in_doubt)

    def stage_prefix(self) -> str:
        """Return a fresh Blob prefix for one batch's parts."""
        return self._machine.fresh_prefix()

    @property
    def inline_room(self) -> int:
        """Bytes that inline parts may still take in this shard's state."""
        return max(0, INLINE_SHARD_BYTES_MAX - self.state.inline_bytes)

    async def compare_and_append(
        self,
        staged: Sequence[Staged],
        expected: Frontier,
        new: Frontier,
        *,
        token: str | None = None,
        certify: str = "",
        read: Frontier | None = None,
        begun_ms: int | None = None,
        timeout_s: float | None = None,
    ) -> AppendOutcome:
        """Append ``staged`` as one batch of ``[expected, new)`` iff the shard's upper is ``expected``.

        An empty ``staged`` advances the upper alone; an empty ``new`` closes the shard.  ``token`` makes the request
        recognisable across restarts of the caller (default: a fresh one, recognisable across retries).  ``certify`` is
        the fingerprint of a dataflow; by this append it certifies that the shard now holds what it desired.
        ``read``, ``begun_ms``: see `state.Append`.  ``timeout_s``: how long to retry a store that does not answer
        (default: about a minute).

        Raises:
            Indeterminate: it may have happened; open the shard again and look.
            Unavailable: it has not happened.
            InvalidUsage: the request can never succeed.
        """
        request = self.request(staged, expected, new, token=token, certify=certify, read=read, begun_ms=begun_ms)
        deadline = self._machine.within(timeout_s)
        outcome = await self._machine.commit(lambda state: append(state, request), deadline=deadline)
        self.settled(request)
        return outcome

    async def append(
        self,
        staged: Sequence[Staged],
        lower: Frontier,
        upper: Frontier,
        trim: Callable[[Staged, Frontier, Frontier], Awaitable[Staged]],
    ) -> Written | Fenced:
        """Make definite data of ``[lower, upper)`` durable; other writers may write the same data concurrently.

        Times that another writer has appended already are trimmed from ``staged`` (``trim`` is `RowJobs.trim`), so each
        update is appended once.

        Raises:
            InvalidUsage: the shard's upper is before ``lower``, so the append would leave a gap.
            Indeterminate: it may have happened; ask again.
        """
        while True:
            actual = self.state.upper
            if actual < lower:  # the known state may be old: another writer may have closed the gap
                actual = (await self.refresh()).upper
            if actual < lower:
                raise InvalidUsage(f"shard {self.shard!r}: data of [{lower}, {upper}) leaves a gap after {actual}")
            unused = tuple(batch for batch in staged if batch.upper <= actual)
            if upper <= actual:
                return Written(actual, unused)
            rest = [batch for batch in staged if not batch.upper <= actual]
            cut = [b if actual <= b.lower else await trim(b, actual, b.upper) for b in rest]
            match await self.compare_and_append([b for b in cut if b.parts], actual, upper):
                case Appended(reached):
                    empty = tuple(whole for whole, part in zip(rest, cut, strict=True) if not part.parts)
                    return Written(reached, unused + empty)
                case Fenced() as outcome:
                    return outcome
                case UpperMismatch():
                    continue  # another writer appended some of it meanwhile

    def request(
        self,
        staged: Sequence[Staged],
        expected: Frontier,
        new: Frontier,
        *,
        token: str | None = None,
        certify: str = "",
        begun_ms: int | None = None,
        read: Frontier | None = None,
    ) -> Append:
        """Return what `compare_and_append` would commit (for `advance_many`, which commits several shards at once).

        `settled` must be called once its outcome is known, and only then.
        """
        name = self._idle.pop() if self._idle else self._named()
        fresh = self._ids.fresh("t") if token is None else token
        return Append(
            name,
            fresh,
            self.epoch,
            tuple(staged),
            expected,
            new,
            self._owner,
            certify,
            begun_ms,
            read,
            self._schema,
        )

    def _named(self) -> str:
        name = self._ids.fresh("w")
        self.names = (*self.names, name)
        return name

    def settled(self, request: Append) -> None:
        """Record that the outcome of ``request`` is known, so that its writer name can be used again."""
        self._idle.append(request.writer)

    async def admit(self) -> None:
        """Raise the shard's epoch to this handle's, which fences older writers.

        Raises `FencedError` if a newer epoch has been admitted already.
        """
        holds = await self._machine.commit(lambda state: admit(state, self.epoch))
        if holds > self.epoch:
            raise fenced(self.shard, Fenced(holds), self.epoch)

    def refuse_fenced(self) -> None:
        """Raise `FencedError` if a newer epoch had been admitted when the state was last fetched."""
        if self.epoch < self.state.epoch:
            raise fenced(self.shard, Fenced(self.state.epoch), self.epoch)

    async def evolve(self, schema: str) -> None:
        """Make ``schema`` the shard's newest schema: reads use it from now on, also for stored parts.

        Raises:
            FencedError: a newer epoch has been admitted.
            InvalidUsage: stored parts could not be read under it; the message names the column.
        """

        def change(state: ShardState) -> tuple[ShardState, Fenced | None]:
            return (state, Fenced(state.epoch)) if self.epoch < state.epoch else evolve(state, schema)

        outcome = await self._machine.commit(change)
        if outcome is not None:
            raise fenced(self.shard, outcome, self.epoch)

    async def open_at(self, as_of: int) -> Frontier:
        """Start an empty shard's history at ``as_of``; return its since (unchanged if it has a history)."""
        return await self._machine.commit(lambda state: open_at(state, self.epoch, as_of))


def fenced(shard: str, outcome: Fenced, epoch: int) -> FencedError:
    """Return the error for a fenced writer."""
    return FencedError(
        f"fenced: shard {shard!r} has admitted epoch {outcome.epoch}, this writer has {epoch}; "
        "another environment has taken over"
    )
