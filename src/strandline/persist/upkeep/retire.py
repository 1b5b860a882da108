"""Dropping a shard: it is closed, and the holds of its critical readers are released.

A lease keeps what it holds.  Once no lease is left, `holds.release_past` moves since to the end, and the collector
empties the shard.

Trap: `retire` does not check for other writers.  A shard registered with a transactions log must be forgotten there
first, and a stream must be dropped by its client (`StreamClient.drop`), which seals what was written.
"""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from strandline.frontier.antichain import EMPTY
from strandline.persist.shard.state import Append, Critical, Fenced, ShardState, append, since_of

DROPPED: Final = "dropped"
"""The critical reader that a dropped shard gets, so that it counts as given up even if it had no other."""


def retire(state: ShardState, epoch: int, token: str) -> tuple[ShardState, Fenced | None]:
    """Close the shard, and move every critical hold to the end; None once that is done."""
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
