"""A shard described for operators: its state, its holds, and where its bytes are.  Read-only.

Bytes are *live* (the newest version names them), *held* (only older living versions or a list of doomed objects name
them), or *leaked* (nothing names them, and nothing will).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from strandline.frontier.antichain import Frontier
from strandline.persist.shard.batch import BlobPart, KeyRange, Part
from strandline.persist.shard.holds import LEASE_MS
from strandline.persist.shard.machine import Machine
from strandline.persist.shard.state import ShardState
from strandline.persist.upkeep.collect import Collector
from strandline.store.blob import Blob


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
    """Objects and bytes in Blob, by whether a version names them; ``inline``: bytes kept in the state itself."""

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
            tuple((keys.least, keys.greatest) for part in batch.parts if (keys := _keys(part)) is not None),
        )
        for batch in state.batches
    ]


def _keys(part: Part) -> KeyRange | None:
    return part.keys if isinstance(part, BlobPart) else None


def _holders(state: ShardState) -> list[Holder]:
    found = [Holder(name, held.since, opaque=held.opaque) for name, held in state.criticals.items()]
    for name, lease in state.leased.items():
        left = max(0, lease.beat_ms + LEASE_MS - state.walltime_ms)
        found.append(Holder(name, lease.since, seqno=lease.seqno, lease_left_ms=left))
    return sorted(found, key=lambda holder: (holder.since.empty, holder.since.at or 0, holder.name))
