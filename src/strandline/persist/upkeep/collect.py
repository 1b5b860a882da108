"""Garbage collection of one shard: delete what no living version names, then forget the dead versions.

A version is *alive* from the newest rollup on that is not newer than any version held by a leased reader.  In order:

1. The rollups before that one are dropped from the state: one commit, if there are any.
2. The parts that only dead versions name are deleted.  If readers without holds are allowed (`grace_ms`), the parts
   are listed in a *doomed* object instead, which says when they may be deleted.
3. The dropped rollups are deleted, the oldest last: an interrupted collection needs it to find what the dead versions
   named.
4. Consensus is truncated to the rollup that was kept.  This is the commit of the collection.

A crash at any point only repeats deletes.  Stale, repeated or concurrent requests find less to do and harm nothing: no
key is used twice, and a key that no version names is never named again.

`Collector.sweep` deletes what was leaked, `retire` drops a shard, and `inspect` describes one to operators.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias, TypeVar

import msgspec
from msgspec.structs import replace

from strandline.errors import CorruptionError, InvalidUsage
from strandline.frontier import EMPTY, Frontier
from strandline.persist.shard import codec
from strandline.persist.shard.batch import (
    BlobPart,
    KeyRange,
    Part,
    doomed_prefix,
    named_time,
    parts_prefix,
    rollups_prefix,
)
from strandline.persist.shard.holds import LEASE_MS, expire_overdue, release_past, seqno_held
from strandline.persist.shard.machine import SCAN_LIMIT, Command, Machine
from strandline.persist.shard.state import (
    Append,
    Critical,
    Fenced,
    Rollup,
    ShardState,
    append,
    drop_rollups,
    finalize,
    mark_swept,
    since_of,
)
from strandline.store.clock import Clock, Ids
from strandline.store.protocols import Blob, Consensus, Versioned
from strandline.store.seal import Kind, seal, unseal

DELETION_GRACE_MS: Final = 24 * 60 * 60 * 1000
"""How long parts outlive the last version that names them, so that readers without holds can finish."""
LEAKED_AFTER_MS: Final = 24 * 60 * 60 * 1000
"""A part that nothing names counts as leaked from this age on: no stage-and-append takes that long."""
assert LEAKED_AFTER_MS > LEASE_MS

ROLLUPS_ENOUGH: Final = 3
"""A collection is due from this many rollups on: it costs a version, and reads all living versions."""
NAMED_HERE_ALONE: Final = frozenset({"", "records"})
"""The owners whose parts nothing but the shard itself ever names."""

T = TypeVar("T")
Held: TypeAlias = Callable[[int], Awaitable[Collection[str]]]
"""Prevents other durable objects from naming parts begun before this time (ms); returns the parts they name now."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[str]).decode


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did: objects deleted (``doomed``: put on a list), rollups dropped, versions forgotten."""

    parts: int = 0
    doomed: int = 0
    rollups: int = 0
    versions: int = 0

    @property
    def nothing(self) -> bool:
        """Whether there was nothing to do."""
        return self == Collected()


class Dead(msgspec.Struct, frozen=True):
    """What only versions before ``kept`` name; ``versions`` counts those versions that are still in Consensus."""

    kept: Rollup
    parts: tuple[str, ...] = ()
    rollups: tuple[Rollup, ...] = ()
    versions: int = 0


class Collector:
    """Collects one shard's garbage.  ``grace_ms`` 0: every reader has a hold.

    A shard that was closed and given up (`holds.given_up`) is emptied once no lease is left on it: then all its parts
    are deleted.
    """

    def __init__(
        self, machine: Machine, clock: Clock, ids: Ids, blob: Blob, consensus: Consensus, grace_ms: int
    ) -> None:
        self._machine = machine
        self._clock = clock
        self._ids = ids
        self._blob = blob
        self._consensus = consensus
        self._grace_ms = grace_ms
        self._begun = False  # a collection of `keep_up` that has not come to its end

    async def keep_up(self) -> bool:
        """Collect, if new rollups have made that worth while, or the last time came to no end.

        Raises what the stores raise, and `CorruptionError`.
        """
        if not self._begun and len(self._machine.state.rollups) < ROLLUPS_ENOUGH:
            return False
        self._begun = True
        await self._collect(None)
        self._begun = False
        return True

    async def collect(self, to: int | None = None) -> Collected:
        """Collect everything before version ``to`` (default: all that is dead).

        Raises what the stores raise: then part of the work is left for the next collection.
        """
        await self._machine.refresh()
        return await self._collect(to)

    async def survey(self, to: int | None = None) -> Dead | None:
        """Return what `collect` would delete, and change nothing; None if no rollup is old enough."""
        kept = _kept(await self._machine.refresh(), to)
        return None if kept is None else await self._dead(kept)

    async def _collect(self, to: int | None) -> Collected:
        await self._change(expire_overdue)
        if tombstone := await self._change(partial(release_past, now_ms=self._clock.now_ms())):
            await self._empty()
        kept = _kept(self._machine.state, to)
        if kept is None:
            return Collected()
        dropped = await self._change(partial(drop_rollups, before=kept.seqno))
        dead = await self._dead(kept)
        parts = sorted({*dead.parts, *(await self._unnamed() if tombstone else ())})
        deleted, doomed = await self._let_go(parts)
        gone = {rollup.seqno: rollup for rollup in (*dead.rollups, *dropped)}
        for seqno in sorted(gone, reverse=True):
            await self._blob.delete(gone[seqno].key)
        versions = await self._consensus.truncate(self._machine.shard, kept.seqno) if dead.versions else 0
        deleted += await self._delete_doomed()
        done = Collected(deleted, doomed, len(dropped), versions)
        self._machine.metrics.gc_runs += not done.nothing
        return done

    async def preview(self) -> Collected:
        """Return what `collect` would do now, and change nothing; overdue leases count as held."""
        dead = await self.survey()
        _, tombstone = release_past(self._machine.state, self._clock.now_ms())
        due = sum([len(await self._doomed(key)) for key in await self._due()])
        if dead is None:
            return Collected()
        parts = len({*dead.parts, *(await self._unnamed() if tombstone else ())})
        deleted, doomed = (due, parts) if self._grace_ms else (due + parts, 0)
        return Collected(deleted, doomed, len(dead.rollups), dead.versions)

    async def _change(self, command: Command[T]) -> T:
        """Commit ``command``, unless it changes nothing in the newest state known here."""
        after, answer = command(self._machine.state)
        return answer if after is self._machine.state else await self._machine.commit(command)

    async def finalize(self) -> int:
        """Delete all that a shard holds, once no process can read or write it; count the parts.  Idempotent.

        Raises `InvalidUsage` unless its since and its upper are both empty.
        """
        await self._machine.refresh()
        await self._empty()
        done = await self._collect(None)
        return done.parts + done.doomed

    async def _empty(self) -> None:
        """Empty the shard's state and roll it up, so that older versions and their inline parts can be deleted."""
        before = self._machine.state
        await self._machine.commit(finalize)
        if self._machine.state is not before:
            await self._machine.roll_up()

    async def _unnamed(self) -> set[str]:
        """Return the parts of a shard that takes no appends, except those on a list of doomed objects."""
        doomed = [await self._doomed(key) for key in await self._blob.list(doomed_prefix(self._machine.shard))]
        return set(await self._blob.list(parts_prefix(self._machine.shard))).difference(*doomed)

    async def sweep(self, held: Held | None = None) -> list[str]:
        """Delete objects that were leaked long ago, and return their keys.

        A part may have leaked just now, if the rollup that showed which versions named it is damaged: so with
        `grace_ms`, parts are put on a list, and the first collection after that time deletes them.

        Once the mark is chosen, this calls ``held`` for the parts that other durable objects name, such as a
        transaction that is committed and not applied (`fsck.held_by_transactions`).

        What leaked are parts that were written and never appended.  The sweep lists objects before it reads the state,
        and it first commits a mark: parts begun before the mark can never be appended from then on, so it deletes no
        part that an append still needs.  Parts that a transaction has committed and not yet appended hold the mark
        back.  The mark is also committed to the transaction logs, so no transaction can commit a part begun before it
        from then on.

        Raises `InvalidUsage` if the shard has an owner, and ``held`` is not given.
        """
        keys, mark = await self._leaked(held)
        if any(key.startswith(parts_prefix(self._machine.shard)) for key in keys):
            await self._machine.commit(partial(mark_swept, before_ms=mark))
        named = await self.named()  # an append that came before the mark is visible by now
        leaked = [key for key in keys if key not in named]
        prefix = parts_prefix(self._machine.shard)
        await self._let_go([key for key in leaked if key.startswith(prefix)])
        await self._delete(key for key in leaked if not key.startswith(prefix))
        return leaked

    async def leaked(self, held: Collection[str] | None = None) -> list[str]:
        """Return, for people, what `sweep` would delete if nothing but ``held`` were named elsewhere."""

        async def known(_mark_ms: int) -> Collection[str]:
            return held or ()

        keys, _ = await self._leaked(None if held is None else known)
        return keys

    async def _leaked(self, held: Held | None) -> tuple[list[str], int]:
        """Return the objects that nothing names or will name, and the mark before which their parts were begun."""
        shard = self._machine.shard
        listed = [key for find in (parts_prefix, rollups_prefix) for key in await self._blob.list(find(shard))]
        state = await self._machine.refresh()
        if held is None and state.owner not in NAMED_HERE_ALONE:
            raise InvalidUsage(f"shard {shard!r} belongs to {state.owner!r}: say which parts that holds")
        mark = max(state.swept_ms, state.walltime_ms - LEAKED_AFTER_MS)
        elsewhere = await held(mark) if held is not None else ()
        # The mark stays before the parts that are held: they are appended later, however old they are by then.
        dates = (named_time(parts_prefix(shard), key) for key in elsewhere)
        mark = min([mark, *(ms for ms in dates if ms is not None)])
        named = await self.named() | frozenset(elsewhere)
        newest = state.rollups[-1].seqno
        found = []
        for key in listed:
            begun, seqno = named_time(parts_prefix(shard), key), named_time(rollups_prefix(shard), key)
            # The state never accepts a rollup that is not newer than its newest.
            old = (begun is not None and begun < mark) or (seqno is not None and seqno <= newest)
            if old and key not in named:
                found.append(key)
        return found, mark

    # ---- what is dead ------------------------------------------------------------------------------------------------

    async def _dead(self, kept: Rollup) -> Dead:
        versions = await self.versions()
        diffs = [codec.decode_diff(self._machine.shard, v.seqno, v.data) for v in versions]
        if not diffs or diffs[0].seqno >= kept.seqno:
            return Dead(kept)
        named = {diff.rollup.seqno: diff.rollup for diff in diffs}
        rollups = tuple(sorted((r for seqno, r in named.items() if seqno < kept.seqno), key=lambda r: r.seqno))
        count = kept.seqno - diffs[0].seqno
        base = await self._first_state(rollups)
        if base is None:
            # An earlier collection already deleted the rollup that these versions start from.
            return Dead(kept, (), rollups, count)
        dead = [diff for diff in diffs if base.seqno < diff.seqno <= kept.seqno]
        alive = [diff for diff in diffs if diff.seqno > kept.seqno]
        seen = set(_keys(base.parts)).union(*(_keys(codec.parts_set(diff)) for diff in dead))
        still = set(_keys(codec.apply(base, dead).parts)).union(*(_keys(codec.parts_set(diff)) for diff in alive))
        return Dead(kept, tuple(sorted(seen - still)), rollups, count)

    async def _first_state(self, rollups: Iterable[Rollup]) -> ShardState | None:
        """Return the state at the oldest rollup that is still in Blob; what older ones named is deleted already.

        A damaged rollup is skipped, so that it does not keep everything after it for ever; a sweep finds what only it
        named.
        """
        for rollup in rollups:
            with suppress(CorruptionError):
                state = await self._state_at(rollup)
                if state is not None:
                    return state
        return None

    async def _state_at(self, rollup: Rollup | None) -> ShardState | None:
        data = None if rollup is None else await self._blob.get(rollup.key)
        if rollup is None or data is None:
            return None
        return codec.restore(self._machine.shard, *codec.decode_rollup(self._machine.shard, rollup.key, data))

    async def named(self) -> frozenset[str]:
        """Return every object that a living version, or a doomed list, names."""
        versions = await self.versions()
        diffs = [codec.decode_diff(self._machine.shard, v.seqno, v.data) for v in versions]
        found = {key for diff in diffs for key in _keys(codec.parts_set(diff))}
        found |= {diff.rollup.key for diff in diffs} | {rollup.key for rollup in self._machine.state.rollups}
        begin = next((diff.rollup for diff in diffs if diff.rollup.seqno == diffs[0].seqno), diffs[0].rollup)
        base = await self._state_at(begin)
        found |= set(_keys(base.parts)) if base is not None else set()
        found |= set(_keys(self._machine.state.parts))
        for key in await self._blob.list(doomed_prefix(self._machine.shard)):
            found |= set(await self._doomed(key))
        return frozenset(found)

    async def versions(self) -> list[Versioned]:
        """Return the versions that are in Consensus, oldest first."""
        found: list[Versioned] = []
        while True:
            start = found[-1].seqno + 1 if found else 0
            some = await self._consensus.scan(self._machine.shard, start, SCAN_LIMIT)
            found += some
            if len(some) < SCAN_LIMIT:
                return found

    # ---- deleting ----------------------------------------------------------------------------------------------------

    async def _let_go(self, parts: Sequence[str]) -> tuple[int, int]:
        """Delete parts, or put them on a list while a reader without a hold may need them; count both."""
        if self._grace_ms and parts:
            return 0, await self._doom(parts)
        return await self._delete(parts), 0

    async def _delete(self, keys: Iterable[str]) -> int:
        count = sum([await self._blob.delete(key) for key in keys])
        self._machine.metrics.parts_deleted += count
        return count

    async def _doom(self, keys: Sequence[str]) -> int:
        due = max(self._machine.state.walltime_ms, self._clock.now_ms()) + self._grace_ms
        key = f"{doomed_prefix(self._machine.shard)}{due}-{self._ids.fresh('d')}"
        await self._blob.set(key, seal(Kind.DOOMED, key, _encode(keys)))
        return len(keys)

    async def _delete_doomed(self) -> int:
        count = 0
        for key in await self._due():
            count += await self._delete(await self._doomed(key))
            await self._blob.delete(key)
        return count

    async def _due(self) -> list[str]:
        """Return the lists of doomed objects whose time has come."""
        prefix, now = doomed_prefix(self._machine.shard), self._clock.now_ms()
        dated = ((named_time(prefix, key), key) for key in await self._blob.list(prefix))
        return [key for due, key in dated if due is not None and due <= now]

    async def _doomed(self, key: str) -> list[str]:
        data = await self._blob.get(key)
        return [] if data is None else _decode(unseal(Kind.DOOMED, key, data))


