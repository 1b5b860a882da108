"""The world of sources with several outputs: one upstream of tables that keeps no past, and its ingesters.

Partitions come, move and are announced out of order.  What is committed upstream is gone; a snapshot ends with its
connection.  Ingesters run side by side under one epoch, take over from each other, crash at any I/O and begin anew,
each with a clock of its own that runs, stands still or jumps.  A table is added on the way.  Meanwhile the remap lets
go of its past, as an environment's does.  Users: `tables_users.py`.

At each commit every output is held against upstream's own history; in the end one that knows nothing must get all.

Source: design page "sources" (laws R1 to R4; snapshots; resumption).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, TypeVar
from unittest import mock

import msgspec

from laws.broken import judged, require
from strandline.algebra.schema import DIFF, TIME
from strandline.frontier.antichain import as_time
from strandline.frontier.gauge import Offsets
from strandline.persist.client import PersistClient
from strandline.persist.handles.plane import Rows
from strandline.persist.handles.read import contents
from strandline.persist.handles.records import RecordShard
from strandline.persist.shard import machine, patience
from strandline.sources.ingest import Ingestion
from strandline.sources.reader import Records
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.sources.remap import RemapShard
from strandline.sources.resume import PERIOD_MS
from strandline.sources.steps import OutputShard, Stalled
from strandline.store.memory import MemoryBlob
from strandline.store.unreliable import Choose
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.simulation.kernel import (
    CHANGE,
    READ,
    START_MS,
    WAIT,
    Fate,
    IoPoint,
    SimBlob,
    SimConsensus,
    SimIds,
    Simulation,
    run_sync,
)
from strandline.testing.upstreams.list_tables import SCHEMA, Change, Place, Row, Tables, TablesReader
from worlds.outside import asked
from worlds.seats import Told

T = TypeVar("T")

REMAP: Final = "remap"
FIRST: Final = ("accounts", "owners")
LATER: Final = "cards"
PARTITIONS: Final = ("p", "q", "r")
KEYS: Final = 4
STEPS_MAX: Final = 20_000
FAST: Final = 100
"""How much faster clocks run here than a step takes: seconds must pass within a history."""
JUMPS_MS: Final = (0, PERIOD_MS, 3_600_000, -3_600_000)


@dataclass(eq=False)
class Incarnation:
    """One ingestion, from its opening to its end: its outputs, and what was durable when it was opened.

    ``read``: what was read before that, and then by itself.  ``again``: how much of it was read by range again.
    """

    tables: tuple[str, ...]
    durable: Mapping[str, int] = field(default_factory=dict)
    read: set[Place] = field(default_factory=set)
    again: Counter[str] = field(default_factory=Counter)


class TablesWorld:
    """One run.  Add users by `spawn`, then `run`."""

    def __init__(
        self, choose: Choose, *, keyed: bool = False, calm_after: int | None = None, patience: int = 1
    ) -> None:
        self.simulation = Simulation(choose, tuple(Fate), calm_after, STEPS_MAX)
        self.upstream = Tables(keyed=keyed)
        self.rows: dict[str, dict[int, int]] = {table: {} for table in (*FIRST, LATER)}
        self.outputs = {1: FIRST}  # by the epoch from which on they are commanded
        self.marks: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.generation = 1
        self.ingesters = 1
        self.bound: dict[int, Offsets] = {}
        self.first: dict[str, int] = {}  # when each output begins
        self.patience = patience
        self.places = MemoryBlob(), Told({}, lambda shard: run_sync(self._committed(shard)))
        self._stores = SimBlob(self.places[0]), SimConsensus(self.places[1])
        self._ids = SimIds()
        self._produced = 0
        for table in self.rows:
            self.change("p", table)
        self.upstream.begin_log()

    @property
    def acknowledged(self) -> int:
        """How many rounds came to their ends."""
        return self.done.total()

    @property
    def tables(self) -> tuple[str, ...]:
        """The outputs that are commanded now."""
        return self.commanded(self.generation)

    def commanded(self, epoch: int) -> tuple[str, ...]:
        """Return the outputs that are commanded under an epoch."""
        return self.outputs[max(begun for begun in self.outputs if begun <= epoch)]

    def add_output(self, *, under_newer_epoch: bool) -> None:
        """Command one output more.

        Under a newer epoch, unless the one ingester that there is ends before it goes on with that output: of two under
        one epoch, the one that does not know the output would let upstream forget what it needs.
        """
        self.generation += under_newer_epoch
        self.outputs[self.generation] = (*FIRST, LATER)

    def choose(self, label: str, n: int) -> int:
        """Make a choice of this history."""
        return self.simulation.choose(label, n)

    def run(self) -> None:
        """Make the history, and see everything catch up after it.  Raises what it breaks."""
        with (
            mock.patch.object(machine, "CAS_RETRIES_MAX", self.patience),
            mock.patch.object(patience, "ATTEMPTS_MAX", self.patience),
            judged(),
        ):
            self.simulation.drive()
        run_sync(self._catch_up())

    # ---- processes ---------------------------------------------------------------------------------------------------

    def process(self) -> PersistClient:
        """Start a process."""
        blob, consensus = self._stores
        return PersistClient(Clock(self), self._ids, blob, consensus, ListEngine(blob), rollup_every=8, grace_ms=0)

    def observing(self) -> PersistClient:
        """Return a process to which nothing happens."""
        return PersistClient(HandClock(), CountingIds("observer"), *self.places, rollup_every=8)

    async def open(self, client: PersistClient, epoch: int, *, simulated: bool = True) -> tuple[Ingestion, Incarnation]:
        """Open the source as it is commanded now."""
        # What others read from here on, of times that they bind meanwhile, this incarnation cannot know as read before.
        mine = Incarnation(self.commanded(epoch), read=set(self.upstream.delivered))
        remap = await RemapShard.open(await client.records(REMAP, epoch), epoch)
        outputs = []
        for table in mine.tables:
            new = await client.reader(table, SCHEMA, table) is None
            outputs.append(OutputShard(table, SCHEMA, await client.writer(table, epoch, schema=SCHEMA.ddl), new))
        reader = Reader(self, mine) if simulated else TablesReader(self.upstream)
        engine = ListEngine(client.blob)
        mine.durable = {table: await self.durable(table) for table in mine.tables}
        return await Ingestion.open(client.clock, engine, reader, remap, outputs), mine

    def change(self, partition: str, table: str, *, announce: bool = True) -> None:
        """Let a row of ``table`` come, or change, or go; a key keeps to one partition."""
        self._produced += 1
        key = self._produced % KEYS * len(PARTITIONS) + PARTITIONS.index(partition)
        old, new = self.rows[table].pop(key, None), self._produced
        stays = old is None or self._produced % 5
        if self.upstream.keyed:
            changes = [Change(table, key, new if stays else None)]
        else:
            changes = [Change(table, key, new)] if stays else []
            changes += [] if old is None else [Change(table, key, old, -1)]
        if stays:
            self.rows[table][key] = new
        self.upstream.produce(partition, *changes, announce=announce)

    # ---- laws --------------------------------------------------------------------------------------------------------

    async def durable(self, table: str) -> int:
        """Return up to where an output is durable."""
        state = await self._state(table)
        return 0 if state is None else as_time(state.upper)

    async def may_forget(self, resume: Offsets, tables: Sequence[str]) -> None:
        """R4: what upstream may forget happened before the last time that all outputs have, known or not."""
        uppers = {table: await self.durable(table) for table in self.rows}
        durable = min(upper for table, upper in uppers.items() if upper or table in tables)
        allowed = self.offsets_at(durable - 1)
        require("R4", resume <= allowed, f"upstream may forget {resume.entries}, all outputs have {allowed.entries}")

    async def may_read(self, mine: Incarnation, slices: Sequence[Slice], table: str) -> None:
        """Bounded input reliance: what was durable when this incarnation was opened is not read again."""
        early = [each.time for each in slices if each.time < mine.durable[table]]
        require("reread", not early, f"{table} is durable up to {mine.durable[table]}, and {early} are read")
        for each in slices:
            if each.lower != NOTHING_READ:
                found = {(table, p, offset) for p, offset, _ in self.upstream.between(table, each.lower, each.upper)}
                mine.again[table] += len(found & mine.read)
                mine.read |= found

    def counted(self, ingestion: Ingestion, mine: Incarnation) -> None:
        """Records that were read before are counted, and no others than were read."""
        for table, status in ingestion.status.outputs.items():
            hidden = mine.again[table] and not status.reread_records and status.durable_records
            require("reread", not hidden, f"{table}: {mine.again[table]} were read before, none is counted")
            require("reread", status.reread_records <= status.read_records, f"{table}: more read again than read")

    def offsets_at(self, time: int) -> Offsets:
        """Return what happened by ``time``, as the bindings that were ever seen say."""
        return self.bound.get(max((t for t in self.bound if t <= time), default=-1), NOTHING_READ)

    async def _committed(self, shard: str) -> None:
        if shard == REMAP:
            await self._bind()
        elif shard in self.rows:
            await self._hold(shard)

    async def _bind(self) -> None:
        """R1: bindings never go back, and a time says for ever what it said first."""
        state = await self._state(REMAP)
        if state is None:
            return
        sums: Counter[tuple[str, int]] = Counter()
        client = self.observing()
        await client.reader(REMAP, SCHEMA, REMAP)
        records = await RecordShard(client._machines[REMAP], None, self.places[0]).contents()
        for time, updates in groupby(records, key=lambda record: record.time):
            for record in updates:
                sums[tuple(msgspec.json.decode(record.data))] += record.diff
            there = [entry for entry, count in sums.items() if count]
            offsets, known = Offsets(there), self.offsets_at(time)
            require("R1", len(offsets.entries) == len(there), f"two offsets of one partition are bound: {there}")
            if time > max(self.bound, default=-1):
                require("R1", known <= offsets, f"{time} is bound to {offsets}, after {known}")
                self.bound[time] = offsets
            elif time >= as_time(state.since):
                require("R1", known == offsets, f"{time} was bound to {known}, and is to {offsets}")

    async def _hold(self, table: str) -> None:
        """R2, R3: at each readable time an output holds what is bound by then, each record once."""
        state, remap = await self._state(table), await self._state(REMAP)
        assert state is not None
        assert remap is not None
        upper = as_time(state.upper)
        require("R2", state.upper <= remap.upper, f"{table} is durable up to {upper}, {remap.upper} is bound")
        if not upper:
            return
        began = self.first.setdefault(table, upper - 1)
        times = {t for b in self.bound for t in (b - 1, b) if as_time(state.since) <= t < upper}
        for time in sorted(times | {upper - 1}):
            found = await self._rows(state, time)
            wanted = self.upstream.held(table, self.offsets_at(time)) if time >= began else Counter()
            require("R2", found == wanted, f"{table} at {time} is {dict(found)}; {dict(wanted)} is bound")

    async def _catch_up(self) -> None:
        """L2: one that knows nothing gets all that is upstream, once; and upstream may then forget it."""
        for partition in self.upstream.partitions:
            self.upstream.announce(partition)
        self.generation += 1
        client = self.observing()
        ingestion, mine = await self.open(client, self.generation, simulated=False)
        for _ in range(2):
            assert isinstance(client.clock, HandClock)
            client.clock.now += PERIOD_MS
            outcomes = [await ingestion.tick(as_time(ingestion.bound) + 1)]
            outcomes += [await ingestion.catch_up(table) for table in mine.tables]
            stalled = [outcome for outcome in outcomes if isinstance(outcome, Stalled)]
            require("L2", not stalled, f"in the end the source stalls: {stalled}")
        for table in mine.tables:
            state = await self._state(table)
            found, wanted = await self._rows(state, as_time(state.upper) - 1), self._upstream_rows(table)
            require("L2", found == wanted, f"in the end {table} is {dict(found)}, and {dict(wanted)} is upstream")
        kept = self.upstream.end() != self.upstream.forgotten
        require("L2", not kept, f"upstream still keeps what is after {self.upstream.forgotten}")

    def _upstream_rows(self, table: str) -> Counter[Row]:
        return Counter(dict.fromkeys(self.rows[table].items(), 1))

    async def _state(self, shard: str) -> Any:
        reader = await self.observing().reader(shard, SCHEMA, shard)
        return None if reader is None else reader.state

    async def _rows(self, state: Any, time: int) -> Counter[Row]:
        held = contents(state, SCHEMA, 0, time + 1, advance=as_time(state.since))
        found: Counter[Row] = Counter()
        for row in listed(await ListEngine(self.places[0]).read(held)).rows:
            if row[TIME] <= time:
                found[row["key"], row["value"]] += row[DIFF]
        return Counter({row: count for row, count in found.items() if count})


class Clock:
    """A process's clock: it runs, stands still, or jumps whenever it is read."""

    def __init__(self, world: TablesWorld) -> None:
        self._world = world
        self._mode = world.choose("clock", 3)
        self._skew_ms = 0

    def now_ms(self) -> int:
        """Return what it shows."""
        if self._mode == 1:
            return START_MS
        if self._mode == 2:
            self._skew_ms += JUMPS_MS[self._world.choose("jump", len(JUMPS_MS))]
        return START_MS + (self._world.simulation.now_ms - START_MS) * FAST + self._skew_ms

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await IoPoint("clock.sleep", (seconds,), lambda: None, WAIT, delay_ms=1)


class Reader:
    """A `SourceReader` whose every call is an I/O point."""

    bounded = True

    def __init__(self, world: TablesWorld, mine: Incarnation) -> None:
        self._world = world
        self._mine = mine
        self._inner = TablesReader(world.upstream)

    def records(self, table: str) -> Records:
        """See `SourceReader.records`."""
        return self._inner.records(table)

    async def snapshot(self, table: str) -> Offsets | None:
        """See `SourceReader.snapshot`."""
        return await asked("upstream.snapshot", self._inner.snapshot, (table,), READ)

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        return await asked("upstream.frontier", self._inner.upstream_frontier, (), READ)

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""

        async def read(_: object) -> Rows:
            await self._world.may_read(self._mine, slices, table)
            return await self._inner.read(slices, table=table, locate=locate)

        return await asked("upstream.read", read, ((tuple(slices), table),), READ)

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""

        async def commit(offsets: Offsets) -> None:
            await self._world.may_forget(offsets, self._mine.tables)
            await self._inner.commit(offsets)

        await asked("upstream.commit", commit, (resume,), CHANGE)

    async def close(self) -> None:
        """See `SourceReader.close`."""
        await self._inner.close()

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return True

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()
