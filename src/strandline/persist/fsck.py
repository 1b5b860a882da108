"""Check a location: is each named object present and undamaged, and which objects does nothing name?

`check_shard` reads every byte of a shard: all living versions and their rollups (sealed, and following from each
other), the laws of the newest state, every part (checksums, rows, the sum of diffs).  `check_location` does so for all
shards, for batches that transactions have committed and not applied yet, and finds objects that belong to no shard.
Both only read, and writers may continue meanwhile.  `Findings` say what is wrong.  `Collector.sweep` removes leaked
objects.  Damaged or missing objects must be restored from a backup, or computed anew by their dataflow or source.

Trap: a part that is being staged is no leak; only a part older than any append in flight (`collect.LEAKED_AFTER_MS`)
counts as one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, unique
from typing import Final

from msgspec.structs import replace

from strandline.errors import CorruptionError, DefinitionError
from strandline.frontier import EMPTY, TIME_MAX, Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Contents, Half, Merger
from strandline.persist.handles.location import KEY as LOCATION
from strandline.persist.handles.records import read_records
from strandline.persist.shard import codec
from strandline.persist.shard.batch import Batch, BlobPart, as_batch, shard_prefix
from strandline.persist.shard.evolution import parse_schema
from strandline.persist.shard.invariants import check
from strandline.persist.shard.state import FIRST_SEQNO, ShardState
from strandline.persist.together.transactions import LOGS, Committed, Ledger
from strandline.persist.upkeep.compact import UNNAMED
from strandline.store.protocols import Consensus
from strandline.store.seal import Kind, unseal, version_key

_FIRST_ROLLUP: Final = f"/rollup/{FIRST_SEQNO}-"
"""A shard's first rollup is written before the shard exists, so a stray one may belong to a shard being created."""


