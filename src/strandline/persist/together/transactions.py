"""Transactions: one atomic commit over several table shards, at one time.

The *transactions shard* (a record shard, see `persist/handles/records.py`) is the commit point: a transaction is
committed iff its records are in it.  Its batches were staged before; applying it means appending them to each data
shard at the transaction's time.  Only the applier moves a registered shard's upper, and never past ``t`` before the
batches of ``t`` are in.  So ``upper > t`` alone shows that a transaction is complete, and readers need not know the
transactions shard.  A process that opens the transactions shard for writing first applies what is committed.

Applying is idempotent, and several processes may do it at once: an append needs the upper to be at or before ``t``,
and moves it beyond.  Tidying (withdrawing applied writes and expired tokens) is not idempotent, so an append withdraws
only records that are live at the very upper it expects.  No reader needs the shard's past, so its since follows the
upper.

A location has one log for the environment's tables and one for programs (`LOGS`), each with its own epochs and times.
A data shard's owner is its log, so it takes part in only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import msgspec

from strandline.errors import CorruptionError, FencedError, InvalidUsage, StoreError, StrandlineError, Unavailable
from strandline.frontier import MINIMUM, Frontier, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Merger
from strandline.persist.handles.read import SinceHandle
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.handles.write import WriteHandle, fenced
from strandline.persist.shard import codec
from strandline.persist.shard.batch import Staged, retimed
from strandline.persist.shard.state import Appended, Fenced, ShardState, UpperMismatch, begun_ms

TOKEN_LIFE_MS: Final = 15 * 60_000
"""How long a dated token is kept after it was made: longer than any retry of a call is in flight."""


@dataclass(frozen=True, slots=True)
class Committed:
    """A committed batch, which must be appended to ``shard`` at ``time``.  ``data`` is its record."""

    shard: str
    time: int
    staged: Staged
    data: bytes


class Ledger(msgspec.Struct, frozen=True):
    """The records that are live before ``upper``.  ``tokens``: commit time by token; ``writes``: commits by record.

    The content of the transactions shard: registered shards, commits that are not yet tidied, and used tokens.  It is
    a pure fold of the shard's records, and their order does not matter: a record is live while it was inserted once
    more often than it was withdrawn.  So compaction may advance times and drop pairs, and everything that must survive
    compaction is in the record itself.

        ["shard", id, schema]               the data shard takes part; withdrawn by forget
        ["token", token, time]              ``token`` is committed at ``time``; withdrawn when it expires
        ["write", shard, time, n, staged]   the n-th batch to append to ``shard`` at ``time``; withdrawn when applied

    A token may say when it was made: ``name@time``.  The ledger keeps such a token for `TOKEN_LIFE_MS` after that
    time, by the shard's own upper.  A commit that uses it later is refused, because the ledger no longer shows whether
    the token was committed.  A token without a date never expires: the ledger keeps it for ever, so that the same
    token is always the same commit.
    """

    upper: Frontier = MINIMUM
    shards: Mapping[str, str] = msgspec.field(default_factory=dict)
    tokens: Mapping[str, int] = msgspec.field(default_factory=dict)
    writes: Mapping[bytes, Committed] = msgspec.field(default_factory=dict)

    def after(self, records: Iterable[Record], upper: Frontier) -> Ledger:
        """Return the ledger up to ``upper``, given the records that came since this one."""
        net: dict[bytes, int] = {}
        for record in records:
            net[record.data] = net.get(record.data, 0) + record.diff
        shards, tokens, writes = dict(self.shards), dict(self.tokens), dict(self.writes)
        for data, count in sorted(net.items(), key=lambda item: item[1]):  # withdrawals first, then insertions
            if not count:
                continue
            assert abs(count) == 1, f"the count of a record of {len(data)} bytes changed by {count}"
            match _decoder.decode(data):
                case ["shard", shard, schema]:
                    _put(shards, shard, schema, count)
                case ["token", token, time]:
                    _put(tokens, token, time, count)
                case ["write", shard, time, _, staged]:
                    _put(writes, data, Committed(shard, time, codec.unpack_staged(staged), data), count)
        return Ledger(upper, shards, tokens, writes)

    def expired(self) -> list[bytes]:
        """Return the records of tokens that have expired."""
        return [token_record(t, time) for t, time in sorted(self.tokens.items()) if expires(t) <= as_time(self.upper)]

    def in_order(self) -> list[Committed]:
        """Return the writes in the order of their times, which is the order to apply them in."""
        return sorted(self.writes.values(), key=lambda w: (w.time, w.shard, w.data))


def shard_record(shard: str, schema: str) -> bytes:
    """Return the record that ``shard`` takes part."""
    return _encode(["shard", shard, schema])


def token_record(token: str, time: int) -> bytes:
    """Return the record that ``token`` is committed at ``time``."""
    return _encode(["token", token, time])


def write_record(shard: str, time: int, n: int, staged: Staged) -> bytes:
    """Return the record of the n-th batch that is committed to ``shard`` at ``time``."""
    return _encode(["write", shard, time, n, codec.pack_staged(staged)])


def expires(token: str) -> float:
    """Return the time at which a token expires; infinity if the token has no date.

    >>> expires("order-7@1700") == 1700 + TOKEN_LIFE_MS, expires("@5") == 5 + TOKEN_LIFE_MS
    (True, True)
    >>> expires("order-7"), expires("a@b")
    (inf, inf)
    """
    _, at, date = token.rpartition("@")
    return int(date) + TOKEN_LIFE_MS if at and date.isascii() and date.isdigit() else float("inf")


def too_late(token: str, upper: int) -> bool:
    """Tell whether a ledger up to ``upper`` may have forgotten a token that was used."""
    return expires(token) <= upper


def _put(entries: dict[Any, Any], key: Any, value: Any, count: int) -> None:
    if count > 0:
        entries[key] = value
    else:
        del entries[key]


_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[Any])


SHARD: Final = "transactions"
"""The log of the environment's tables."""
MULTI: Final = "multi"
"""The log of programs (`persist/together/multi.py`)."""
LOGS: Final = (SHARD, MULTI)
HOLD: Final = "transactions"
"""The critical reader of the transactions shard; the process that has the log open owns it."""
TIDY_EVERY: Final = 64
"""Expired tokens are withdrawn, and the log's past is released, once in this many versions."""
APPLY_RETRIES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class CommittedAt:
    """The transaction is durable at ``time``, by this call or (same token) an earlier one."""

    time: int


