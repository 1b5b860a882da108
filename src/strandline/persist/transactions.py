"""Transactions: one commit over several table shards, at one time, all or nothing.

The *transactions shard* (a record shard, see `ledger.py`) is the commit point: a transaction is committed iff its
records are in it.  Its batches were staged before; applying it means appending them to each data shard at the
transaction's time.  Only the applier moves a registered shard's upper, and never past ``t`` before the batches of ``t``
are in; so ``upper > t`` alone shows that a transaction is whole, and no reader knows of the transactions shard.
Whoever opens it for writing applies what is committed first.

Applying is idempotent and may be done by several at once: an append needs the upper to be at or before ``t``, and moves
it beyond.  Tidying (withdrawing what is applied, and tokens that expired) is not, so what is withdrawn is what is live
at the very upper that the append expects.  Nobody reads the shard's past, so its since follows, and compaction drops
what cancels out.

A location has one for the environment's tables and one for programs (`LOGS`), which know nothing of each other: epochs
and times of the one are not the other's.  A data shard is owned by its log, so it takes part in one alone.

Source: design page "persist" (transactions); cases `txn_wal`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from strandline.errors import CorruptionError, FencedError, InvalidUsage, StoreError, StrandlineError, Unavailable
from strandline.frontier.antichain import Frontier
from strandline.persist.batch import Staged, retimed
from strandline.persist.client import PersistClient
from strandline.persist.ledger import (
    TOKEN_LIFE_MS,
    Ledger,
    expires,
    shard_record,
    token_record,
    write_record,
)
from strandline.persist.plane import Merger
from strandline.persist.records import Record, RecordShard
from strandline.persist.since import SinceHandle
from strandline.persist.state import Appended, Fenced, ShardState, UpperMismatch, begun_ms
from strandline.persist.write import WriteHandle, fenced

SHARD: Final = "transactions"
"""Those of the environment: its epoch, its times."""
MULTI: Final = "multi"
"""Those of programs (`persist/multi.py`)."""
LOGS: Final = (SHARD, MULTI)
HOLD: Final = "transactions"
"""The critical reader of the transactions shard: whoever keeps it."""
TIDY_EVERY: Final = 64
"""Expired tokens are withdrawn, and the shard's past is let go of, once in so many versions."""
APPLY_RETRIES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class CommittedAt:
    """The transaction is durable at ``time``, now or (same token) already before."""

    time: int


@dataclass(frozen=True, slots=True)
class TimeTaken:
    """Somebody else was faster: commit at ``upper`` or later.  The staged batches are the caller's."""

    upper: int


CommitOutcome: TypeAlias = CommittedAt | TimeTaken
Writes: TypeAlias = Mapping[str, Sequence[Staged]]
"""Batches by the shard that they are for."""


class Draft(Protocol):
    """A transaction that does not know its time yet."""

    @property
    def reads(self) -> bool:
        """Whether what it writes follows from what the shards hold; then nobody may commit in between."""
        ...

    def time(self, upper: int) -> int:
        """Return the time to commit at: ``upper`` or later."""
        ...

    async def stage(self, time: int, upper: int) -> Writes:
        """Stage for ``time``; the shards hold everything that is committed before ``upper``."""
        ...

    async def discard(self, writes: Writes) -> None:
        """Delete what was staged and definitely refused."""
        ...