def _kept(state: ShardState, to: int | None) -> Rollup | None:
    """Return the newest rollup that is neither after ``to`` nor after a version that a reader holds."""
    bound = min(seqno_held(state), state.seqno if to is None else to)
    return next((rollup for rollup in reversed(state.rollups) if rollup.seqno <= bound), None)


def _keys(parts: Iterable[Part]) -> Iterable[str]:
    for part in parts:
        if isinstance(part, BlobPart):
            yield part.key
            if part.sidecar:
                yield part.sidecar


DROPPED: Final = "dropped"
"""The critical reader that a dropped shard gets, so that it counts as given up even if it had no other."""


def retire(state: ShardState, epoch: int, token: str) -> tuple[ShardState, Fenced | None]:
    """Close the shard, and move every critical hold to the end; None once that is done.

    A lease keeps what it holds.  Once no lease is left, `holds.release_past` moves since to the end, and the collector
    empties the shard.

    Trap: this does not check for other writers.  A shard registered with a transactions log must be forgotten there
    first, and a stream must be dropped by its client (`StreamClient.drop`), which seals what was written.
    """
    if epoch < state.epoch:
        return state, Fenced(state.epoch)
    assert not state.unsealed, f"shard {state.shard!r} is a stream: its client drops it"
    if state.tombstone or (state.upper.empty and DROPPED in state.criticals):
        return state, None
    after = state
    if not state.upper.empty:
        after, _ = append(state, Append(DROPPED, token, epoch, (), state.upper, EMPTY, state.owner))
    held = {reader: Critical(EMPTY, hold.opaque) for reader, hold in state.criticals.items()}
    after = replace(after, criticals={**held, DROPPED: Critical(EMPTY, epoch)})
    return replace(after, since=since_of(after)), None


