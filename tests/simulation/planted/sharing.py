"""Bugs that are planted in handles which several coroutines of one process share, to prove that they are seen.

Trap: as `planted.bugs`: these know private names on purpose; when one goes, its bug must be planted anew.
"""

from __future__ import annotations

from typing import Any

from planted.bugs import bug
from strandline.frontier import Frontier
from strandline.persist.handles.read import SinceHandle
from strandline.persist.handles.records import RecordShard
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.machine import Machine
from strandline.persist.shard.state import ShardState
from strandline.persist.together.transactions import Transactions


@bug("two appends of one handle keep their tokens in one place", (WriteHandle, "request"))
def one_name_for_all(self: WriteHandle, *arguments: Any, **options: Any) -> Any:
    """Take the handle's own name, even if another append uses it now."""
    self._idle = [f"w-{self.shard}-{self.epoch}"]
    return _request(self, *arguments, **options)


_request = WriteHandle.request


@bug("a process takes note of whatever version it read last", (Machine, "adopt"))
def last_read_is_newest(self: Machine, state: ShardState) -> None:
    """Do not compare seqnos."""
    self._state = state


@bug("a hold says that it stands where it was last asked to", (SinceHandle, "downgrade"))
async def hold_where_asked(self: SinceHandle, since: Frontier) -> Frontier:
    """Believe the request."""
    await _downgrade(self, since)
    self.since = since
    return since


_downgrade = SinceHandle.downgrade


@bug("records are read at one version, and their upper is another's", (RecordShard, "contents"))
async def records_of_an_older_version(self: RecordShard, state: ShardState | None = None, **options: Any) -> Any:
    """Remember what was read once, for all coroutines of the process."""
    if state is not None:
        return await _contents(self, state, **options)
    kept = getattr(self, "_kept", None)
    if kept is None or len(kept[0]) != len(self.state.batches):
        kept = self.state.batches, await _contents(self, None, **options)
        self._kept = (self.state.batches, kept[1])  # type: ignore[attr-defined]
    return kept[1]


_contents = RecordShard.contents


@bug("a batch counts as applied, for all coroutines, when one of them begins to apply it", (Transactions, "_apply"))
async def applied_when_begun(self: Transactions, *arguments: Any) -> None:
    """Let others withdraw what is not in its table yet."""
    self._applied.update(self._ledger.writes)
    await _apply(self, *arguments)


_apply = Transactions._apply
