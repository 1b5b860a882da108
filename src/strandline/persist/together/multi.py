"""Several collections written and sealed together: atomically, at one time.

A `MultiWriteHandle` commits through the transactions that the location keeps for programs (`transactions.MULTI`), so it
is atomic on every Consensus: the commit point is one compare-and-set of one shard, whatever the number of collections.
A reader of any of them sees a write whole or not at all, and all of them at the same time.  All handles of a location
share one sequence of times and one epoch.  A program that takes over raises the epoch, as for a stream.  The
environment has its own epoch.

A collection is either a stream (`stream.py`), or written through handles like this one.  Its shard records which, and
opening it the other way raises `InvalidUsage`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from strandline.errors import InvalidUsage
from strandline.frontier import Frontier, given_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import SinceHandle
from strandline.persist.handles.register import Named, Names
from strandline.persist.handles.updates import Codec, Update, given_diff
from strandline.persist.handles.write import WriteHandle
from strandline.persist.together.stream import StreamReader
from strandline.persist.together.transactions import MULTI, Transactions, Writes, open_transactions

Changes = Mapping[str, Iterable[tuple[Any, int]]]
"""By collection: pairs of a value and the change (diff) of its count."""


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
        """The time up to which all of them are sealed, as far as is known here."""
        return self._transactions.upper

    def reader(self, name: str) -> StreamReader[Any]:
        """Return the reader of a collection."""
        return self._member(name).reader

    async def write(self, changes: Changes, *, at: int = 0, token: str | None = None) -> int:
        """Write to several collections at one time, ``at`` or later, and seal it in all of them; return the time.

        Durable when it returns, whole or not at all.  The same ``token`` again is the same write.  Without one, a
        caller that meets `Indeterminate` must look for what it wrote.

        Raises:
            InvalidUsage: a collection does not belong to this handle, a value does not fit the collection, a time or
                diff is not a whole number, or the token has expired.
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
        """Complete all times before ``upper`` in every collection; times that are complete stay complete."""
        if (bound := given_time(upper, "a seal of several collections")) > 0:
            await self._transactions.advance(bound - 1)

    async def allow_compaction(self, since: int) -> None:
        """Allow compaction of times before ``since`` in every collection; times that readers hold stay distinct."""
        bound = Frontier(given_time(since, "the since of several collections"))
        for member in self._members.values():
            await member.hold.downgrade(bound)

    async def drop(self, name: str) -> None:
        """Drop a name, close its collection, and delete all of it; the other collections continue.

        A handle that still has it open raises `InvalidUsage` from then on.  Leases keep what they hold, as for a stream
        (`StreamClient.drop`).  If this fails, the next `open_multi` finishes it.
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
    """Open collections by name, each in its codec, to write them together; missing ones are created.

    Raises:
        InvalidUsage: one was created with another codec, or is a stream.
        FencedError: a newer epoch writes collections together.
    """
    transactions = await open_transactions(client, epoch, MULTI)
    names = client.names()
    while True:
        members = {name: await _opened(name, codec, client, transactions, epoch) for name, codec in codecs.items()}
        registered = (await transactions.shards()).keys()
        meant = {each.shard for each in (await names.all()).values()}
        # A collection is named before it is registered.  So a registered shard without a name was dropped while it was
        # being opened, by this process or by one that died before it finished.
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
    """Close a shard that no longer has a name; idempotent."""
    await transactions.close_shard(shard)
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
        """Stage each collection's changes, leaving out those that cancel."""
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
