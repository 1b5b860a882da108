"""`strandline bench environment`: what ticks leave behind, and whether ticks become more expensive over time.

An environment with a table, a source and three views (one of accumulators, one of a join, one that regroups) is ticked
very often.  The number of live rows is constant: each tick replaces a row of the table, and the source inserts one row
and withdraws an old one.  So only history grows, and the environment must release it.

It runs twice: over lists and memory stores, so that very many ticks take minutes, and over files and Spark.  The clock
advances by an hour per tick, so the grace period of a day and the history both expire within the run.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import pyarrow as pa

from strandline.algebra.schema import Column, Schema
from strandline.controller.assembly import Assembly
from strandline.controller.core import Core
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import CreateSource, CreateTable, CreateView
from strandline.controller.location.config import Config, Mode
from strandline.controller.location.items import Collected, View
from strandline.errors import ConfigError, Position
from strandline.frontier import Offsets, as_time
from strandline.instance.commands import RunIngestion
from strandline.instance.tables import Change, Statement
from strandline.materialize.driver import Driver
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Contents, Rows
from strandline.persist.handles.read import contents
from strandline.persist.shard.evolution import parse_schema
from strandline.persist.shard.state import ShardState
from strandline.plane import Engine
from strandline.sources.reader import Records, SourceReader, TakenBack
from strandline.sources.reclock import Slice
from strandline.sources.remap import RemapShard
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Versioned
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import list_assembly
from strandline.testing.lists.list_engine import ListEngine
from strandline.wiring.assemble import assemble

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TICKS: Final = 100_000
FILE_TICKS: Final = 2_000
BINDINGS: Final = 100_000
TICK_MS: Final = 3_600_000
KEPT_TICKS: Final = 24
ROWS: Final = 32
"""How many rows the table and the source each have."""
GROUPS: Final = 8
TENTHS: Final = 10
SAMPLES: Final = 50
"""How often bytes are counted in each tenth."""
MINTS: Final = 1_000
START_MS: Final = 1_700_000_000_000

ITEMS: Final = "id INT, grp INT, amount BIGINT"
EVENTS: Final = Schema((Column("id", "int"), Column("value", "bigint")))
VIEWS: Final[Mapping[str, str]] = {
    "totals": "SELECT grp, count(*) AS n, sum(amount) AS amount FROM items GROUP BY grp",
    "matched": "SELECT i.id, i.amount, e.value FROM items i JOIN events e ON i.id = e.id",
    "highest": "SELECT grp, max(amount) AS top FROM items GROUP BY grp",
}
_TEXT: Final = Position(1, 1)


def grow(
    session: SparkSession,
    directory: Path,
    *,
    ticks: int = TICKS,
    file_ticks: int = FILE_TICKS,
    bindings: int = BINDINGS,
) -> dict[str, Any]:
    """Measure both environments, in ``directory``, and mints; return every figure.

    At the top are the figures over lists: ``updates_kept`` in all shards of the items; ``live_rows``;
    ``window_updates``: those of the updates that history must keep; ``tick_ratio``: mean processor time of a tick in
    the last tenth ÷ in the second (of this process and its JVM, because the machine may do other work);
    ``read_ratio``: the same of the updates that were read; ``disk_ratio``: bytes stored in the last tenth ÷ in the
    second.  ``files`` has the same over files and Spark.  ``mint_ms`` and ``mint_ms_p50``: mean and median of the last
    mints, with ``bindings`` of them there and none durable.
    """
    lists = asyncio.run(grown(over_lists(), ticks))
    files = asyncio.run(grown(over_files(session, directory), file_ticks))
    return {**lists, "files": files, **asyncio.run(mints(bindings)), "bindings": bindings}


@dataclass(frozen=True)
class Place:
    """The setting of a run: the environment's parts, its clock, and the bytes stored and updates read so far."""

    assembly: Assembly
    clock: HandClock
    stored: Callable[[], int]
    read: Callable[[], int] = lambda: 0


def over_lists() -> Place:
    """Return a place in memory, with the engine over lists."""
    objects: dict[str, bytes] = {}
    versions: dict[str, list[Versioned]] = {}
    blob, clock = MemoryBlob(objects), HandClock(START_MS)
    engine = _Counting(blob)
    assembly = list_assembly(
        clock,
        CountingIds("bench"),
        blob,
        MemoryConsensus(versions),
        engine=engine,
        connectors=_Tides(engine),
        drivers=_no_endpoint,
    )

    def stored() -> int:
        return sum(map(len, objects.values())) + sum(len(each.data) for some in versions.values() for each in some)

    return Place(assembly, clock, stored, lambda: engine.read_updates)


