"""`strandline bench pipelining`: how closely transactions follow each other where each commit takes long.

A collection changes all the time.  The endpoint is one in memory that says at once that a commit has begun, and says
when it has ended only after `COMMIT_S`.  The gap is what the endpoint waits for: from its `Acknowledged` to the next
`Flush`, in which the runtime could have done nothing that it had not done meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa

from strandline.algebra.schema import DIFF, Column, Schema
from strandline.frontier import Frontier
from strandline.materialize.feed import Batches, Changes
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Flush,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec
from strandline.materialize.runtime import Task
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.memory import MemoryConsensus
from strandline.testing.endpoints import Endpoint, KeyValueSession, MemoryDriver
from strandline.wiring.loop import RunningTask

COMMIT_S: Final = 2.0
ROWS_PER_S: Final = 10_000
BATCH_ROWS: Final = 10_000
SCHEMA: Final = Schema((Column("k", "bigint"), Column("x", "string")))


@dataclass
class _Seen:
    """When the endpoint acknowledged, and when it was asked to flush, in seconds."""

    acknowledged: list[float] = field(default_factory=list)
    flushed: list[float] = field(default_factory=list)
    rows: int = 0


class _Slow(KeyValueSession):
    """Takes `COMMIT_S` for a commit, keeps no rows, and writes down when it spoke."""

    seen: ClassVar[_Seen]
    commit_s: ClassVar[float]

    async def ask(self, message: Request) -> list[Response]:
        """See `MemorySession.ask`."""
        match message:
            case Flush():
                self.seen.flushed.append(time.perf_counter())
            case StartCommit():
                self.say(StartedCommit())
                await SystemClock().sleep(self.commit_s)
                self.seen.acknowledged.append(time.perf_counter())
                return [Acknowledged()]
        return self.answers(message)

    def answers(self, message: Request) -> list[Response]:
        """See `MemorySession.answers`."""
        match message:
            case Acknowledge() if self.seen.acknowledged:
                return []  # it was answered when the commit had ended
            case Store(rows=rows):
                self.seen.rows += rows.num_rows
                return []
            case _:
                return super().answers(message)


class _Restless:
    """A collection that has `ROWS_PER_S` new rows a second, for ever."""

    name = "v"
    schema = SCHEMA
    waits = ""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def upper(self) -> Frontier:
        """See `Feed.upper`: a time is a millisecond."""
        return Frontier(1 + round(1000 * (time.perf_counter() - self._began)))

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        """See `Feed.changes`."""
        first, last = (each * ROWS_PER_S // 1000 for each in (lower, upper))
        return Changes(last - first, self._made(first, last))

    async def _made(self, first: int, last: int) -> Batches:
        for begin in range(first, last, BATCH_ROWS):
            keys = pa.array(range(begin, min(last, begin + BATCH_ROWS)), pa.int64())
            diffs = pa.array([1] * len(keys), pa.int64())
            yield pa.record_batch({"k": keys, "x": keys.cast(pa.string()), DIFF: diffs})

    async def hold(self, frontier: Frontier) -> None:
        """See `Feed.hold`: nothing is kept."""


def measure_pipelining(*, seconds: float, commit_s: float = COMMIT_S) -> dict[str, Any]:
    """Push for ``seconds``, and return the gaps in milliseconds: their median, the largest, and how many there were."""
    seen = _Seen()

    class Slow(_Slow):
        pass

    Slow.seen, Slow.commit_s = seen, commit_s
    asyncio.run(_push(Slow, seconds))
    gaps = sorted(
        1000 * (flush - said) for said, flush in zip(seen.acknowledged, seen.flushed[1:], strict=False) if flush > said
    )
    return {
        "commit_s": commit_s,
        "transactions": len(seen.acknowledged),
        "rows_per_s": round(seen.rows / seconds),
        "gap_p50_ms": round(gaps[len(gaps) // 2], 1),
        "gap_max_ms": round(gaps[-1], 1),
    }


async def _push(session: type[_Slow], seconds: float) -> None:
    clock = SystemClock()
    binding = Binding("v", "t", (), SCHEMA, delta=True)
    log = RecoveryLog(clock, SystemIds(), MemoryConsensus(), "log", 1)
    driver = MemoryDriver(Endpoint(), session)
    task = Task(MaterializationSpec("m", (binding,)), driver, log, [_Restless()], beside=partial(RunningTask, clock))
    begun = time.perf_counter()
    while time.perf_counter() - begun < seconds:
        await task.advance()
    await task.close()
