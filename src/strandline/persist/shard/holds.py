"""Leased readers: holds that last as long as their reader sends heartbeats.  Pure transitions.

A leased reader holds two things: the shard's *since* (its times stay readable) and a *seqno* (the parts that versions
from there on name stay in Blob).  It beats at a quarter of its lease.  Any process may release the hold of a reader
that has not beaten for a whole lease, by the walltime of the state.

Since moves only when a hold moves: to the meet of all holds, critical ones too.  A reader that leaves, or whose
hold is released, never moves since, because the next reader may still want that history.

Trap: a lease is a promise of liveness by clocks, and clocks lie.  The next beat of a reader whose hold was released
returns `None`, and the reader must stop relying on its hold.  Its reads until then return the right rows or raise.

Critical readers: `persist/shard/state.py`.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from strandline.frontier import EMPTY, Frontier, join
from strandline.persist.shard.state import Downgraded, Leased, ShardState, since_of

LEASE_MS: Final = 15 * 60 * 1000
BEATS_PER_LEASE: Final = 4
BEAT_MS: Final = LEASE_MS // BEATS_PER_LEASE
assert 0 < BEAT_MS * (BEATS_PER_LEASE - 1) < LEASE_MS, "a reader may miss beats before its hold is released"


def register_leased(state: ShardState, reader: str, now_ms: int) -> tuple[ShardState, Leased]:
    """Register ``reader`` at the shard's since and newest version, or find it where it was.

    If the shard is unreadable there is nothing to hold, and nothing changes.
    """
    known = state.leased.get(reader)
    if known is not None:
        return state, known
    fresh = Leased(state.since, state.seqno, _heard(state, now_ms))
    if state.since.empty:
        return state, fresh
    return replace(state, leased={**state.leased, reader: fresh}), fresh


def downgrade_leased(
    state: ShardState, reader: str, since: Frontier, seqno: int, now_ms: int
) -> tuple[ShardState, Downgraded | None]:
    """Release times before ``since`` and versions before ``seqno``, and beat; None if the hold is gone.

    Neither hold ever goes back.
    """
    held = state.leased.get(reader)
    if held is None:
        return state, Downgraded(EMPTY) if state.since.empty else None
    moved = Leased(join((held.since, since)), max(held.seqno, seqno), max(held.beat_ms, _heard(state, now_ms)))
    if moved == held:
        return state, Downgraded(held.since)
    after = replace(state, leased={**state.leased, reader: moved})
    if moved.since != held.since:
        after = replace(after, since=since_of(after))
    return after, Downgraded(moved.since)


def expire_leased(state: ShardState, reader: str) -> tuple[ShardState, None]:
    """Release the hold of a reader that leaves.  Since stays where it is."""
    if reader not in state.leased:
        return state, None
    return replace(state, leased={name: held for name, held in state.leased.items() if name != reader}), None


def expire_overdue(state: ShardState) -> tuple[ShardState, tuple[str, ...]]:
    """Release the hold of every reader that missed a lease, by the state's own walltime; return their names."""
    overdue = tuple(sorted(name for name, held in state.leased.items() if held.beat_ms + LEASE_MS < state.walltime_ms))
    if not overdue:
        return state, ()
    return replace(state, leased={n: h for n, h in state.leased.items() if n not in overdue}), overdue


def given_up(state: ShardState) -> bool:
    """Return whether a shard is closed, and has critical readers, and all of them have released its past."""
    return state.upper.empty and bool(state.criticals) and all(held.since.empty for held in state.criticals.values())


def release_past(state: ShardState, now_ms: int) -> tuple[ShardState, bool]:
    """Move since to [] in a shard that was given up, unless a reader has a lease; return whether since is [].

    No writer commits there, so the walltime stands still and leases end by the caller's clock.
    """
    if not given_up(state) or state.since.empty:
        return state, state.tombstone
    if any(held.beat_ms + LEASE_MS >= max(state.walltime_ms, now_ms) for held in state.leased.values()):
        return state, False
    return replace(state, since=EMPTY, leased={}), True


def seqno_held(state: ShardState) -> int:
    """Return the oldest version whose parts a reader may be reading: the newest version if none is held."""
    return min((held.seqno for held in state.leased.values()), default=state.seqno)


def _heard(state: ShardState, now_ms: int) -> int:
    # A clock behind the state's own would make a reader overdue at its first beat.
    return max(state.walltime_ms, now_ms)