def over_files(session: SparkSession, directory: Path) -> Place:
    """Return a place in ``directory``, with Spark and a simulated clock."""
    clock = HandClock(START_MS)
    opened = assemble(directory.as_uri(), spark=session, consensus=None, config=Config())
    assembly = replace(opened, clock=clock, connectors=cast("Any", _Tides(opened.engine)))
    return Place(assembly, clock, lambda: sum(f.stat().st_size for f in directory.rglob("*") if f.is_file()))


class _Counting(ListEngine):
    """Counts the updates in the batches that are read."""

    read_updates = 0

    async def read(self, contents: Contents) -> Rows:
        self.read_updates += contents.rows
        return await super().read(contents)


@dataclass(frozen=True)
class _Tides:
    """What `Connectors` are asked of one source: see `_Tide`."""

    engine: Engine

    def check(self, *_: object) -> None:
        """See `Connectors.check`: it is as it should be."""

    def resolve(self, *_: object) -> None:
        """See `Connectors.resolve`: nothing is referred to."""

    def alterable(self, *_: object) -> tuple[str, ...]:
        """See `Connectors.alterable`: nothing is."""
        return ()

    async def ask(self, *_: object) -> None:
        """See `Connectors.ask`: it is there."""

    def counts(self, connector: str) -> str:
        """See `Connectors.counts`."""
        return "rows"

    def shares(self, source: RunIngestion) -> bool:
        """See `Connectors.shares`."""
        return False

    def connections(self, connector: str) -> Mapping[str, str]:
        """See `Connectors.connections`: there are none."""
        return {}

    async def reader(self, source: RunIngestion, client: PersistClient, epoch: int) -> SourceReader:
        """See `Connectors.reader`."""
        return _Tide(self.engine)


class _Tide:
    """A `SourceReader` of two messages per probe: one inserts a row, the other withdraws the oldest."""

    bounded = False

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._brought = 0

    def records(self, table: str) -> Records:
        return TakenBack()

    async def snapshot(self, table: str) -> Offsets | None:
        return None

    async def upstream_frontier(self) -> Offsets:
        self._brought += 1
        return Offsets({"": self._brought})

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        frames = []
        for each in slices:
            numbers = range(each.lower[""], each.upper[""])
            old = [n - ROWS for n in numbers if n >= ROWS]
            frames += [await self._rows(each.time, 1, numbers), await self._rows(each.time, -1, old)]
        return await self._engine.union(EVENTS, frames, advance=0, negate=[False] * len(frames))

    async def _rows(self, time: int, diff: int, numbers: Sequence[int]) -> Rows:
        columns = {"id": pa.array([n % ROWS for n in numbers], pa.int32()), "value": pa.array(numbers, pa.int64())}
        return await self._engine.local(pa.table(columns), EVENTS, time=time, diff=diff)

    async def commit(self, resume: Offsets) -> None:
        pass

    async def close(self) -> None:
        pass

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        return True

    def notices(self) -> tuple[str, ...]:
        return ()


def _no_endpoint(endpoint: str, options: Mapping[str, str]) -> Driver:
    raise ConfigError(f"there is no endpoint {endpoint!r} here, with options {sorted(options)} or without")


@dataclass
class _Tenth:
    """The cost of the ticks of one tenth."""

    took_s: list[float] = field(default_factory=list)
    used_s: list[float] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    read: int = 0


