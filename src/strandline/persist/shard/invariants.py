"""The laws of a shard, as named predicates over two successive states.

`check` runs all of them before every compare-and-set (`machine.py`), and the simulator runs them again on what it reads
back. A broken law is a bug in Strandline, so `check` raises `AssertionError`: the commit does not happen, and nothing
durable is harmed.

P1 definite reads, P3 acknowledged appends and P5 no dangling parts speak about histories; they are checked by the
simulation's observers (tests/simulation).  This module has the laws that a pair of states can break.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from msgspec.structs import replace

from strandline.frontier import MINIMUM
from strandline.persist.shard.batch import NOTHING, Batch
from strandline.persist.shard.state import ShardState

Predicate = Callable[[ShardState, ShardState], bool]


@dataclass(frozen=True, slots=True)
class Law:
    """A named predicate over ``(before, after)``."""

    name: str
    claim: str
    holds: Predicate


LAWS: Final[list[Law]] = []


def law(name: str, claim: str) -> Callable[[Predicate], Predicate]:
    """Register a law."""

    def register(predicate: Predicate) -> Predicate:
        LAWS.append(Law(name, claim, predicate))
        return predicate

    return register


def check(before: ShardState, after: ShardState) -> None:
    """Assert every law, given that they held up to ``before``."""
    for each in LAWS:
        assert each.holds(before, after), (
            f"law {each.name} ({each.claim}) is broken in shard {after.shard!r}: {_step(before, after)}"
        )


def _step(before: ShardState, after: ShardState) -> str:
    """Say what a step changed, without any row: logs must not hold what users store."""
    first, old, new = changed(before, after)
    at_ends = " -> ".join(
        f"version {state.seqno}, since {state.since}, upper {state.upper}, epoch {state.epoch}, "
        f"{len(state.batches)} batches, {len(state.unsealed)} unsealed, {len(state.writers)} writers"
        for state in (before, after)
    )
    differing = " -> ".join(
        ", ".join(f"[{b.lower}, {b.upper}) of {b.rows} updates, digest {b.digest.low:016x}" for b in batches) or "none"
        for batches in (old, new)
    )
    return f"{at_ends}; batches from number {first} on: {differing}"


@law("P2", "since, upper, seqno, epoch and walltime never go back")
def monotone(before: ShardState, after: ShardState) -> bool:
    """A reader that saw a time as readable and complete sees it so for ever; a fenced writer stays fenced."""
    return (
        before.since <= after.since
        and before.upper <= after.upper
        and before.seqno + 1 == after.seqno
        and before.epoch <= after.epoch
        and before.walltime_ms <= after.walltime_ms
    )


def changed(before: ShardState, after: ShardState) -> tuple[int, tuple[Batch, ...], tuple[Batch, ...]]:
    """Return the first batch index that differs, and the batches from there that went and came.

    Batches before and after these are the same.  The laws look at this difference alone, so a check costs time by what
    the commit changes, not by the size of the state.
    """
    old, new = before.batches, after.batches
    if old is new:
        return len(old), (), ()
    shorter = min(len(old), len(new))
    first = bytes(map(operator.is_, old, new)).find(False)
    first = shorter if first < 0 else first
    while first < shorter and old[first] == new[first]:
        first += 1
    last = 0
    while last < shorter - first and old[-1 - last] == new[-1 - last]:
        last += 1
    return first, old[first : len(old) - last], new[first : len(new) - last]


@law("history", "batches change only by being merged, or by growing at the end while they are empty")
def history_kept(before: ShardState, after: ShardState) -> bool:
    """A batch that changed otherwise would change what was read before."""
    _, old, new = changed(before, after)
    if not old or before.tombstone:
        return not before.tombstone or not any(batch.parts for batch in new)
    if len(new) == 1 and new[0].upper == old[-1].upper:
        return (
            new[0].lower == old[0].lower
            and new[0].rows <= sum(batch.rows for batch in old)
            and new[0].diffs == sum(batch.diffs for batch in old)
            and new[0].digest == sum((batch.digest for batch in old), NOTHING)
            and new[0].since <= after.since
            and all(batch.since <= new[0].since for batch in old)
        )
    grown = len(old) == 1 and not old[0].parts and bool(new) and new[0].upper == after.upper
    return grown and replace(new[0], upper=old[0].upper) == old[0] and old[0].upper <= new[0].upper


@law("contiguous", "batches are contiguous from the minimum to the upper")
def contiguous(before: ShardState, after: ShardState) -> bool:
    """A gap would be a time inside ``[since, upper)`` whose updates no batch holds."""
    if not after.batches:
        return after.upper == MINIMUM
    if after.batches[0].lower != MINIMUM or after.batches[-1].upper != after.upper:
        return False
    first, _, new = changed(before, after)
    return all(a.upper == b.lower for a, b in pairwise(after.batches[max(0, first - 1) : first + len(new) + 1]))


@law("digest", "the shard's digest is the sum of its batches'")
def digest_adds_up(before: ShardState, after: ShardState) -> bool:
    """Checked as a difference: batches that did not change keep their digests."""
    _, old, new = changed(before, after)
    if before.tombstone:
        return True  # a dropped shard cannot be read, so its sums no longer matter
    total = before.digest
    for batch in old:
        total = total - batch.digest
    for batch in new:
        total = total + batch.digest
    return total == after.digest


@law("holds", "the shard's since is not beyond any hold, and no hold goes back")
def since_respects_holds(before: ShardState, after: ShardState) -> bool:
    """A held time must stay readable, and a held version's parts in Blob."""
    for name, held in after.criticals.items():
        if not after.since <= held.since or (name in before.criticals and held.since < before.criticals[name].since):
            return False
    for name, lease in after.leased.items():
        known = before.leased.get(name)
        if not after.since <= lease.since or lease.seqno > before.seqno:
            return False
        if known is not None and (lease.since < known.since or lease.seqno < known.seqno):
            return False
    return True


@law("described", "the owner is set once; a schema that takes another's place follows it in the list")
def described_once(before: ShardState, after: ShardState) -> bool:
    """A shard whose schema was simply replaced would give old rows to readers of the new one."""
    if not before.schema and not before.owner:
        return True
    same = (before.schema, before.schemas) == (after.schema, after.schemas)
    return before.owner == after.owner and (same or after.schemas == (*before.schemas, before.schema))


@law("P6", "at most one append by token: a commit that appends remembers its token")
def append_remembered(before: ShardState, after: ShardState) -> bool:
    """Without the token a writer could not find out, after an unknown outcome, that its append landed."""
    if before.upper == after.upper:
        return True
    return any(w.upper == after.upper and before.writers.get(n) != w for n, w in after.writers.items())


@law("unsealed", "what is not sealed lies at or beyond the upper; what comes to it remembers its token")
def unsealed_beyond_upper(before: ShardState, after: ShardState) -> bool:
    """An unsealed update below the upper would be in no read for ever, though its write was acknowledged."""
    if before.unsealed == after.unsealed and before.upper == after.upper:
        return True
    fresh = after.unsealed.keys() - before.unsealed.keys()
    remembered = before.upper != after.upper or any(before.writers.get(n) != w for n, w in after.writers.items())
    return all(after.upper <= s.lower for s in after.unsealed.values()) and (not fresh or remembered)
