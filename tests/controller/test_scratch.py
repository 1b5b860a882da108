"""What a process that died had put aside in a location is swept, and what one that lives has there is not."""

from __future__ import annotations

from strandline.controller.asking.housekeeping import sweep_scratch
from strandline.persist.shard.batch import parts_prefix, scratch_prefix
from strandline.persist.upkeep.collect import LEAKED_AFTER_MS
from strandline.store.memory import MemoryBlob
from strandline.testing.simulation.kernel import run_sync


class Clock:
    """A clock that stands."""

    def __init__(self, now: int) -> None:
        self.now = now

    def now_ms(self) -> int:
        """Return its time."""
        return self.now

    async def sleep(self, seconds: float) -> None:
        """Return at once."""


def test_only_what_is_old_and_put_aside_is_swept() -> None:
    """Damage: a bucket grows by each snapshot that was interrupted, or a read that goes on loses its rows."""
    blob, now = MemoryBlob(), 10 * LEAKED_AFTER_MS
    old = f"{scratch_prefix()}{now - LEAKED_AFTER_MS - 1}-a-1/rows-000001.parquet"
    young = f"{scratch_prefix()}{now - LEAKED_AFTER_MS}-a-2/rows-000001.parquet"
    part = f"{parts_prefix('scratch.')}1-b-1/part.parquet"
    assert not part.startswith(scratch_prefix()), "no shard is called so"
    for key in (old, young, part):
        run_sync(blob.set(key, b"rows"))
    assert run_sync(sweep_scratch(blob, Clock(now))) == [old]
    assert run_sync(blob.list("")) == sorted([young, part])