@dataclass(frozen=True, slots=True)
class BatchSummary:
    """One batch of the trace.  ``sort``: as `Batch`; ``keys``: the bounds of its parts that have them, in order."""

    lower: Frontier
    upper: Frontier
    since: Frontier
    rows: int
    diffs: int
    errors: int
    parts: int
    inline_bytes: int
    blob_bytes: int
    sort: tuple[str, ...]
    keys: tuple[tuple[int | str | None, int | str | None], ...]


@dataclass(frozen=True, slots=True)
class Holder:
    """A reader whose hold since cannot pass.  ``seqno``, ``lease_left_ms``: None for a critical reader."""

    name: str
    since: Frontier
    opaque: int | None = None
    seqno: int | None = None
    lease_left_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Bytes:
    """Objects and bytes in Blob, by whether a version names them; ``inline``: bytes kept in the state itself.

    Bytes are *live* (the newest version names them), *held* (only older living versions or a list of doomed objects
    name them), or *leaked* (nothing names them, and nothing will).
    """

    inline: int
    live: int
    held_objects: int
    leaked_objects: int
    leaked: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """A shard at its newest version.  ``holders``: the one that holds since back comes first."""

    state: ShardState
    batches: tuple[BatchSummary, ...]
    holders: tuple[Holder, ...]
    versions: int
    bytes: Bytes


