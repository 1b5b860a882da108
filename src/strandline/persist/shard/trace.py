"""The trace of a shard: which adjacent batches to merge, and how the output replaces them.  Pure.

A *merge* rewrites adjacent batches as one: times advanced to a since, equal updates added up, zeros dropped.  It
preserves every read at or after that since, and so the sum of diffs and the digest; both are checked when the output
replaces its inputs.  A merge names its whole inputs: if one of them has changed or gone, another merge was faster and
the output is *stale*.

Which to merge: a batch's *tier* is the magnitude of its number of updates (base `FAN`); one that lies before a larger
batch counts as that one does, since it will never grow by itself.  So tiers fall from the oldest batch to the newest,
and as soon as `FAN` batches share a tier they become one.  No tier has more than `FAN - 1` batches, so their number
grows as the logarithm of the number of appends, and each update is rewritten once per tier.

Released history shrinks.  At or before since, a withdrawal cancels the update that it withdraws, even if they are in
batches of different tiers.  As soon as cancelling would drop half of the updates, these batches become one
(`_cancelled`).  So the updates before since are at most twice the live rows.

A merge is *large* above `LARGE_UPDATES` or `LARGE_BYTES`.  A client may carry out large merges apart from commits, so
that no commit waits for one (`persist/upkeep/compact.py`).

Tiers count *runs*, not batches.  A run is what was staged together, under one prefix.  An appended batch is usually one
run, in however many parts Spark wrote it.  But when a stream seals, all that it wrote becomes one batch with one run
per write.  The output of a merge is one run, so its number of parts never makes a merge due.

Traps: the last batch is left out while it is empty, because the next empty append extends it.  A merge in which only
one batch has parts is done like any other: that batch may hold updates outside its window, or zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from strandline.errors import CorruptionError, InvalidUsage
from strandline.frontier import TIME_MAX, Frontier, as_time, join
from strandline.persist.shard.batch import (
    INLINE_SHARD_BYTES_MAX,
    NOTHING,
    Batch,
    BlobPart,
    InlinePart,
    Staged,
    as_batch,
)
from strandline.persist.shard.state import ShardState

_TIER_BITS: Final = 3
FAN: Final = 1 << _TIER_BITS
INLINE_BYTES_FULL: Final = INLINE_SHARD_BYTES_MAX * 3 // 4
"""From this size on inline parts are moved to Blob, so that appends still find room for theirs."""
assert INLINE_BYTES_FULL < INLINE_SHARD_BYTES_MAX
LARGE_UPDATES: Final = 100_000
LARGE_BYTES: Final = 32 << 20
"""A merge above either takes longer than a commit should: a Spark job, and seconds."""


class Plan(msgspec.Struct, frozen=True):
    """What to merge: adjacent batches, to which since, and how many bytes of the result may stay inline."""

    inputs: tuple[Batch, ...]
    since: Frontier
    inline_bytes_max: int

    @property
    def updates(self) -> int:
        """How many updates it rewrites."""
        return sum(batch.rows for batch in self.inputs)

    @property
    def large(self) -> bool:
        """Whether it takes longer than a commit should."""
        return self.updates > LARGE_UPDATES or sum(p.size for b in self.inputs for p in b.parts) > LARGE_BYTES


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge that was carried out: ``output`` replaces ``inputs``.

    Raises `InvalidUsage` if ``output`` cannot be the merge of ``inputs``: they are not contiguous, have other bounds,
    or are advanced further than ``output``.
    """

    inputs: tuple[Batch, ...]
    output: Staged

    def __post_init__(self) -> None:
        if not self.inputs or any(a.upper != b.lower for a, b in pairwise(self.inputs)):
            raise InvalidUsage(f"only contiguous batches can be merged, not {_bounds(self.inputs)}")
        if (self.inputs[0].lower, self.inputs[-1].upper) != (self.output.lower, self.output.upper):
            raise InvalidUsage(
                f"a merge of {_bounds(self.inputs)} cannot span [{self.output.lower}, {self.output.upper})"
            )
        if not all(batch.since <= self.output.since for batch in self.inputs):
            raise InvalidUsage(f"a merge to {self.output.since} cannot undo what was advanced further before")


@dataclass(frozen=True, slots=True)
class Merged:
    """The output has replaced its inputs, by this call or an earlier one."""


@dataclass(frozen=True, slots=True)
class Stale:
    """The output was refused and changed nothing; its parts are in no shard.  ``why`` is for messages."""

    why: str


MergeOutcome: TypeAlias = Merged | Stale


def apply_merge(state: ShardState, merge: Merge) -> tuple[ShardState, MergeOutcome]:
    """Replace a merge's inputs by its output, iff all inputs are in the trace unchanged.

    Raises `CorruptionError` if the output does not add up to its inputs: a part is damaged, or there is a bug.
    """
    output = merge.output
    merged = as_batch(output)
    at = next((n for n, batch in enumerate(state.batches) if batch.lower == output.lower), len(state.batches))
    if state.batches[at : at + 1] == (merged,):
        return state, Merged()
    end = at + len(merge.inputs)
    if state.tombstone:
        return state, Stale("the shard is closed")
    if state.batches[at:end] != merge.inputs:
        return state, Stale(f"not all of {_bounds(merge.inputs)} are still in the trace")
    if not output.since <= state.since:
        return state, Stale(f"it was advanced to {output.since}, beyond the shard's since {state.since}")
    rows = sum(batch.rows for batch in merge.inputs)
    if output.rows > rows:
        return state, Stale(f"it holds {output.rows} updates, more than the {rows} of its inputs")
    diffs = sum(batch.diffs for batch in merge.inputs)
    digest = sum((batch.digest for batch in merge.inputs), NOTHING)
    if (output.diffs, output.digest) != (diffs, digest):
        raise CorruptionError(
            f"shard {state.shard!r}: merging {_bounds(merge.inputs)} gave diffs that add up to {output.diffs} "
            f"({output.digest}); {diffs} ({digest}) were expected"
        )
    return replace(state, batches=(*state.batches[:at], merged, *state.batches[end:])), Merged()


