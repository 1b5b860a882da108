"""Several collections that are written and sealed together: all or nothing, at one time.

A `MultiWriteHandle` commits through the transactions that the location keeps for programs (`transactions.MULTI`), so it
is atomic on every Consensus: the commit point is one compare-and-set of one shard, whatever the number of collections.
A reader of any of them sees a write whole or not at all, and all of them at the same time.  All handles of a location
share the times, and the epoch: a program that takes over raises it, as for a stream; the environment's is another.

A collection is either a stream of its own (`stream.py`), or written through handles like this one; its shard knows
which, and mixing is refused (`InvalidUsage`).

Source: design page "persist" (the stream client: `MultiWriteHandle`; transactions).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strandline.errors import InvalidUsage
from strandline.frontier.antichain import Frontier, given_time
from strandline.persist.client import PersistClient
from strandline.persist.names import Named, Names
from strandline.persist.since import SinceHandle
from strandline.persist.stream import StreamReader
from strandline.persist.transactions import MULTI, Transactions, Writes, open_transactions
from strandline.persist.updates import Codec, Update, given_diff
from strandline.persist.write import WriteHandle

Changes = Mapping[str, Iterable[tuple[Any, int]]]
"""By collection: values, and how many times more each is there."""


HOLD: Final = "multi"
"""The critical reader by which a collection keeps its past until `MultiWriteHandle.allow_compaction`."""


@dataclass(frozen=True, slots=True)
class _Member:
    named: Named
    writer: WriteHandle
    hold: SinceHandle
    codec: Codec[Any]
    reader: StreamReader[Any]


class MultiWriteHandle:
    """Writes several collections.  Opened by `open_multi`."""

    def __init__(self, names: Names, transactions: Transactions, members: dict[str, _Member]) -> None:
        self._names = names
        self._transactions = transactions
        self._members = members

    @property
    def upper(self) -> Frontier:
        """What is sealed in all of them, as far as is known here."""
        return self._transactions.upper

    def reader(self, name: str) -> StreamReader[Any]:
        """Return the reader of a collection."""
        return self._member(name).reader

    async def write(self, changes: Changes, *, at: int = 0, token: str | None = None) -> int:
        """Write to several collections at one time, ``at`` or later, and seal it in all of them; return the time.

        Durable when it returns, whole or not at all.  The same ``token`` again is the same write; without one, who was
        not told the outcome has to look for what it wrote.

        Raises:
            InvalidUsage: a collection is not of this handle, a value is none of its, what should be a time or a diff
                is no whole number, or the token came too late.
            FencedError: a newer epoch has taken over.
            Indeterminate: it may have happened; ask again with the same token.
        """
        given = {
            self._member(name): [(value, given_diff(diff, repr(name))) for value, diff in pairs]
            for name, pairs in changes.items()
        }
        draft = _Draft(given, given_time(at, "a write to several collections"))
        return await self._transactions.transact(draft, token=token)

    async def seal(self, upper: int) -> None:
        """Complete all times before ``upper`` in every collection; what is complete already stays so."""
        if (bound := given_time(upper, "a seal of several collections")) > 0:
            await self._transactions.advance(bound - 1)

    async def allow_compaction(self, since: int) -> None:
        """Give up telling times before ``since`` apart, in every collection; readers that hold them still can."""
        bound = Frontier(given_time(since, "the since of several collections"))
        for member in self._members.values():
            await member.hold.downgrade(bound)

    async def drop(self, name: str) -> None:
        """Let a name mean nothing, close its collection, and delete all of it; the others go on without it.

        Whoever still has it open finds that it is none any more (`InvalidUsage`).  Leases keep what they hold, as for a
        stream (`StreamClient.drop`).  If this fails, the next who opens any collections brings it to its end.
        """
        member = self._member(name)
        await self._names.drop(name, member.named, closed=False)
        del self._members[name]
        await _give_up(member.named.shard, self._names, self._transactions)

    def _member(self, name: str) -> _Member:
        if name not in self._members:
            raise InvalidUsage(f"{name!r} is not a collection of this handle; it has {sorted(self._members)}")
        return self._members[name]


async def open_multi(client: PersistClient, epoch: int, codecs: Mapping[str, Codec[Any]]) -> MultiWriteHandle:
    """Open collections by name, each in its codec, to be written together; those that are not there are created.

    Raises:
        InvalidUsage: one was created with another codec, or is a stream of its own.
        FencedError: a newer epoch writes collections together.
    """
    transactions = await open_transactions(client, epoch, MULTI)
    names = client.names()
    while True:
        members = {name: await _opened(name, codecs[name], client, transactions, epoch) for name in sorted(codecs)}
        registered = (await transactions.shards()).keys()
        meant = {each.shard for each in (await names.all()).values()}
        # What is created is named before it is registered.  So what no name means was dropped in the moment in which it
        # was opened, here or by somebody who died over it.
        for shard in sorted((registered - meant) | await names.dropped()):
            await _give_up(shard, names, transactions)
        if all(member.named.shard in meant for member in members.values()):
            return MultiWriteHandle(names, transactions, members)


async def _opened(
    name: str, codec: Codec[Any], client: PersistClient, transactions: Transactions, epoch: int
) -> _Member:
    named = await client.names().create_or_load(name, codec=codec.name, schema=codec.words)
    writer = await transactions.register(named.shard, codec.words, merger=codec.merger)
    reader = await client.reader(named.shard, codec.schema, name)
    assert reader is not None, f"{name!r} was opened for writing a moment ago"
    hold = await client.since(named.shard, HOLD, epoch)
    return _Member(named, writer, hold, codec, StreamReader(reader, codec))


async def _give_up(shard: str, names: Names, transactions: Transactions) -> None:
    """Close what no name means any more; idempotent."""
    await transactions.drop(shard)
    await names.closed(shard)


@dataclass(frozen=True, slots=True)
class _Draft:
    """See `transactions.Draft`."""

    changes: Mapping[_Member, list[tuple[Any, int]]]
    earliest: int
    reads: bool = False

    def time(self, upper: int) -> int:
        return max(upper, self.earliest)

    async def stage(self, time: int, upper: int) -> Writes:
        """Stage each collection's changes; what cancels out is left out."""
        bounds = (Frontier(time), Frontier(time + 1))
        writes = {}
        for member, pairs in self.changes.items():
            if pairs:
                updates = [Update(value, time, diff) for value, diff in pairs]
                room = member.writer.inline_room
                staged = await member.codec.stage(member.writer, updates, bounds, inline_bytes_max=room)
                writes[member.writer.shard] = [staged]
        return {shard: batches for shard, batches in writes.items() if batches[0].parts}

    async def discard(self, writes: Writes) -> None:
        for member in self.changes:
            await member.codec.discard(writes.get(member.writer.shard, ()))
