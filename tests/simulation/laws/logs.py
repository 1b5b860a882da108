"""The law of recovery logs, seen where their versions become durable.

- M3: a log never goes back to an older epoch: a process that was fenced off takes no task back.
"""

from __future__ import annotations

from collections.abc import Callable

from laws.broken import require
from strandline.materialize.log import decode
from strandline.persist.handles.register import Register
from strandline.store.clock import Clock, Ids
from strandline.store.memory import MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch
from strandline.store.seal import Kind
from strandline.testing.simulation.kernel import run_sync

LOGS = "materialization/"


class WatchedConsensus(MemoryConsensus):
    """Consensus in memory, in which each new version of a recovery log is held against the law."""

    def __init__(self, clock: Clock, ids: Ids) -> None:
        super().__init__()
        self._clock = clock
        self._ids = ids
        self._epochs: dict[str, int] = {}
        self.told: Callable[[str], None] = lambda key: None
        """Called with each key that has a new version."""

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """Install a version iff the head is as expected.  Raises `LawBrokenError`."""
        outcome = await super().compare_and_set(request)
        if isinstance(outcome, Committed) and request.key.startswith(LOGS):
            body = run_sync(Register(request.key, self._clock, self._ids, self, kind=Kind.CHECKPOINT).read())
            assert body is not None
            epoch, before = decode(request.key, body).epoch, self._epochs.get(request.key, 0)
            require("M3", before <= epoch, f"{request.key} belongs to epoch {epoch} again, after {before}")
            self._epochs[request.key] = epoch
        if isinstance(outcome, Committed):
            self.told(request.key)
        return outcome
