"""Bugs that are planted where limits, sweeps, grace periods and clocks meet, to prove that they are seen.

Trap: as `planted.bugs`: these know private names on purpose; when one goes, its bug must be planted anew.
"""

from __future__ import annotations

from collections.abc import Sequence

from planted.bugs import bug
from strandline.persist.client import PersistClient
from strandline.persist.shard import holds, machine
from strandline.persist.shard.batch import doomed_prefix
from strandline.persist.shard.machine import Machine
from strandline.persist.shard.state import ShardState
from strandline.persist.together import transactions
from strandline.persist.upkeep import collect
from strandline.persist.upkeep.collect import Collector
from strandline.store.protocols import Versioned
from strandline.store.seal import Kind, seal
from worlds import keepers

# ---- limits ----------------------------------------------------------------------------------------------------------


@bug("a collection takes the first page of versions for all of them", (Collector, "versions"))
async def first_page_only(self: Collector) -> list[Versioned]:
    """Scan once."""
    return await self._consensus.scan(self._machine.shard, 0, collect.SCAN_LIMIT)


@bug("a refresh that meets the limit of a scan is content with its first page", (Machine, "_catch_up"))
async def caught_up_with_a_page(self: Machine) -> None:
    """Replay what came, and look for no more."""
    now = self.state
    versions = await self._consensus.scan(self.shard, now.seqno + 1, machine.SCAN_LIMIT)
    if versions and versions[0].seqno != now.seqno + 1:
        await self._load()
    elif versions:
        self.adopt(self._replay(now, versions))


@bug("a token that may be forgotten is taken for one that is new", (transactions, "too_late"))
def late_token_taken_for_new(_token: str, _upper: int) -> bool:
    """Remember tokens for as long as is said, and commit them for ever."""
    return False


# ---- sweeps ----------------------------------------------------------------------------------------------------------


@bug("a sweep does not look for what is committed and not applied", (keepers, "held_by_transactions"))
async def nothing_is_held(_client: PersistClient, _mark_ms: int) -> frozenset[str]:
    """Hold nothing."""
    return frozenset()


@bug("a sweep looks at the transactions, and lets them commit what it takes for leaked", (PersistClient, "mark_swept"))
async def no_mark_in_the_log(self: PersistClient, _shard: str, before_ms: int) -> None:
    """Forbid nothing."""


# ---- grace and clocks ------------------------------------------------------------------------------------------------


@bug("what is to be deleted after the grace period is deleted by the next collection", (Collector, "_due"))
async def due_at_once(self: Collector) -> list[str]:
    """Look at no date."""
    return await self._blob.list(doomed_prefix(self._machine.shard))


@bug("the grace period begins when a part was written, not when it was last named", (Collector, "_doom"))
async def grace_from_the_beginning(self: Collector, keys: Sequence[str]) -> int:
    """Count from the name of the part."""
    begun = min((collect.named_time(collect.parts_prefix(self._machine.shard), key) or 0 for key in keys), default=0)
    key = f"{doomed_prefix(self._machine.shard)}{begun + self._grace_ms}-{self._ids.fresh('d')}"
    await self._blob.set(key, seal(Kind.DOOMED, key, collect._encode(keys)))
    return len(keys)


@bug("a beat is dated by the reader's clock, however far that lags", (holds, "_heard"))
def beat_by_a_clock_that_lags(_: ShardState, now_ms: int) -> int:
    """Believe the clock."""
    return now_ms
