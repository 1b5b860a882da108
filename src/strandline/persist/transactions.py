"""Transactions: one commit over several table shards, at one time, all or nothing.

The *transactions shard* (a record shard) is the commit point: a transaction is committed iff its records are in it.
Its batches were staged before; applying it means appending them to each data shard at the transaction's time.  Only the
applier moves a registered shard's upper, and never past ``t`` before the batches of ``t`` are in; so ``upper > t``
alone shows that a transaction is whole, and no reader knows of the transactions shard.  Whoever opens it for writing
applies what is committed first.

Records: ``["shard", id, schema]`` registers a data shard · ``["token", token]`` at the commit's time: the same token
again is the same commit · ``["write", shard, time, n, staged]`` a batch to apply, withdrawn once applied (tidy) with
the next commit or advance.  The time makes each write a record of its own, however often the same rows are written.

Applying is idempotent and may be done by several at once: an append needs the upper to be at or before ``t``, and moves
it beyond.  Tidying is not, so what is withdrawn is what is live at the very upper that the append expects.

Source: design page "persist" (transactions); cases `txn_wal`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from strandline.errors import InvalidUsage, Unavailable
from strandline.frontier.antichain import Frontier
from strandline.persist import codec
from strandline.persist.batch import Staged
from strandline.persist.client import PersistClient
from strandline.persist.records import Record, RecordShard
from strandline.persist.state import Appended, Fenced, ShardState, UpperMismatch
from strandline.persist.write import WriteHandle, fenced

SHARD: Final = "transactions"
OWNER: Final = "transactions"
APPLY_RETRIES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class CommittedAt:
    """The transaction is durable at ``time``, now or (same token) already before."""

    time: int


@dataclass(frozen=True, slots=True)
class TimeTaken:
    """The time asked for is past: commit at ``upper`` or later.  The staged batches are the caller's."""

    upper: int


CommitOutcome: TypeAlias = CommittedAt | TimeTaken


@dataclass(frozen=True, slots=True)
class _Write:
    shard: str
    time: int
    staged: Staged
    record: Record


