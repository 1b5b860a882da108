"""A place for shards in memory: compare-and-sets meet planned outcomes, and others act while a process waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any, TypeVar

import pytest

from strandline.algebra.schema import Column, Schema
from strandline.errors import Determinate, Indeterminate
from strandline.frontier import EMPTY, Frontier
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Contents, Merger, StageRequest
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.batch import Staged
from strandline.persist.shard.state import ShardState
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch
from strandline.store.unreliable import Outcome
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.simulation.kernel import run_sync

T = TypeVar("T")
SCHEMA = Schema((Column("k", "string"),))


class PlannedConsensus(MemoryConsensus):
    """The next changes meet the outcomes of ``plan``, later ones succeed.  `land` makes late changes happen."""

    def __init__(self) -> None:
        super().__init__()
        self.plan: deque[Outcome] = deque()
        self.late: list[Callable[[], Coroutine[Any, Any, object]]] = []
        self.calls = 0

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        return await self._meet(lambda: super(PlannedConsensus, self).compare_and_set(request))

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        async def each() -> list[Committed | Mismatch]:
            return [await super(PlannedConsensus, self).compare_and_set(request) for request in requests]

        return await self._meet(each)

    async def land(self) -> None:
        """Make all late changes happen."""
        while self.late:
            await self.late.pop(0)()

    async def _meet(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.calls += 1
        match self.plan.popleft() if self.plan else Outcome.DONE:
            case Outcome.DONE:
                return await call()
            case Outcome.DONE_UNREPORTED:
                await call()
                raise Indeterminate("the answer was lost")
            case Outcome.LATE:
                self.late.append(call)
                raise Indeterminate("no answer yet")
            case Outcome.LOST:
                raise Indeterminate("the request was lost")
            case _:
                raise Determinate("refused")


class BusyClock(HandClock):
    """Each sleep runs the next function of ``meanwhile``."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: deque[Callable[[], Coroutine[Any, Any, object]]] = deque()

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        if self.meanwhile:
            await self.meanwhile.popleft()()


class Place:
    """One location; each client is a process of its own."""

    schema = SCHEMA

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.blob = MemoryBlob(self.objects)
        self.consensus = PlannedConsensus()
        self.clock = BusyClock()
        self.engine = ListEngine(self.blob)
        self._owners = count()

    @property
    def plan(self) -> deque[Outcome]:
        """The outcomes of the next changes in Consensus."""
        return self.consensus.plan

    @property
    def versions(self) -> dict[str, list[Any]]:
        """The versions in Consensus."""
        return self.consensus._place

    def client(self, merger: Merger | None = None, **options: Any) -> PersistClient:
        """Start a process, which compacts if it has a ``merger``, and collects if it has a ``grace_ms``."""
        ids = CountingIds(f"p{next(self._owners)}")
        options = {"grace_ms": None} | options
        return PersistClient(self.clock, ids, self.blob, self.consensus, merger, **options)

    def writer(
        self, shard: str = "s", epoch: int = 1, *, client: PersistClient | None = None, **options: Any
    ) -> WriteHandle:
        """Open a writer, in a process of its own unless ``client`` is given."""
        options = {"schema": SCHEMA.ddl} | options
        return run_sync((client or self.client()).writer(shard, epoch, **options))

    def stage(
        self, shard: str, lower: int, upper: int, data: Sequence[Any], *, inline: int = 1 << 14, prefix: str = ""
    ) -> Staged:
        """Stage updates ``[k, time, diff]``."""
        rows = updates(SCHEMA, ({"k": k, "__time": time, "__diff": diff} for k, time, diff in data))
        prefix = prefix or f"{shard}/parts/{next(self._owners)}/"
        request = StageRequest(shard, SCHEMA, lower, upper, prefix, inline_bytes_max=inline)
        return run_sync(self.engine.stage(rows, request))

    def append(
        self, writer: WriteHandle, lower: int, upper: int | None, data: Sequence[Any] = (), **options: Any
    ) -> Any:
        """Stage and append; return the outcome."""
        staged = [self.stage(writer.shard, lower, upper or lower + 1, data)] if data else []
        new = EMPTY if upper is None else Frontier(upper)
        return run_sync(writer.compare_and_append(staged, Frontier(lower), new, **options))

    def rows(self, contents: Contents) -> list[list[Any]]:
        """Read ``contents``, consolidated: ``[k, time, diff]``."""
        return run_sync(self.read_rows(contents))

    async def read_rows(self, contents: Contents) -> list[list[Any]]:
        """Read ``contents``, consolidated: ``[k, time, diff]``."""
        sums: dict[tuple[int, str], int] = {}
        for row in listed(await self.engine.read(contents)).rows:
            at = (row["__time"], row["k"])
            sums[at] = sums.get(at, 0) + row["__diff"]
        return [[k, time, diff] for (time, k), diff in sorted(sums.items()) if diff]

    def snapshot(self, as_of: int, shard: str = "s") -> list[list[Any]]:
        """Read the contents at ``as_of`` in a process of its own, without waiting."""
        reader = run_sync(self.client().reader(shard, SCHEMA, shard))
        return self.rows(run_sync(reader.snapshot(as_of, timeout_s=0)))

    def state(self, shard: str = "s") -> ShardState:
        """Return the state as a fresh process finds it."""
        return run_sync(self.client().reader(shard, SCHEMA, shard)).state


@pytest.fixture
def place() -> Place:
    """An empty place."""
    return Place()
