"""Bugs that are planted in leases, compaction, garbage collection and bytes at rest, to prove that they are seen.

Trap: as `planted.bugs`: these know private names on purpose; when one goes, its bug must be planted anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from laws import places
from planted.bugs import bug
from strandline.errors import CorruptionError, Indeterminate, StoreError, Unavailable
from strandline.frontier import Frontier, join, meet
from strandline.persist.handles import read, records, register
from strandline.persist.handles.read import Lease
from strandline.persist.handles.records import Record, RecordMerger, consolidate
from strandline.persist.shard import codec, holds, machine, state
from strandline.persist.shard.batch import BlobPart, named_time, rollups_prefix
from strandline.persist.shard.machine import Machine, Upkeep
from strandline.persist.shard.state import Downgraded, Rollup, ShardState
from strandline.persist.shard.trace import Merged
from strandline.persist.upkeep import collect
from strandline.persist.upkeep.collect import Collector
from strandline.persist.upkeep.compact import Compactor
from strandline.store import seal
from strandline.store.seal import SEAL_BYTES
from worlds import rows

# ---- leases ----------------------------------------------------------------------------------------------------------


@bug("since looks at critical readers alone", (state, "since_of"), (holds, "since_of"))
def lease_overlooked(now: ShardState) -> Frontier:
    """Forget the leased ones."""
    return join((now.since, meet(hold.since for hold in now.criticals.values())))


@bug("a beat of a reader whose lease was lost succeeds", (read, "downgrade_leased"))
def lost_lease_kept(before: ShardState, reader: str, since: Frontier, *others: Any) -> Any:
    """Believe in the hold."""
    after, answer = holds.downgrade_leased(before, reader, since, *others)
    return after, Downgraded(since) if answer is None else answer


@bug("a beat releases versions whose parts are still being read", (Lease, "downgrade"))
async def version_let_go(self: Lease, since: Frontier, *deadline: Any) -> Frontier:
    """Hold the newest version, whatever was handed out."""
    out, self._out = self._out, Counter()
    try:
        return await _downgrade(self, since, *deadline)
    finally:
        self._out = out


_downgrade = Lease.downgrade


# ---- compaction ------------------------------------------------------------------------------------------------------


async def _merge_again(self: RecordMerger, contents: Any, request: Any, when: Callable[[int, int], int]) -> Any:
    """Merge, giving each update the time ``when(time, since)``."""
    found: list[Record] = []
    for batch in contents.batches:
        found += await records.read_records(self._blob, contents.shard, batch.parts)
    wrong = consolidate(Record(r.data, when(r.time, contents.advance), r.diff) for r in found)
    parts = await records.write_records(self._blob, wrong, request.prefix, inline_bytes_max=request.inline_bytes_max)
    true = await _merge(self, contents, replace(request, prefix=f"{request.prefix}true/", inline_bytes_max=1 << 20))
    diffs = sum(r.diff for r in wrong)
    return replace(true, parts=parts, rows=len(wrong), diffs=diffs, plain=all(r.diff == 1 for r in wrong))


_merge = RecordMerger.merge


@bug("a merge moves times one too far", (RecordMerger, "merge"))
async def merge_one_too_far(self: RecordMerger, contents: Any, request: Any) -> Any:
    """Take since for the first time that stays separate from others."""
    return await _merge_again(self, contents, request, lambda time, since: max(time, since + 1))


@bug("a merge moves later times back to since", (RecordMerger, "merge"))
async def merge_to_the_wrong_time(self: RecordMerger, contents: Any, request: Any) -> Any:
    """Advance everything to one representative."""
    return await _merge_again(self, contents, request, lambda _, since: since)


@bug("what a merge wrote is deleted when its commit had an unknown outcome", (Compactor, "_rewritten"))
async def output_deleted_after_unknown(self: Compactor, plan: Any) -> Any:
    """Clean up too early."""
    output = await _rewritten(self, plan)
    commit = self._machine.commit

    async def commit_and_tidy(command: Any, **options: Any) -> Any:
        del self._machine.commit  # type: ignore[attr-defined]
        try:
            return await commit(command, **options)
        except Indeterminate:
            await self._discard(output)
            raise

    self._machine.commit = commit_and_tidy  # type: ignore[method-assign]
    return output


_rewritten = Compactor._rewritten


@bug("what a merge has taken the place of is deleted at once", (Compactor, "carry_out"))
async def inputs_deleted_at_once(self: Compactor, plan: Any) -> Any:
    """Look at no hold."""
    outcome = await _carry_out(self, plan)
    if isinstance(outcome, Merged):
        for batch in plan.inputs:
            for part in batch.parts:
                if isinstance(part, BlobPart):
                    await self._blob.delete(part.key)
    return outcome


_carry_out = Compactor.carry_out


@bug("a failure after a commit is raised to the committer", (Upkeep, "_try"))
async def upkeep_told(self: Upkeep, name: str, job: Any) -> None:
    """Keep only what the stores say to yourself."""
    with suppress(StoreError, Unavailable):
        await job()


# ---- garbage ---------------------------------------------------------------------------------------------------------


@bug("garbage is collected whatever readers hold", (collect, "seqno_held"))
def collected_under_readers(now: ShardState) -> int:
    """Take the newest version for the oldest that is held."""
    return now.seqno


@bug("a part that dead versions name counts as dead, even if a live version names it", (Collector, "_dead"))
async def dead_though_alive(self: Collector, kept: Rollup) -> Any:
    """Do not subtract what is alive."""
    dead = await _dead(self, kept)
    alive = [part.key for batch in self._machine.state.batches for part in batch.parts if isinstance(part, BlobPart)]
    return replace(dead, parts=(*dead.parts, *alive[:1]))


@bug("versions are forgotten, and what they named is not deleted", (Collector, "_dead"))
async def parts_forgotten(self: Collector, kept: Rollup) -> Any:
    """Delete nothing."""
    return replace(await _dead(self, kept), parts=())


_dead = Collector._dead


@bug("history is truncated to the newest version, not to a rollup", (Collector, "_collect"))
async def truncated_beyond_rollup(self: Collector, to: int | None) -> Any:
    """Keep the head alone."""
    done = await _collect(self, to)
    await self._consensus.truncate(self._machine.shard, self._machine.state.seqno)
    return done


_collect = Collector._collect


@bug("a sweep takes for leaked what a writer is about to append", (Collector, "_leaked"))
async def swept_too_young(self: Collector, held: Any = None) -> Any:
    """Look at no age."""
    keys, mark = await _leaked(self, held)
    named = await self.named()
    listed = await self._blob.list(collect.parts_prefix(self._machine.shard))
    return sorted({*keys, *(key for key in listed if key not in named)}), mark


_leaked = Collector._leaked


# ---- bytes at rest ---------------------------------------------------------------------------------------------------


@bug("a diff does not say what was removed", (codec, "difference"))
def removal_forgotten(before: ShardState, after: ShardState) -> Any:
    """Leave dropped readers and rollups where others will find them."""
    return replace(_difference(before, after), removed=())


_difference = codec.difference


@bug("the newest rollup is found by listing", (Machine, "_load_from"))
async def listing_trusted(self: Machine, head: Any) -> Any:
    """Believe that what is not listed is not there, and what is listed is named."""
    prefix = rollups_prefix(self.shard)
    listed = {named_time(prefix, key): key for key in await self._blob.list(prefix)}
    if not listed:
        return "any rollup"
    data = await self._blob.get(listed[max(listed)])
    if data is None:
        return "the newest rollup"
    now = codec.restore(self.shard, *codec.decode_rollup(self.shard, listed[max(listed)], data))
    while now.seqno < head.seqno:
        versions = await self._consensus.scan(self.shard, now.seqno + 1, machine.SCAN_LIMIT)
        if not versions or versions[0].seqno != now.seqno + 1:
            raise CorruptionError(f"version {now.seqno + 1} of {self.shard} is missing")
        now = self._replay(now, versions)
    return now


@bug("rollups of one seqno have one name, even by two writers", (Machine, "_rollup_key"))
def key_reborn(self: Machine, seqno: int) -> str:
    """Give a name twice."""
    return f"{rollups_prefix(self.shard)}{seqno}-r"


@bug("a clock decides the order: walltime is what the committer's clock says", (Machine, "prepare"))
def clock_trusted(self: Machine, before: ShardState, after: ShardState) -> Any:
    """Let time go back."""
    with_clock = replace(before, walltime_ms=min(before.walltime_ms, self._clock.now_ms()))
    return _prepare(self, with_clock, replace(after, walltime_ms=with_clock.walltime_ms))


_prepare = Machine.prepare

UNSEALED = ((codec, "unseal"), (records, "unseal"), (register, "unseal"), (rows, "unseal"), (places, "unseal"))


@bug("the checksum of what is read is not compared", *UNSEALED)
def crc_skipped(_: Any, __: str, data: bytes) -> bytes:
    """Cut the seal off."""
    return data[SEAL_BYTES:]


@bug("another object's bytes are accepted: the seal's key is not compared", *UNSEALED)
def misdirected_accepted(kind: Any, key: str, data: bytes) -> bytes:
    """Compare the checksum alone."""
    try:
        return seal.unseal(kind, key, data)
    except CorruptionError as error:
        if "the hash of this key" in str(error) or "expected kind" in str(error):
            return data[SEAL_BYTES:]
        raise
