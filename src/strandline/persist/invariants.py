"""The laws of a shard, as named predicates over two successive states.

`check` runs all of them before every compare-and-set (`machine.py`), and the simulator runs them again on what it reads
back. A broken law is a bug of ours, so it raises `AssertionError`: the commit does not happen, nothing durable is
harmed.

P1 definite reads, P3 acknowledged appends and P5 no dangling parts speak about histories; they are checked by the
simulation's observers (tests/simulation).  Here are those that a pair of states can break.

Source: design page "persist" (laws).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from strandline.frontier.antichain import MINIMUM
from strandline.persist.state import ShardState

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
            f"law {each.name} ({each.claim}) is broken in shard {after.shard!r}: {before} -> {after}"
        )


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


def settled(state: ShardState) -> int:
    """How many batches cannot change any more: all of them, but for the last while it is empty.

    The laws look at what comes after these, so that a commit costs what it changes and not what there is.
    """
    return len(state.batches) - (1 if state.batches and not state.batches[-1].parts else 0)


@law("history", "batches already there do not change, but for empty ones growing at the end")
def history_kept(before: ShardState, after: ShardState) -> bool:
    """Until compaction exists, a batch is written once; the last one may only be extended while it is empty."""
    first = settled(before)
    if after.batches[:first] != before.batches[:first] or len(after.batches) < len(before.batches):
        return False
    return all(
        old.lower == new.lower and old.upper <= new.upper and not new.parts
        for old, new in zip(before.batches[first:], after.batches[first:], strict=False)
    )


@law("contiguous", "batches are contiguous from the minimum to the upper")
def contiguous(before: ShardState, after: ShardState) -> bool:
    """A gap would be a time of which nothing is known inside ``[since, upper)``."""
    if not after.batches:
        return after.upper == MINIMUM
    if after.batches[0].lower != MINIMUM or after.batches[-1].upper != after.upper:
        return False
    return all(a.upper == b.lower for a, b in pairwise(after.batches[max(0, settled(before) - 1) :]))


@law("digest", "the shard's digest is the sum of its batches'")
def digest_adds_up(before: ShardState, after: ShardState) -> bool:
    """Checked as a difference: what is settled has not changed its digest."""
    total = before.digest
    for batch in before.batches[settled(before) :]:
        total = total - batch.digest
    for batch in after.batches[settled(before) :]:
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


@law("described", "schema and owner are set once")
def described_once(before: ShardState, after: ShardState) -> bool:
    """A shard that changed its schema would give old rows to readers of the new one."""
    fresh = not before.schema and not before.owner
    return fresh or (before.schema, before.owner) == (after.schema, after.owner)


@law("P6", "at most one append by token: a commit that appends remembers its token")
def append_remembered(before: ShardState, after: ShardState) -> bool:
    """Without the token a writer could not tell, after an unknown outcome, that its append landed."""
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