async def inspect(machine: Machine, collector: Collector, blob: Blob, held: Collection[str] = ()) -> Inspection:
    """Inspect a shard that is open.  ``held``: parts that other durable objects name (`Collector.leaked`)."""
    leaked = await collector.leaked(held)  # lists before it reads the state
    state = machine.state
    alive = await collector.named()
    live = {part.key: part.size for part in state.parts if isinstance(part, BlobPart)}
    others = {part.sidecar for part in state.parts if isinstance(part, BlobPart)} | {r.key for r in state.rollups}
    sizes = [len(await blob.get(key) or b"") for key in leaked]
    return Inspection(
        state,
        tuple(_summary(state)),
        tuple(_holders(state)),
        len(await collector.versions()),
        Bytes(state.inline_bytes, sum(live.values()), len(alive - live.keys() - others), len(leaked), sum(sizes)),
    )


def _summary(state: ShardState) -> list[BatchSummary]:
    return [
        BatchSummary(
            batch.lower,
            batch.upper,
            batch.since,
            batch.rows,
            batch.diffs,
            batch.errors,
            len(batch.parts),
            batch.inline_bytes,
            sum(part.size for part in batch.parts if isinstance(part, BlobPart)),
            batch.sort,
            tuple((keys.least, keys.greatest) for part in batch.parts if (keys := _key_range(part)) is not None),
        )
        for batch in state.batches
    ]


def _key_range(part: Part) -> KeyRange | None:
    return part.keys if isinstance(part, BlobPart) else None


def _holders(state: ShardState) -> list[Holder]:
    found = [Holder(name, held.since, opaque=held.opaque) for name, held in state.criticals.items()]
    for name, lease in state.leased.items():
        left = max(0, lease.beat_ms + LEASE_MS - state.walltime_ms)
        found.append(Holder(name, lease.since, seqno=lease.seqno, lease_left_ms=left))
    return sorted(found, key=lambda holder: (holder.since.empty, holder.since.at or 0, holder.name))
