"""Transactions: one commit over several table shards, at one time, all or nothing.

The *transactions shard* (a record shard) is the commit point: a transaction is committed iff its records are in it.  Its batches were staged
before; applying it means appending them to each data shard at the transaction's time.  Only the applier moves a registered shard's upper, and
never past ``t`` before the batches of ``t`` are in; so ``upper > t`` alone shows that a transaction is whole, and no reader knows of the
transactions shard.  Whoever opens it for writing applies what is committed first.

Records: ``["shard", id, schema]`` registers a data shard · ``["token", token]`` at the commit's time: the same token again is the same commit ·
``["write", shard, n, staged]`` a batch to apply, withdrawn once applied (tidy) with the next commit or advance.

Applying is idempotent and may be done by several at once: an append needs the upper to be at or before ``t``, and moves it beyond.

Source: design page "persist" (transactions); cases `txn_wal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import msgspec

from strandline.errors import InvalidUsage, Unavailable
from strandline.frontier.antichain import Frontier
from strandline.persist import codec
from strandline.persist.batch import Digest, Staged
from strandline.persist.client import PersistClient
from strandline.persist.records import Record, RecordShard
from strandline.persist.state import Appended, Fenced, UpperMismatch
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
    """The time asked for is past: commit at ``upper`` or later.  Nothing changed; the staged batches are the caller's."""

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
        self._applied: dict[bytes, int] = {}  # write records applied here and not yet withdrawn from the log: data to time

    @property
    def upper(self) -> Frontier:
        """All transactions before this time are known."""
        return self._log.upper

    async def register(self, shard: str, schema: str) -> WriteHandle:
        """Make ``shard`` one that only transactions append to; idempotent.  Its upper follows the log's from now on."""
        writer = await self._writer(shard, schema)
        while shard not in _shards(await self._log.contents()):
            upper = _at(self._log.upper)
            await self._append([Record(_encode(["shard", shard, schema]), upper, 1)], upper + 1, token=None)
        await self.apply()
        return writer

    async def commit(self, time: int, writes: Mapping[str, Sequence[Staged]], *, token: str) -> CommitOutcome:
        """Commit batches staged for exactly ``[time, time + 1)`` to their shards, all or none; durable when it returns.

        Raises:
            InvalidUsage: a shard is not registered, or a batch is staged for another time.
            Indeterminate: it may have happened: ask again with the same token.
        """
        registered = _shards(await self._log.contents())
        records = [Record(_encode(["token", token]), time, 1)]
        for shard, batches in sorted(writes.items()):
            if shard not in registered:
                raise InvalidUsage(f"shard {shard!r} is not registered with the transactions; register it first")
            for n, staged in enumerate(batches):
                if (staged.lower, staged.upper) != (Frontier(time), Frontier(time + 1)):
                    raise InvalidUsage(f"a batch for the transaction at {time} is staged for [{staged.lower}, {staged.upper})")
                records.append(Record(_encode(["write", shard, n, _pack(staged)]), time, 1))
        while True:
            known = await self.find(token)
            if known is not None:
                return CommittedAt(known)
            if _at(self._log.upper) > time:
                return TimeTaken(_at(self._log.upper))
            if await self._append(records, time + 1, token=token):
                return CommittedAt(time)

    async def find(self, token: str) -> int | None:
        """Return the time of the transaction ``token``, or None if it is not committed (as far as is known here)."""
        wanted = _encode(["token", token])
        for record in await self._log.contents():
            if record.data == wanted:
                return record.time
        return None

    async def apply(self) -> int:
        """Append every committed batch to its shard, and advance the registered shards to the log's upper; count the batches.

        Raises `FencedError` if a newer epoch has taken over.
        """
        state = self._log.state  # one version: its upper and its records belong together
        records = await self._log.contents(state)
        writes = [w for w in _writes(records) if w.record.data not in self._applied]
        shards = {shard: await self._writer(shard, schema) for shard, schema in sorted(_shards(records).items())}
        for shard, time in sorted({(w.shard, w.time) for w in writes}, key=lambda at: (at[1], at[0])):
            await self._apply(shard, time, [w.staged for w in writes if (w.shard, w.time) == (shard, time)])
        self._applied.update((w.record.data, w.time) for w in writes)
        behind = [(writer, state.upper, "") for writer in shards.values() if writer.state.upper < state.upper]
        for (writer, upper, _), outcome in zip(behind, await self._client.advance_many(behind), strict=True):
            if isinstance(outcome, Fenced):
                raise fenced(writer.shard, outcome, self._epoch)
            if isinstance(outcome, UpperMismatch):
                await self._catch_up(writer, upper)
        return len(writes)

    async def advance(self, time: int) -> None:
        """Seal all registered shards through ``time``: no transaction can commit at or before it any more."""
        while _at(self._log.upper) <= time:
            await self._append([], time + 1, token=None)
        await self.apply()

    # ---- the log -----------------------------------------------------------------------------------------------------

    async def _append(self, records: Sequence[Record], new: int, *, token: str | None) -> bool:
        expected = self._log.upper
        tidy = [Record(data, max(time, _at(expected)), -1) for data, time in self._applied.items()]
        new = max(new, _at(expected) + 1)
        match await self._log.append([*records, *tidy], expected, Frontier(new), token=token):
            case Appended():
                self._applied = {}
                return True
            case UpperMismatch():
                await self._forget_withdrawn()
                return False
            case Fenced() as outcome:
                raise fenced(self._log.shard, outcome, self._epoch)

    async def _forget_withdrawn(self) -> None:
        # Somebody else may have withdrawn what we applied: withdrawing it again would leave it at -1.
        live = {w.record.data for w in _writes(await self._log.contents())}
        self._applied = {data: time for data, time in self._applied.items() if data in live}

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
            found.pop(record.data, None)
    decoded = [(record, _decoder.decode(record.data)) for record in found.values()]
    return [(record, fields) for record, fields in decoded if fields[0] == kind]


def _shards(records: Sequence[Record]) -> dict[str, str]:
    """Return the registered shards and their schemas."""
    return {fields[1]: fields[2] for _, fields in _live(records, "shard")}


def _writes(records: Sequence[Record]) -> list[_Write]:
    """Return the batches that are committed and not withdrawn."""
    return [
        _Write(fields[1], record.time, _unpack(fields[3], record.time), record)
        for record, fields in _live(records, "write")
    ]


def _at(frontier: Frontier) -> int:
    assert frontier.at is not None, "the transactions shard is never closed"
    return frontier.at


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[Any])


def _pack(staged: Staged) -> list[Any]:
    low, high = staged.digest.low, staged.digest.high
    return [codec.pack_parts(staged.parts), staged.rows, staged.diffs, low, high, staged.plain]


def _unpack(fields: list[Any], time: int) -> Staged:
    parts, rows, diffs, low, high, plain = fields
    return Staged(Frontier(time), Frontier(time + 1), codec.unpack_parts(parts), rows, diffs, Digest(low, high), plain)
