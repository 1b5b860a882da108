"""A workshop for what runs stages: shards in memory, an input, stages that copy it, stores and an engine that fail."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from strandline.algebra.nodes import Get, Node
from strandline.algebra.schema import Column, Schema
from strandline.compute.sink.actor import Sink
from strandline.compute.stage import LINEAR, Stage
from strandline.compute.step import StageRun
from strandline.compute.tick import TickReport, tick
from strandline.errors import Indeterminate
from strandline.frontier import Frontier, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Contents, Rows, StageRequest
from strandline.persist.handles.read import ReadHandle
from strandline.persist.handles.write import WriteHandle
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Committed, CompareAndSet, Mismatch
from strandline.testing.doubles import CountingIds, HandClock, in_turn
from strandline.testing.lists.list_engine import Listed, ListEngine, listed, updates
from strandline.testing.simulation.kernel import run_sync

SCHEMA = Schema((Column("k", "string"),))


class Stores(MemoryConsensus):
    """Consensus that does not answer while ``away``; ``lost`` changes happen first, and nothing is said of them.

    Of the next flush only what changes one of ``only`` happens, and nothing is said of it, nor of what comes after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.away = False
        self.lost = 0
        self.only: set[str] | None = None

    async def head(self, key: str) -> Any:
        """See `Consensus.head`."""
        self._answer()
        return await super().head(key)

    async def scan(self, key: str, start: int, limit: int) -> Any:
        """See `Consensus.scan`."""
        self._answer()
        return await super().scan(key, start, limit)

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        """See `Consensus.compare_and_set`."""
        if self.lost:
            self.lost -= 1
            await super().compare_and_set(request)
            self.away = True
        self._answer()
        return await super().compare_and_set(request)

    async def compare_and_set_many(self, requests: Sequence[CompareAndSet]) -> list[Committed | Mismatch]:
        """See `Consensus.compare_and_set_many`."""
        if self.only is not None:
            await super().compare_and_set_many([request for request in requests if request.key in self.only])
            self.only, self.away = set(), True
        self._answer()
        return await super().compare_and_set_many(requests)

    def _answer(self) -> None:
        if self.away:
            raise Indeterminate("the store is away")


class CopyingEngine(ListEngine):
    """Evaluates a plan that is one `Get`; the next calls of ``evaluate`` and ``stage`` raise what is planned.

    The first of ``meanwhile`` happens while the next ``read`` of ``v`` is under way.
    """

    def __init__(self, blob: MemoryBlob) -> None:
        super().__init__(blob)
        self.fails: deque[BaseException] = deque()
        self.evaluated = 0
        self.meanwhile: deque[Callable[[], Awaitable[None]]] = deque()

    async def read(self, wanted: Contents) -> Rows:
        """See `Engine.read`."""
        if wanted.shard == "v" and self.meanwhile:
            await self.meanwhile.popleft()()
        return await super().read(wanted)

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """See `Engine.evaluate`."""
        self.evaluated += 1
        if self.fails:
            raise self.fails.popleft()
        assert isinstance(node, Get), node
        frame = listed(frames[node.frame])
        return Rows(Listed(frame.names, frame.rows))

    async def stage(self, rows: Rows, request: StageRequest) -> Any:
        """See `Engine.stage`."""
        if self.fails:
            raise self.fails.popleft()
        return await super().stage(rows, request)


