"""Critical readers: holds on a shard's since that survive their owner's process.

A critical reader has no lease.  Only its owner moves it, forward, by `compare_and_downgrade` with the token (`opaque`)
that it wrote last time.  An owner of an older epoch finds another token, which shows that a newer owner has taken over.
"""

from __future__ import annotations

from strandline.errors import FencedError
from strandline.frontier.antichain import Frontier, join
from strandline.persist.shard.machine import Command, Machine
from strandline.persist.shard.state import (
    Downgraded,
    OpaqueMismatch,
    compare_and_downgrade,
    expire_critical,
    register_critical,
)


class SinceHandle:
    """The hold ``reader`` on one shard; its owner's epoch is its token.  Opened by `PersistClient.since`."""

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