@dataclass(frozen=True, slots=True)
class TimeTaken:
    """Another transaction was faster: commit at ``upper`` or later.  The staged batches are still the caller's."""

    upper: int


CommitOutcome: TypeAlias = CommittedAt | TimeTaken
Writes: TypeAlias = Mapping[str, Sequence[Staged]]
"""Staged batches, by shard."""


class Draft(Protocol):
    """A transaction whose time is not decided yet."""

    @property
    def reads(self) -> bool:
        """Whether its writes depend on what the shards hold; then no other transaction may commit in between."""
        ...

    def time(self, upper: int) -> int:
        """Return the time to commit at: ``upper`` or later."""
        ...

    async def stage(self, time: int, upper: int) -> Writes:
        """Stage the writes for ``time``; the shards hold everything that is committed before ``upper``."""
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
        self._applied: set[bytes] = set()  # write records that this process applied and the log may still hold

    @property
    def upper(self) -> Frontier:
        """All transactions before this time are known."""
        return self._log.upper

    async def shards(self) -> Mapping[str, str]:
        """Return the registered shards and their schemas, as far as is known here."""
        _, known = await self._current()
        return known.shards

    async def register(self, shard: str, schema: str, *, merger: Merger | None = None) -> WriteHandle:
        """Register ``shard``, so that only transactions append to it and its upper follows the log's; idempotent.

        ``merger`` rewrites its parts in this process (see `PersistClient.writer`).  For shards that other processes
        registered, their schemas choose the merger.  A shard with another schema gets this one (`WriteHandle.evolve`).

        Raises `InvalidUsage` if what the shard holds could not be read under ``schema``, or it has another owner.
        """
        writer = await self._writer(shard, schema, merger)
        if writer.state.schema != schema:  # a merge by the schema of before would lose what the new columns hold
            await writer.evolve(schema)
        await self._log.refresh()  # another process may have unregistered it
        while True:
            state, known = await self._current()
            if known.shards.get(shard) == schema:
                break
            upper = _at(state.upper)
            records = [Record(shard_record(shard, schema), upper, 1)]
            if shard in known.shards:
                records.append(Record(shard_record(shard, known.shards[shard]), upper, -1))
            await self._append(state, records, upper + 1)
        await self.apply()
        return writer

    async def forget(self, shard: str) -> None:
        """Unregister ``shard``; idempotent.

        Everything committed to it is applied first.  From then on its upper stands still and commits to it are refused.
        """
        await self._log.refresh()  # another process may have registered it
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

    async def close_shard(self, shard: str, beyond: int = 0) -> None:
        """Unregister ``shard`` if it is registered, and close it for good; idempotent.

        ``beyond``: how far beyond this epoch it may have been written.  See `PersistClient.close_shard` for its effects
        and errors.
        """
        await self.forget(shard)
        await self._client.close_shard(shard, self._epoch + beyond)

    async def transact(self, draft: Draft, *, token: str | None) -> int:
        """Commit ``draft`` at a free time, trying later times while other transactions are faster; apply it.

        Staged batches are retimed for a later time; only a draft that reads is staged anew.  The same token again is
        the same commit.  Without a token the caller cannot ask again, and the log keeps none.  Raises what `commit` and
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
                        await _give_back(draft, writes)  # an earlier call committed it, with other batches
                case TimeTaken() if draft.reads:
                    await _give_back(draft, writes)
                    writes = None
        # It is durable: the next process to open the log applies it.
        with suppress(StoreError, Unavailable, FencedError):
            await self.apply()
        return done

    async def commit(self, time: int, writes: Writes, *, token: str | None, read: int | None = None) -> CommitOutcome:
        """Commit batches staged for exactly ``[time, time + 1)`` to their shards, all or none, durably.

        ``read``: the upper at which the transaction read the data that it changes.  If anything was committed since,
        the commit is refused (`TimeTaken`), and the transaction must read again.

        Raises:
            InvalidUsage: a shard is not registered; a batch is staged for another time, or so long ago that a sweep may
                have deleted its parts as leaked; or ``token`` has expired, so that the log no longer shows whether it
                was committed.
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
            state, known = await self._current()  # one version decides the answer, whatever is committed meanwhile
            upper = _at(state.upper)
            if token is not None and token in known.tokens:
                return CommittedAt(known.tokens[token])
            if token is not None and too_late(token, upper):
                raise InvalidUsage(
                    f"token {token!r} comes too late: tokens are kept for {TOKEN_LIFE_MS // 60_000} minutes, so "
                    "whether it was committed is no longer known; look, and use a new token"
                )
            if upper > time or read not in (None, upper):
                return TimeTaken(upper)
            if missing := sorted(writes.keys() - known.shards.keys()):
                if fresh:
                    raise InvalidUsage(
                        f"shard {missing[0]!r} is not registered with the transactions; register it first"
                    )
                await self._log.refresh()  # another process may have registered it
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
        """Seal all registered shards through ``time``: no transaction can commit at or before it from then on.

        Raises `FencedError` if a newer epoch has taken over, also where that one has sealed it already.
        """
        while _at((state := self._log.state).upper) <= time:
            await self._append(state, [], time + 1)
        self._log.refuse_fenced()
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
        """Return the ledger at ``state``; None if its batches were merged and collected during the read."""
        try:
            return await self._known(state)
        except CorruptionError:
            await self._log.refresh()
            if {*state.parts} <= {*self._log.state.parts}:
                raise
            return None

    async def _known(self, state: ShardState) -> Ledger:
        """Return the ledger at ``state``; each appended batch is read once."""
        past = self._ledger
        if state.upper == past.upper:
            return past
        lowers = [batch.lower for batch in state.batches if batch.parts and not batch.upper <= past.upper]
        if not past.upper <= state.upper or not all(past.upper <= lower for lower in lowers):
            past = Ledger()  # this state is older, or compaction has merged old and new batches
        known = past.after(await self._log.contents(state, after=past.upper), state.upper)
        self._learn(known)
        return known

    def _learn(self, known: Ledger) -> None:
        if self._ledger.upper < known.upper:
            self._ledger = known

    async def _append(
        self, state: ShardState, records: Sequence[Record], new: int, *, begun_ms: int | None = None
    ) -> bool:
        """Append to the log as it is in ``state``, and tidy; return False if another append was faster.

        Raises `InvalidUsage` if parts that ``records`` name were begun (``begun_ms``) before the mark of a sweep.  This
        must be refused here: a committed write that can never be applied would block all later ones.
        """
        known = await self._read(state)
        if known is None:
            return False
        self._applied &= known.writes.keys()  # the rest is withdrawn already
        withdrawn = frozenset(self._applied)
        due = state.seqno >= self._tidied_at + TIDY_EVERY
        expired = known.expired() if due else []
        fresh = [*records, *(Record(data, _at(state.upper), -1) for data in (*sorted(withdrawn), *expired))]
        match await self._log.append(fresh, state.upper, Frontier(new), begun_ms=begun_ms):
            case Appended():
                self._learn(known.after(fresh, Frontier(new)))
                self._applied -= withdrawn
                if due:
                    await self._release_past()
                return True
            case UpperMismatch():
                return False
            case Fenced() as outcome:
                raise fenced(self._log.shard, outcome, self._epoch)

    async def _release_past(self) -> None:
        """Release the log's past, so that compaction can drop what cancels; a failure does no harm."""
        state = self._log.state
        self._tidied_at = state.seqno
        with suppress(StoreError, Unavailable, FencedError):  # the append is durable in any case
            await self._hold.downgrade(Frontier(_at(state.upper) - 1))

    # ---- the data shards ---------------------------------------------------------------------------------------------

    async def _writer(self, shard: str, schema: str, merger: Merger | None = None) -> WriteHandle:
        """Return the writer of a shard, which has ``schema``, or another one if that is changed just now."""
        if shard not in self._writers or merger is not None:
            opened = partial(self._client.writer, shard, self._epoch, owner=self._log.shard, merger=merger)
            try:
                self._writers[shard] = await opened(schema=schema)
            except InvalidUsage:
                state = self._client.known(shard)
                if state is None or state.schema == schema or state.owner != self._log.shard:
                    raise
                self._writers[shard] = await opened(schema=state.schema)
        return self._writers[shard]

    async def _apply(self, writer: WriteHandle, time: int, staged: Sequence[Staged]) -> None:
        shard = writer.shard
        for _ in range(APPLY_RETRIES_MAX):
            upper = writer.state.upper
            if not upper <= Frontier(time):
                return  # already applied: only applying moves this upper beyond the time
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
    """Open a transactions log of a location for writing, and apply all that is committed in it."""
    records = await client.records(log, epoch)
    transactions = Transactions(records, await client.since(log, HOLD, epoch), client, epoch)
    await transactions.apply()
    return transactions


def _at(frontier: Frontier) -> int:
    assert frontier.at is not None, "the transactions shard is never closed"
    return frontier.at


async def _give_back(draft: Draft, writes: Writes) -> None:
    with suppress(StoreError, Unavailable):  # nothing names what stays behind: a sweep deletes it
        await draft.discard(writes)


def _retimed(writes: Writes, time: int) -> Writes:
    bounds = (Frontier(time), Frontier(time + 1))
    return {shard: [retimed(staged, *bounds) for staged in batches] for shard, batches in writes.items()}