class Workshop:
    """One location in memory, an input ``t`` and stages that copy it, or copy each other."""

    def __init__(self) -> None:
        self.blob, self.stores, self.clock = MemoryBlob(), Stores(), HandClock()
        self.engine = CopyingEngine(self.blob)
        self.ids = CountingIds("p")
        self.client = PersistClient(self.clock, self.ids, self.blob, self.stores, grace_ms=None)
        self.upper = 0
        self.input = self.writer("t")
        self.runs: dict[str, StageRun] = {}

    def writer(self, shard: str, epoch: int = 1, client: PersistClient | None = None) -> WriteHandle:
        """Open a shard for writing."""
        return run_sync((client or self.client).writer(shard, epoch, schema=SCHEMA.ddl))

    def process(self) -> PersistClient:
        """Return the client of another process."""
        return PersistClient(self.clock, CountingIds("q"), self.blob, self.stores, grace_ms=None)

    def reader(self, shard: str) -> ReadHandle:
        """Open a shard for reading, in a process of its own."""
        found = run_sync(self.process().reader(shard, SCHEMA, shard))
        assert found is not None
        return found

    def copy(self, name: str, of: str = "t", client: PersistClient | None = None, epoch: int = 1) -> StageRun:
        """Open a stage ``name`` whose contents are those of ``of``."""
        stage = Stage(name, LINEAR, Get(of, (("k", "k"),)), (of,), SCHEMA, (("k", "k"),))
        own = client or self.client
        sink = Sink(self.engine, self.writer(name, epoch, own), SCHEMA, f"copy of {of}")
        run_sync(sink.open())
        reader = run_sync(own.reader(of, SCHEMA, of))
        assert reader is not None
        run = StageRun(stage, self.engine, {of: reader}, sink)
        if client is None:
            self.runs[name] = run
        return run

    def write(self, *changes: tuple[str, int], upper: int | None = None) -> int:
        """Append changes ``(k, diff)`` to the input at its next time; return its upper."""
        run_sync(self.append(*changes, upper=upper))
        return self.upper

    async def append(self, *changes: tuple[str, int], upper: int | None = None) -> None:
        """See `write`."""
        lower, self.upper = self.upper, self.upper + 1 if upper is None else upper
        await append(self.engine, self.input, lower, self.upper, changes)

    def step(self, name: str = "v") -> Any:
        """Step one stage as far as its inputs are known."""
        return run_sync(self.runs[name].step(Frontier(self.upper)))

    def tick(self) -> TickReport:
        """Bring all stages to where the input is."""
        return run_sync(tick(self.client, self.engine, list(self.runs.values()), Frontier(self.upper), in_turn))

    def contents(self, shard: str = "v", at: int | None = None) -> dict[str, int]:
        """Return what a new process reads at a time, or the last complete one; the upper must be the input's."""
        reader = self.reader(shard)
        upper = reader.state.upper
        assert upper == Frontier(self.upper), f"{shard} stands at {upper}, its input at {self.upper}"
        rows = listed(run_sync(self._snapshot(reader, self.upper - 1 if at is None else at))).rows
        found: Counter[str] = Counter()
        for row in rows:
            found[row["k"]] += row["__diff"]
        return {key: count for key, count in found.items() if count}

    async def _snapshot(self, reader: ReadHandle, at: int) -> Rows:
        return await self.engine.read(await reader.snapshot(at, timeout_s=0))


async def spoil(shop: Workshop, name: str) -> None:
    """Let another writer reach the next tick's time in a stage's shard first."""
    client = PersistClient(shop.clock, shop.ids, shop.blob, shop.stores, grace_ms=None)
    other = await client.writer(name, 1, schema=SCHEMA.ddl)
    upper = as_time(other.state.upper)
    await append(shop.engine, other, upper, upper + 1, [("wrong", 1)])


async def spoil_and_see(shop: Workshop, name: str) -> None:
    """Do so, and let this process hear of it, as from a merge beside the tick."""
    await spoil(shop, name)
    await shop.runs[name].sink.writer.refresh()


async def append(
    engine: ListEngine, writer: WriteHandle, lower: int, upper: int, changes: Sequence[tuple[str, int]]
) -> None:
    """Append changes ``(k, diff)`` at time ``upper - 1``."""
    rows = updates(SCHEMA, ({"k": k, "__time": upper - 1, "__diff": diff} for k, diff in changes))
    request = StageRequest(writer.shard, SCHEMA, lower, upper, writer.stage_prefix(), inline_bytes_max=1 << 14)
    staged = [await ListEngine.stage(engine, rows, request)] if changes else []
    await writer.compare_and_append(staged, Frontier(lower), Frontier(upper))