def due(state: ShardState, *, small: bool = False) -> Plan | None:
    """Return the next merge that is due, or None; ``small``: skip large merges.

    A tombstone is not merged: no reader can read it, and it is about to be deleted.
    """
    if state.tombstone:
        return None
    return next((plan for plan in _due(state) if not (small and plan.large)), None)


def _due(state: ShardState) -> Iterator[Plan]:
    batches = _closed(state.batches)
    yield from _tiers(state, batches)
    if settled := _cancelled(state, batches):
        yield _plan(state, settled)
    if state.inline_bytes > INLINE_BYTES_FULL and (overflow := _overflow(state, batches)):
        yield overflow


def _tiers(state: ShardState, batches: Sequence[Batch]) -> Iterator[Plan]:
    """Yield a merge for each tier that has `FAN` runs or more, the lowest tier first."""
    tier = runs = 0
    end = len(batches)
    for at in range(len(batches) - 1, -1, -1):
        own = batches[at].rows.bit_length() // _TIER_BITS
        if own > tier or runs == 0:
            if runs >= FAN:
                yield _plan(state, batches[at + 1 : end])
            tier, runs, end = max(tier, own), 0, at + 1
        runs += _runs(batches[at])
    if runs >= FAN:
        yield _plan(state, batches[:end])


def _cancelled(state: ShardState, batches: Sequence[Batch]) -> Sequence[Batch]:
    """Return the batches that begin at or before since, if at least half of their updates before it cancel.

    How many cancel is estimated without reading, as if diffs were 1 and -1: of ``n`` updates with sum ``d``, ``n - d``
    cancel; a batch that reaches beyond since counts by the share of its times before since.
    """
    since = as_time(state.since)
    begun = batches[: next((n for n, batch in enumerate(batches) if as_time(batch.lower) > since), len(batches))]
    gone = sum(max(0, batch.rows - batch.diffs) * _share(batch, since, first=n == 0) for n, batch in enumerate(begun))
    alive = sum(min(batch.rows, batch.diffs) for batch in begun)
    return begun if gone >= max(FAN, alive) else ()


def _share(batch: Batch, since: int, *, first: bool) -> float:
    """Return the share of a batch that may cancel at ``since`` and has not done so yet, from 0 to 1.

    Updates that compaction advanced to one time have cancelled within their batch already, so of the first batch only
    later ones may cancel.
    """
    begin = max(as_time(batch.lower), as_time(batch.since))
    end = min(as_time(batch.upper), TIME_MAX) - 1
    if end <= since and not (first and end <= begin):
        return 1.0
    return max(0, since - begin) / (end - begin) if end > begin else 0.0


def everything(state: ShardState) -> Plan | None:
    """Return the merge of all batches into one at since (`Compactor.whole`); None if it changes nothing."""
    batches = _closed(state.batches)
    if state.tombstone or not any(batch.parts for batch in batches):
        return None
    plan = _plan(state, batches)
    whole = len(batches) == 1 and _runs(batches[0]) == 1 and all(part.window is None for part in batches[0].parts)
    return None if whole and batches[0].since == plan.since else plan


def _plan(state: ShardState, inputs: Sequence[Batch]) -> Plan:
    room = INLINE_SHARD_BYTES_MAX - state.inline_bytes + sum(batch.inline_bytes for batch in inputs)
    # An unreadable shard needs no times, so they all become the last one; the empty frontier is no time.
    wanted, end = Frontier(TIME_MAX - 1) if state.since.empty else state.since, inputs[-1].upper
    if not state.since.empty and end <= wanted:  # what comes next begins where these end, and must not meet them there
        wanted = Frontier(as_time(end) - 1)
    since = join((wanted, *(b.since for b in inputs)))
    return Plan(tuple(inputs), since, max(0, room))


def _runs(batch: Batch) -> int:
    """Return the number of runs of a batch; an empty batch counts as one, because the state lists it too."""
    if len(batch.parts) < 2:
        return 1
    staged = {part.key.rpartition("/")[0] for part in batch.parts if isinstance(part, BlobPart)}
    return len(staged) + sum(isinstance(part, InlinePart) for part in batch.parts)


def _overflow(state: ShardState, batches: Sequence[Batch]) -> Plan | None:
    """Return the merge that moves the longest run of inline parts to Blob."""
    best: tuple[int, int, int] = (0, 0, 0)
    begin = total = 0
    for end, batch in enumerate(batches, 1):
        if not all(isinstance(part, InlinePart) for part in batch.parts):
            begin, total = end, 0
            continue
        total += batch.inline_bytes
        best = max(best, (total, begin, end))
    total, begin, end = best
    return replace(_plan(state, batches[begin:end]), inline_bytes_max=0) if total else None


def _closed(batches: tuple[Batch, ...]) -> tuple[Batch, ...]:
    return batches if not batches or batches[-1].parts or batches[-1].upper.empty else batches[:-1]


def _bounds(batches: Sequence[Batch]) -> str:
    return " ".join(f"[{b.lower.at}, {'' if b.upper.empty else b.upper.at})" for b in batches)