class Transactions:
    """The transactions of one location, under one epoch.  Opened by `open_transactions`."""

    def __init__(self, log: RecordShard, client: PersistClient, epoch: int) -> None:
        self._log = log
        self._client = client
        self._epoch = epoch
        self._writers: dict[str, WriteHandle] = {}
        self._applied: set[bytes] = set()  # write records applied here that the log may still hold

    @property
    def upper(self) -> Frontier:
        """All transactions before this time are known."""
        return self._log.upper

    async def register(self, shard: str, schema: str) -> WriteHandle:
        """Make ``shard`` one that only transactions append to; idempotent.  Its upper follows the log's from now on."""
        writer = await self._writer(shard, schema)
        while shard not in _shards(await self._log.contents(state := self._log.state)):
            upper = _at(state.upper)
            await self._append(state, [Record(_encode(["shard", shard, schema]), upper, 1)], upper + 1)
        await self.apply()
        return writer

    async def commit(self, time: int, writes: Mapping[str, Sequence[Staged]], *, token: str) -> CommitOutcome:
        """Commit batches staged for exactly ``[time, time + 1)`` to their shards, all or none; durable when it returns.

        Raises:
            InvalidUsage: a shard is not registered, or a batch is staged for another time.
            Indeterminate: it may have happened: ask again with the same token.
        """
        records = [Record(_encode(["token", token]), time, 1)]
        for shard, batches in sorted(writes.items()):
            for n, staged in enumerate(batches):
                if (staged.lower, staged.upper) != (Frontier(time), Frontier(time + 1)):
                    raise InvalidUsage(
                        f"a batch for the transaction at {time} is staged for [{staged.lower}, {staged.upper})"
                    )
                records.append(Record(_encode(["write", shard, time, n, codec.pack_staged(staged)]), time, 1))
        await self._refuse_unregistered(writes)
        while True:
            state = self._log.state  # the answer follows from one version, whoever commits meanwhile
            known = _time_of(token, await self._log.contents(state))
            if known is not None:
                return CommittedAt(known)
            if _at(state.upper) > time:
                return TimeTaken(_at(state.upper))
            if await self._append(state, records, time + 1):
                return CommittedAt(time)

    async def find(self, token: str) -> int | None:
        """Return the time of the transaction ``token``, or None if it is not committed (as far as is known here)."""
        return _time_of(token, await self._log.contents())

    async def apply(self) -> int:
        """Append what is committed to its shards, and advance these to the log's upper; count the batches.

        Raises `FencedError` if a newer epoch has taken over.
        """
        state = self._log.state  # one version: its upper and its records belong together
        records = await self._log.contents(state)
        writes = [w for w in _writes(records) if w.record.data not in self._applied]
        shards = {shard: await self._writer(shard, schema) for shard, schema in sorted(_shards(records).items())}
        together: dict[tuple[int, str], list[Staged]] = {}
        for write in writes:
            together.setdefault((write.time, write.shard), []).append(write.staged)
        for (time, shard), staged in sorted(together.items(), key=lambda item: item[0]):
            await self._apply(shard, time, staged)
        self._applied.update(write.record.data for write in writes)
        behind = [(writer, state.upper, "") for writer in shards.values() if writer.state.upper < state.upper]
        for (writer, upper, _), outcome in zip(behind, await self._client.advance_many(behind), strict=True):
            if isinstance(outcome, Fenced):
                raise fenced(writer.shard, outcome, self._epoch)
            if isinstance(outcome, UpperMismatch):
                await self._catch_up(writer, upper)
        return len(writes)

    async def advance(self, time: int) -> None:
        """Seal all registered shards through ``time``: no transaction can commit at or before it any more."""
        while _at((state := self._log.state).upper) <= time:
            await self._append(state, [], time + 1)
        await self.apply()

    # ---- the log -----------------------------------------------------------------------------------------------------

    async def _append(self, state: ShardState, records: Sequence[Record], new: int) -> bool:
        """Append to the log as it is in ``state``, and withdraw what is applied; tell whether nobody was faster."""
        live = {write.record.data for write in _writes(await self._log.contents(state))}
        self._applied &= live  # the rest was withdrawn already, by whomever
        withdrawn = frozenset(self._applied)
        tidy = [Record(data, _at(state.upper), -1) for data in sorted(withdrawn)]
        match await self._log.append([*records, *tidy], state.upper, Frontier(new)):
            case Appended():
                self._applied -= withdrawn
                return True
            case UpperMismatch():
                return False
            case Fenced() as outcome:
                raise fenced(self._log.shard, outcome, self._epoch)

    async def _refuse_unregistered(self, shards: Iterable[str]) -> None:
        wanted = frozenset(shards)
        if not wanted <= _shards(await self._log.contents()).keys():
            await self._log.refresh()  # somebody else may have registered it
        for shard in sorted(wanted - _shards(await self._log.contents()).keys()):
            raise InvalidUsage(f"shard {shard!r} is not registered with the transactions; register it first")

    # ---- the data shards ---------------------------------------------------------------------------------------------

    async def _writer(self, shard: str, schema: str) -> WriteHandle:
        if shard not in self._writers:
            self._writers[shard] = await self._client.writer(shard, self._epoch, schema=schema, owner=OWNER)
        return self._writers[shard]

    async def _apply(self, shard: str, time: int, staged: Sequence[Staged]) -> None:
        writer = self._writers[shard]
        for _ in range(APPLY_RETRIES_MAX):
            upper = writer.state.upper
            if not upper <= Frontier(time):
                return  # applied before: nothing else moves this upper beyond the time
            outcome = await writer.compare_and_append(staged, upper, Frontier(time + 1), token=f"{shard}@{time}")
            if isinstance(outcome, Appended):
                return
            if isinstance(outcome, Fenced):
                raise fenced(shard, outcome, self._epoch)
        raise Unavailable(f"shard {shard!r}: the transaction at {time} could not be applied; try again later")

    async def _catch_up(self, writer: WriteHandle, upper: Frontier) -> None:
        for _ in range(APPLY_RETRIES_MAX):
            current = writer.state.upper
            if upper <= current:
                return
            outcome = await writer.compare_and_append([], current, upper)
            if isinstance(outcome, Fenced):
                raise fenced(writer.shard, outcome, self._epoch)
        raise Unavailable(f"shard {writer.shard!r} could not be advanced to {upper}; try again later")


async def open_transactions(client: PersistClient, epoch: int) -> Transactions:
    """Open the transactions of a location for writing: apply all that is committed, whoever committed it."""
    transactions = Transactions(await client.records(SHARD, epoch), client, epoch)
    await transactions.apply()
    return transactions


def _live(records: Sequence[Record], kind: str) -> list[tuple[Record, list[Any]]]:
    found: dict[bytes, Record] = {}
    for record in records:  # in order of time: a withdrawal comes after what it withdraws
        if record.diff > 0:
            found[record.data] = record
        else:
            del found[record.data]
    decoded = [(record, _decoder.decode(record.data)) for record in found.values()]
    return [(record, fields) for record, fields in decoded if fields[0] == kind]


def _time_of(token: str, records: Sequence[Record]) -> int | None:
    wanted = _encode(["token", token])
    return next((record.time for record in records if record.data == wanted), None)


def _shards(records: Sequence[Record]) -> dict[str, str]:
    """Return the registered shards and their schemas."""
    return {fields[1]: fields[2] for _, fields in _live(records, "shard")}


def _writes(records: Sequence[Record]) -> list[_Write]:
    """Return the batches that are committed and not withdrawn."""
    return [
        _Write(shard, time, codec.unpack_staged(staged), record)
        for record, (_, shard, time, _, staged) in _live(records, "write")
    ]


def _at(frontier: Frontier) -> int:
    assert frontier.at is not None, "the transactions shard is never closed"
    return frontier.at


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[Any])
