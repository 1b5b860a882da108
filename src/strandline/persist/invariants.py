"""The laws of a shard, as named predicates over two successive states.

`check` runs all of them before every compare-and-set (`machine.py`), and the simulator runs them again on what it reads back.
A broken law is a bug of ours, so it raises `AssertionError`: the commit does not happen, nothing durable is harmed.

P1 definite reads, P3 acknowledged appends and P5 no dangling parts speak about histories; they are checked by the simulation's
observers (tests/simulation).  Here are those that a pair of states can break.

Source: design page "persist" (laws).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from strandline.frontier.antichain import MINIMUM
from strandline.persist.batch import NOTHING
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
    """Assert every law.  O(batches)."""
    for each in LAWS:
        assert each.holds(before, after), f"law {each.name} ({each.claim}) is broken in shard {after.shard!r}: {before} -> {after}"


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


@law("contiguous", "batches are contiguous from the minimum to the upper")
def contiguous(_: ShardState, after: ShardState) -> bool:
    """A gap would be a time of which nothing is known inside ``[since, upper)``."""
    if not after.batches:
        return after.upper == MINIMUM
    if after.batches[0].lower != MINIMUM or after.batches[-1].upper != after.upper:
        return False
    return all(a.upper == b.lower for a, b in pairwise(after.batches))


@law("history", "batches already there do not change, but for empty ones growing at the end")
def history_kept(before: ShardState, after: ShardState) -> bool:
    """Until compaction exists, a batch is written once; the last one may only be extended while it is empty."""
    kept = before.batches if not before.batches or before.batches[-1].parts else before.batches[:-1]
    return after.batches[: len(kept)] == kept


@law("digest", "the shard's digest is the sum of its batches'")
def digest_adds_up(before: ShardState, after: ShardState) -> bool:
    """Checked as a difference, so that it costs the new batches only."""
    if len(after.batches) < len(before.batches):
        return False
    added = NOTHING
    for batch in after.batches[len(before.batches) :]:
        added = added + batch.digest
    return before.digest + added == after.digest


@law("holds", "the shard's since is not beyond any hold")
def since_respects_holds(_: ShardState, after: ShardState) -> bool:
    """A held time must stay readable."""
    return all(after.since <= c.since for c in after.criticals.values())


@law("P6", "at most one append by (writer, token): a commit that appends remembers its token")
def append_remembered(before: ShardState, after: ShardState) -> bool:
    """Without the token a writer could not tell, after an unknown outcome, that its append landed."""
    if before.upper == after.upper:
        return True
    return any(w.upper == after.upper and before.writers.get(n) != w for n, w in after.writers.items())