async def grown(place: Place, ticks: int, *, kept_ticks: int = KEPT_TICKS) -> dict[str, Any]:
    """Tick an environment at ``place`` and return its size and cost: see `grow`.

    ``kept_ticks``: for how many ticks history is kept.
    """
    config = Config(keep_history=f"{kept_ticks * TICK_MS} ms")
    core = await Core.open(place.assembly, config, Mode.FULL)
    try:
        await _define(core)
        tenths = [_Tenth() for _ in range(TENTHS)]
        for n in range(ticks):
            tenth = tenths[n * TENTHS // ticks]
            place.clock.now += TICK_MS
            read, begun, used_s = place.read(), time.perf_counter(), _processor_s()
            await _change(core, n)
            await core.tick()
            await core.merge()
            tenth.took_s.append(time.perf_counter() - begun)
            tenth.used_s.append(_processor_s() - used_s)
            tenth.read += place.read() - read
            if n % max(1, ticks // TENTHS // SAMPLES) == 0:
                tenth.stored.append(place.stored())
        problems = core.health.problems()
        assert not problems, f"the environment has problems: {problems}"
        kept = await _kept(core)
    finally:
        await core.close()
        place.assembly.close()
    return {"ticks": ticks, "kept_ticks": kept_ticks, **kept, **_ratios(tenths)}


def _ratios(tenths: Sequence[_Tenth]) -> dict[str, Any]:
    second, last = tenths[1], tenths[-1]
    return {
        "tick_ms": round(statistics.fmean(last.took_s) * 1000, 3),
        "tick_processor_ms": round(statistics.fmean(last.used_s) * 1000, 3),
        "tick_ratio": round(statistics.fmean(last.used_s) / statistics.fmean(second.used_s), 3),
        "read_ratio": round(last.read / max(1, second.read), 3),
        "read_per_tick": round(last.read / len(last.took_s), 1),
        "disk_bytes": round(statistics.fmean(last.stored)),
        "disk_ratio": round(statistics.fmean(last.stored) / statistics.fmean(second.stored), 3),
    }


def _processor_s() -> float:
    """Return the processor time of this process and, where the system shows it, of its children (Spark's JVM)."""
    used_s = time.process_time()
    for children in Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            with suppress(OSError):  # it has ended
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                used_s += sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")
    return used_s


async def _define(core: Core) -> None:
    await create(core, CreateTable("items", ITEMS))
    await create(core, CreateSource("events", EVENTS.ddl, "tide", {}))
    for name, query in VIEWS.items():
        await create(core, CreateView(name, query, _TEXT))


async def _change(core: Core, n: int) -> None:
    """Replace the row of the table that was inserted `ROWS` ticks ago."""
    table = core.table("items")
    inserted = await core.engine.local(_items([n]), table.schema, time=0, diff=1)
    changes: list[Change | Statement] = [Change(table, inserted, False, 1)]
    if n >= ROWS:
        deleted = await core.engine.local(_items([n - ROWS]), table.schema, time=0, diff=-1)
        changes.append(Change(table, deleted, True, 1))
    await core.commit(changes, token=None)


def _items(numbers: Sequence[int]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array([n % ROWS for n in numbers], pa.int32()),
            "grp": pa.array([n % GROUPS for n in numbers], pa.int32()),
            "amount": pa.array(numbers, pa.int64()),
        }
    )


async def _kept(core: Core) -> dict[str, Any]:
    """Count the updates in the shards of collections and stages: all, the live ones, and those that history keeps."""
    kept = live = window = 0
    for item in core.catalog.items.values():
        assert isinstance(item, Collected), "nothing else was defined"
        stages = item.stages.values() if isinstance(item, View) else ()
        for shard in (item.shard, *stages):
            state = core.client.state_of(shard)
            kept += sum(batch.rows for batch in state.batches)
            live += sum(batch.diffs for batch in state.batches)
            window += await _window(core, state)
    return {"updates_kept": kept, "live_rows": live, "window_updates": window}


async def _window(core: Core, state: ShardState) -> int:
    """Return how many updates of a shard are after its since, where history keeps times distinct."""
    schema = parse_schema(state.schema)
    assert schema is not None, "a shard of rows says of which"
    recent = contents(state, schema, as_time(state.since) + 1, as_time(state.upper), advance=0)
    return len(await core.engine.collect(await core.engine.read(recent)))


async def mints(bindings: int) -> dict[str, float]:
    """Return the cost of binding a time if there are ``bindings`` and none of them is durable."""
    client = PersistClient(HandClock(START_MS), CountingIds("mints"), MemoryBlob(), MemoryConsensus(), grace_ms=0)
    remap = await RemapShard.open(await client.records("remap", 1), 1)
    took_ms = []
    for n in range(bindings + MINTS):
        begun = time.perf_counter()
        await remap.mint(n * 1000, Offsets({"": n + 1}))
        took_ms.append((time.perf_counter() - begun) * 1000)
    last = took_ms[-MINTS:]
    return {"mint_ms": round(statistics.fmean(last), 4), "mint_ms_p50": round(statistics.median(last), 4)}