class Transactions:
    """The transactions of one location, under one epoch.  Opened by `open_transactions`."""

    def __init__(self, log: RecordShard, hold: SinceHandle, client: PersistClient, epoch: int) -> None:
        self._log = log
        self._hold = hold
        self._client = client
        self._epoch = epoch
        self._writers: dict[str, WriteHandle] = {}
        self._ledger = Ledger()
        self._tidied_at = log.state.seqno
        self._applied: set[bytes] = set()  # write records applied here that the log may still hold

    @property
    def upper(self) -> Frontier:
        """All transactions before this time are known."""
        return self._log.upper

    async def shards(self) -> Mapping[str, str]:
        """Return the registered shards and their schemas, as far as is known here."""
        _, known = await self._current()
        return known.shards

    async def register(self, shard: str, schema: str, *, merger: Merger | None = None) -> WriteHandle:
        """Make ``shard`` one that only transactions append to; idempotent.  Its upper follows the log's from now on.

        ``merger`` rewrites its parts here (see `PersistClient.writer`); who applies what is committed to shards that
        others registered chooses by their schemas.
        """
        writer = await self._writer(shard, schema, merger)
        await self._log.refresh()  # somebody else may have let it go
        while True:
            state, known = await self._current()
            if shard in known.shards:
                break
            upper = _at(state.upper)
            await self._append(state, [Record(shard_record(shard, schema), upper, 1)], upper + 1)
        await self.apply()
        return writer

    async def forget(self, shard: str) -> None:
        """Let ``shard`` take part no more; idempotent.

        Everything committed to it is applied first; its upper stands still from then on, and commits to it are refused.
        """
        await self._log.refresh()  # somebody else may have registered it
        while True:
            await self.apply()
            state, known = await self._current()
            if shard not in known.shards:
                break
            if any(write.shard == shard and data not in self._applied for data, write in known.writes.items()):
                continue  # committed while we applied
            upper = _at(state.upper)
            await self._append(state, [Record(shard_record(shard, known.shards[shard]), upper, -1)], upper + 1)
        self._writers.pop(shard, None)

    async def drop(self, shard: str) -> None:
        """Let ``shard``, whether it takes part or not, take part no more, and close it for good; idempotent.

        See `PersistClient.drop` for what becomes of it, and for errors.
        """
        await self.forget(shard)
        await self._client.drop(shard, self._epoch)

    async def transact(self, draft: Draft, *, token: str | None) -> int:
        """Commit ``draft`` at a time that is free, later for as long as others are faster; apply it.

        What it wrote is given the later time as it is; only a draft that reads is staged anew.  The same token again is
        the same commit; without one nobody can ask again, and nothing of it is remembered.  Raises what `commit` and
        ``draft.stage`` raise; then nothing is committed, unless it is `Indeterminate`.
        """
        done = None if token is None else await self.find(token)
        writes: Writes | None = None
        while done is None:
            await self.apply()
            upper = _at(self.upper)
            time = draft.time(upper)
            writes = _retimed(writes, time) if writes is not None else await draft.stage(time, upper)
            try:
                outcome = await self.commit(time, writes, token=token, read=upper if draft.reads else None)
            except InvalidUsage:
                await _give_back(draft, writes)
                raise
            match outcome:
                case CommittedAt(at):
                    done = at
                    if at != time:
                        await _give_back(draft, writes)  # it was committed before, with other batches
                case TimeTaken() if draft.reads:
                    await _give_back(draft, writes)
                    writes = None
        with suppress(StoreError, Unavailable, FencedError):  # it is durable: whoever is next applies it
            await self.apply()
        return done

    async def commit(self, time: int, writes: Writes, *, token: str | None, read: int | None = None) -> CommitOutcome:
        """Commit batches staged for exactly ``[time, time + 1)`` to their shards, all or none; durable when it returns.

        ``read``: the upper that the transaction saw when it read what it changes; if anything was committed since, it
        is refused (`TimeTaken`), and must read again.

        Raises:
            InvalidUsage: a shard is not registered, a batch is staged for another time, or so long ago that a sweep has
                taken its parts for leaked, or ``token`` was made so long ago that nobody knows any more whether it was
                committed.
            Indeterminate: it may have happened: ask again with the same token.
        """
        records = [] if token is None else [Record(token_record(token, time), time, 1)]
        for shard, batches in sorted(writes.items()):
            for n, staged in enumerate(batches):
                if (staged.lower, staged.upper) != (Frontier(time), Frontier(time + 1)):
                    raise InvalidUsage(
                        f"a batch for the transaction at {time} is staged for [{staged.lower}, {staged.upper})"
                    )
                records.append(Record(write_record(shard, time, n, staged), time, 1))
        dates = (ms for shard, batches in writes.items() for staged in batches for ms in begun_ms(shard, staged))
        begun = min(dates, default=None)
        fresh = False  # whether the state was fetched after this call began
        while True:
            state, known = await self._current()  # the answer follows from one version, whoever commits meanwhile
            upper = _at(state.upper)
            if token is not None and token in known.tokens:
                return CommittedAt(known.tokens[token])
            if token is not None and expires(token) <= upper:
                raise InvalidUsage(
                    f"token {token!r} comes too late: tokens are remembered for {TOKEN_LIFE_MS // 60_000} minutes, so "
                    "whether it was committed is not known any more; look, and use a new token"
                )
            if upper > time or read not in (None, upper):
                return TimeTaken(upper)
            if missing := sorted(writes.keys() - known.shards.keys()):
                if fresh:
                    raise InvalidUsage(
                        f"shard {missing[0]!r} is not registered with the transactions; register it first"
                    )
                await self._log.refresh()  # somebody else may have registered it
                fresh = True
                continue
            if await self._append(state, records, time + 1, begun_ms=begun):
                return CommittedAt(time)

    async def find(self, token: str) -> int | None:
        """Return the time of the transaction ``token``, or None if it is not committed (as far as is known here)."""
        _, known = await self._current()
        return known.tokens.get(token)

    async def apply(self) -> int:
        """Append what is committed to its shards, and advance these to the log's upper; count the batches.

        Raises `FencedError` if a newer epoch has taken over.
        """
        state, known = await self._current()  # one version: its upper and its records belong together
        writes = [write for write in known.in_order() if write.data not in self._applied]
        shards = {shard: await self._writer(shard, schema) for shard, schema in sorted(known.shards.items())}
        together: dict[tuple[int, str], list[Staged]] = {}
        for write in writes:
            together.setdefault((write.time, write.shard), []).append(write.staged)
        for (time, shard), staged in together.items():
            await self._apply(shards[shard], time, staged)
        self._applied.update(write.data for write in writes)
        behind = [(writer, state.upper, "") for writer in shards.values() if writer.state.upper < state.upper]
        for (writer, upper, _), outcome in zip(behind, await self._client.advance_many(behind), strict=True):
            if isinstance(outcome, StrandlineError):
                raise outcome
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

    async def _current(self) -> tuple[ShardState, Ledger]:
        """Return the newest version known here, and its ledger."""
        while True:
            state = self._log.state
            known = await self._read(state)
            if known is not None:
                return state, known

    async def _read(self, state: ShardState) -> Ledger | None:
        """Return the ledger at ``state``; None if that was merged and collected while it was read: others went on."""
        try:
            return await self._known(state)
        except CorruptionError:
            await self._log.refresh()
            if {*state.parts} <= {*self._log.state.parts}:
                raise
            return None

    async def _known(self, state: ShardState) -> Ledger:
        """Return the ledger at ``state``; what is appended is read once."""
        past = self._ledger
        if state.upper == past.upper:
            return past
        lowers = [batch.lower for batch in state.batches if batch.parts and not batch.upper <= past.upper]
        if not past.upper <= state.upper or not all(past.upper <= lower for lower in lowers):
            past = Ledger()  # this state is an older one, or compaction has put old and new together
        known = past.after(await self._log.contents(state, after=past.upper), state.upper)
        self._learn(known)
        return known

    def _learn(self, known: Ledger) -> None:
        if self._ledger.upper < known.upper:
            self._ledger = known

    async def _append(
        self, state: ShardState, records: Sequence[Record], new: int, *, begun_ms: int | None = None
    ) -> bool:
        """Append to the log as it is in ``state``, and tidy; tell whether nobody was faster.

        Raises `InvalidUsage` if parts that ``records`` name were begun (``begun_ms``) before the mark of a sweep: what
        is committed can never be refused any more, since nobody would get past it.
        """
        known = await self._read(state)
        if known is None:
            return False
        self._applied &= known.writes.keys()  # the rest was withdrawn already, by whomever
        withdrawn = frozenset(self._applied)
        due = state.seqno >= self._tidied_at + TIDY_EVERY
        expired = known.expired() if due else []
        fresh = [*records, *(Record(data, _at(state.upper), -1) for data in (*sorted(withdrawn), *expired))]
        match await self._log.append(fresh, state.upper, Frontier(new), begun_ms=begun_ms):
            case Appended():
                self._learn(known.after(fresh, Frontier(new)))
                self._applied -= withdrawn
                if due:
                    await self._let_go()
                return True
            case UpperMismatch():
                return False
            case Fenced() as outcome:
                raise fenced(self._log.shard, outcome, self._epoch)

    async def _let_go(self) -> None:
        """Let go of the log's past, so that compaction can drop what cancels out; failing does no harm."""
        state = self._log.state
        self._tidied_at = state.seqno
        with suppress(StoreError, Unavailable, FencedError):  # what was appended is durable all the same
            await self._hold.downgrade(Frontier(_at(state.upper) - 1))

    # ---- the data shards ---------------------------------------------------------------------------------------------

    async def _writer(self, shard: str, schema: str, merger: Merger | None = None) -> WriteHandle:
        if shard not in self._writers or merger is not None:
            self._writers[shard] = await self._client.writer(
                shard, self._epoch, schema=schema, owner=self._log.shard, merger=merger
            )
        return self._writers[shard]

    async def _apply(self, writer: WriteHandle, time: int, staged: Sequence[Staged]) -> None:
        shard = writer.shard
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


async def open_transactions(client: PersistClient, epoch: int, log: str = SHARD) -> Transactions:
    """Open those transactions of a location for writing: apply all that is committed, whoever committed it."""
    records = await client.records(log, epoch)
    transactions = Transactions(records, await client.since(log, HOLD, epoch), client, epoch)
    await transactions.apply()
    return transactions


def _at(frontier: Frontier) -> int:
    assert frontier.at is not None, "the transactions shard is never closed"
    return frontier.at


async def _give_back(draft: Draft, writes: Writes) -> None:
    with suppress(StoreError, Unavailable):  # what stays behind is named by nothing, and is swept as leaked
        await draft.discard(writes)


def _retimed(writes: Writes, time: int) -> Writes:
    bounds = (Frontier(time), Frontier(time + 1))
    return {shard: [retimed(staged, *bounds) for staged in batches] for shard, batches in writes.items()}