@unique
class Fault(Enum):
    """What is wrong with an object."""

    DANGLING = "named, and not there"
    DAMAGED = "not as it was written"
    UNLAWFUL = "a state that breaks a law"
    LEAKED = "there, and named by nothing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One object that is not as it should be.  ``what`` is a sentence for people."""

    fault: Fault
    shard: str
    key: str
    what: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What a check found, and how much it looked at."""

    found: tuple[Finding, ...] = ()
    shards: int = 0
    parts: int = 0
    bytes: int = 0

    def __add__(self, other: Findings) -> Findings:
        return Findings(
            self.found + other.found,
            self.shards + other.shards,
            self.parts + other.parts,
            self.bytes + other.bytes,
        )

    @property
    def harmful(self) -> tuple[Finding, ...]:
        """The findings that can make a read fail: all but leaks."""
        return tuple(finding for finding in self.found if finding.fault is not Fault.LEAKED)


async def check_location(client: PersistClient, merger: Merger | None = None) -> Findings:
    """Check every shard, and find objects of no shard.  ``merger`` reads parts of rows (as in `PersistClient`)."""
    everything = await client.blob.list("")
    shards = await shards_of(client.consensus)
    findings = Findings()
    writes: Sequence[Committed] = ()
    try:
        writes = await _committed(client, [log for log in LOGS if log in shards])
        held = _parts_of(writes)
    except CorruptionError:
        held = frozenset(everything)  # the log is unreadable, so any object may be held: report none as leaked
    for shard in shards:
        findings += await check_shard(client, shard, merger, held=held)
    for write in writes:
        findings += await _check_unapplied(client, write, merger)
    # Listed again: a shard may have been created since the check began.
    known = tuple(shard_prefix(shard) for shard in await shards_of(client.consensus))
    strays = [k for k in everything if not k.startswith(known) and _FIRST_ROLLUP not in k and k != LOCATION]
    return findings + Findings(tuple(Finding(Fault.LEAKED, "", key, f"{key} belongs to no shard") for key in strays))


async def check_shard(
    client: PersistClient, shard: str, merger: Merger | None = None, *, held: Collection[str] = frozenset()
) -> Findings:
    """Check one shard, which exists.  ``held``: parts that something else durable names."""
    try:
        compactor, collector = await client.compactor(shard, merger), await client.collector(shard)
        assert compactor is not None
        assert collector is not None
        leaked = await collector.leaked(held)
        diffs = [codec.decode_diff(shard, v.seqno, v.data) for v in await collector.versions()]
    except CorruptionError as error:
        return Findings((Finding(Fault.DAMAGED, shard, shard, str(error)),), shards=1)
    state = client.state_of(shard)
    found = [*_unlawful(state), *await _bad_rollups(client, state, diffs)]
    findings = Findings(tuple(found), shards=1)
    for batch in (*state.batches, *map(as_batch, state.unsealed.values())):
        checked = await _check_batch(client, state, batch, compactor.merger)
        if checked.found and not {*batch.parts} <= {*(await _newest(client, shard)).parts}:
            continue  # a writer has merged the batch meanwhile, and perhaps collected its parts
        findings += checked
    return findings + Findings(tuple(Finding(Fault.LEAKED, shard, key, f"{key} is named by nothing") for key in leaked))


def _unlawful(state: ShardState) -> Iterator[Finding]:
    blank = ShardState(state.shard, seqno=state.seqno - 1)
    # An emptied shard remembers no writer, so the laws must not ask for one.
    if state.tombstone and not any(state.parts):
        blank = replace(blank, since=EMPTY, upper=EMPTY)
    try:
        check(blank, state)
    except AssertionError as error:
        yield Finding(Fault.UNLAWFUL, state.shard, state.shard, str(error))


async def _bad_rollups(client: PersistClient, state: ShardState, diffs: Sequence[codec.Diff]) -> list[Finding]:
    """Check that each rollup is there, and leads to the newest state by the versions after it."""
    found = []
    for rollup in state.rollups:
        data = await client.blob.get(rollup.key)
        if data is None and rollup not in (await _newest(client, state.shard)).rollups:
            continue  # a writer has collected it meanwhile
        if data is None:
            found.append(Finding(Fault.DANGLING, state.shard, rollup.key, f"rollup {rollup.key} is missing"))
            continue
        try:
            then = codec.restore(state.shard, *codec.decode_rollup(state.shard, rollup.key, data))
            now = codec.apply(then, [diff for diff in diffs if then.seqno < diff.seqno <= state.seqno])
        except CorruptionError as error:
            found.append(Finding(Fault.DAMAGED, state.shard, rollup.key, str(error)))
            continue
        if now != state:
            what = f"rollup {rollup.key} does not lead to version {state.seqno}"
            found.append(Finding(Fault.DAMAGED, state.shard, rollup.key, what))
    return found


async def _check_batch(client: PersistClient, state: ShardState, batch: Batch, merger: Merger | None) -> Findings:
    """Read all parts of a batch, one by one, and add up their diffs."""
    schema = parse_schema(state.schema) or UNNAMED
    found: list[Finding] = []
    size = total = 0
    for part in batch.parts:
        if isinstance(part, BlobPart):
            data = await client.blob.get(part.key)
            if data is None:
                found.append(Finding(Fault.DANGLING, state.shard, part.key, f"part {part.key} is missing"))
                continue
            size += len(data)
        if merger is None:
            continue
        try:
            one = Contents(state.shard, schema, (replace(batch, parts=(part,)),), 0, TIME_MAX, 0, Half.BOTH)
            total += await merger.verify(one)
        except (CorruptionError, DefinitionError) as error:
            found.append(Finding(Fault.DAMAGED, state.shard, getattr(part, "key", state.shard), str(error)))
    if merger is not None and not found and total != batch.diffs:
        what = f"the diffs of [{batch.lower}, {batch.upper}) add up to {total}; {batch.diffs} were appended"
        found.append(Finding(Fault.DAMAGED, state.shard, state.shard, what))
    return Findings(tuple(found), parts=len(batch.parts), bytes=size)


async def shards_of(consensus: Consensus) -> list[str]:
    """Return the keys of Consensus that are shards: all but registers."""
    found = []
    for key in await consensus.list_keys():
        head = await consensus.head(key)
        if head is not None and not _is_register(key, head.seqno, head.data):
            found.append(key)
    return found


async def held_by_transactions(client: PersistClient, mark_ms: int | None = None) -> frozenset[str]:
    """Return the parts that committed transactions name; their shards may not name them yet.

    ``mark_ms``: no transaction can be committed from now on with parts that were begun before this.
    """
    shards = await shards_of(client.consensus)
    logs = [log for log in LOGS if log in shards]
    if mark_ms is not None:
        for log in logs:
            await client.mark_swept(log, mark_ms)
    return _parts_of(await _committed(client, logs))


async def _committed(client: PersistClient, logs: Sequence[str]) -> list[Committed]:
    """Return what is committed in ``logs`` and not tidied away; some of it may be applied."""
    writes: list[Committed] = []
    for log in logs:
        writes += await _committed_in(client, log)
    return writes


async def _committed_in(client: PersistClient, log: str) -> list[Committed]:
    while True:
        state = await _newest(client, log)
        try:
            records = [r for batch in state.batches for r in await read_records(client.blob, log, batch.parts)]
        except CorruptionError:
            if {*state.parts} <= {*(await _newest(client, log)).parts}:
                raise
            continue  # a writer has merged and collected what was being read
        return Ledger().after(records, state.upper).in_order()


def _parts_of(writes: Sequence[Committed]) -> frozenset[str]:
    parts = [part for write in writes for part in write.staged.parts if isinstance(part, BlobPart)]
    return frozenset(key for part in parts for key in (part.key, part.sidecar) if key)


async def _check_unapplied(client: PersistClient, write: Committed, merger: Merger | None) -> Findings:
    """Check what a committed transaction will append: its commit is acknowledged, so the parts must be readable."""
    try:
        compactor = await client.compactor(write.shard, merger)
    except CorruptionError:
        return Findings()  # the check of the shard reported this already
    if compactor is None:
        return Findings((Finding(Fault.DANGLING, write.shard, write.shard, f"shard {write.shard!r} is not there"),))
    state = client.state_of(write.shard)
    found = await _check_batch(client, state, as_batch(write.staged), compactor.merger)
    unapplied = (await _newest(client, write.shard)).upper <= Frontier(write.time)
    # Once applied, the check of the shard covers it, wherever its rows are by now.
    return found if unapplied else Findings()


async def _newest(client: PersistClient, shard: str) -> ShardState:
    """Return the newest state of a shard that exists."""
    await client.collector(shard)
    return client.state_of(shard)


def _is_register(key: str, seqno: int, data: bytes) -> bool:
    for kind in (Kind.REGISTER, Kind.CHECKPOINT):  # a recovery log is a register too
        with suppress(CorruptionError):
            unseal(kind, version_key(key, seqno), data)
            return True
    return False
