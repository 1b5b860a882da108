"""What worlds of one source have in common: its ingesters' processes, stores and clocks, and the laws of its remap.

Ingesters run side by side under one epoch, take over from each other, crash at any I/O and begin anew, each with a
clock of its own that runs, stands still or jumps.  What a world's upstream is, and what its outputs must hold, it says
itself.  Users: `ingesters.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final
from unittest import mock

import msgspec

from laws.broken import judged, require
from strandline.algebra.schema import DIFF, TIME, Schema
from strandline.frontier import Offsets, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.read import contents
from strandline.persist.handles.records import Record, RecordShard
from strandline.persist.shard import machine, patience
from strandline.sources.ingest import PERIOD_MS, Ingestion
from strandline.sources.reclock import NOTHING_READ, Remap, Slice
from strandline.sources.steps import OutputShard
from strandline.store.memory import MemoryBlob
from strandline.store.unreliable import Choose
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.simulation.kernel import START_MS, WAIT, Fate, IoPoint, Simulation, run_sync
from strandline.testing.simulation.places import SimBlob, SimConsensus, SimIds
from strandline.testing.upstreams.list_tables import Place
from worlds.seats import Told

REMAP: Final = "remap"
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


class IngestedWorld:
    """One run.  Add users by `spawn`, then `run`.

    ``outputs``: those that the source is commanded to have, by the epoch from which on it is.  ``shards``: where each
    is kept.
    """

    schema: Schema
    at_first: tuple[str, ...]
    shards: Mapping[str, str]

    def __init__(self, choose: Choose, calm_after: int | None, patience: int) -> None:
        self.simulation = Simulation(choose, tuple(Fate), calm_after, STEPS_MAX)
        self.marks: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.generation = 1
        self.outputs = {1: self.at_first}
        self.ingesters = 1
        self.bound: dict[int, Offsets] = {}
        self.patience = patience
        self.places = MemoryBlob(), Told({}, lambda shard: run_sync(self.committed(shard)))
        self._stores = SimBlob(self.places[0]), SimConsensus(self.places[1])
        self._ids = SimIds()

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

    def command(self, tables: tuple[str, ...]) -> None:
        """Command other outputs.

        Under a newer epoch, unless the one ingester that there is ends before it goes on with them: of two under one
        epoch, the one that does not know an output would let upstream forget what it needs.
        """
        self.generation += self.ingesters > 1
        self.outputs[self.generation] = tables

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
        run_sync(self.catch_up())

    # ---- what each world says itself ---------------------------------------------------------------------------------

    async def open(self, client: PersistClient, epoch: int, *, simulated: bool = True) -> tuple[Ingestion, Incarnation]:
        """Open the source as it is commanded now."""
        raise NotImplementedError

    def read_by(self, table: str, each: Slice) -> set[Place]:
        """Return what reading a slice of a table delivers."""
        raise NotImplementedError

    async def catch_up(self) -> None:
        """L2: one that knows nothing gets all that is upstream, once; and upstream may then forget it."""
        raise NotImplementedError

    async def committed(self, shard: str) -> None:
        """Judge what was just committed to a shard."""
        if shard == REMAP:
            await self._bind()

    # ---- processes ---------------------------------------------------------------------------------------------------

    def process(self) -> PersistClient:
        """Start a process."""
        blob, consensus = self._stores
        return PersistClient(Clock(self), self._ids, blob, consensus, ListEngine(blob), rollup_every=8, grace_ms=0)

    def observing(self) -> PersistClient:
        """Return a process to which nothing happens."""
        return PersistClient(HandClock(), CountingIds("observer"), *self.places, rollup_every=8)

    # ---- laws --------------------------------------------------------------------------------------------------------

    async def durable(self, table: str) -> int:
        """Return up to where an output is durable."""
        state = await self.state(self.shards[table])
        return 0 if state is None else as_time(state.upper)

    async def may_forget(self, resume: Offsets, tables: Sequence[str]) -> None:
        """R4: what upstream may forget happened before the last time that all outputs have, known or not."""
        uppers = {table: await self.durable(table) for table in self.shards}
        durable = min(upper for table, upper in uppers.items() if upper or table in tables)
        allowed = self.offsets_at(durable - 1)
        require("R4", resume <= allowed, f"upstream may forget {resume.entries}, all outputs have {allowed.entries}")

    def may_read(self, mine: Incarnation, slices: Sequence[Slice], table: str) -> None:
        """Bounded input reliance: what was durable when this incarnation was opened is not read again."""
        early = [each.time for each in slices if each.time < mine.durable[table]]
        require("reread", not early, f"{table} is durable up to {mine.durable[table]}, and {early} are read")

    def was_read(self, mine: Incarnation, slices: Sequence[Slice], table: str) -> None:
        """Take note of what upstream gave; what it refused, or what it did not answer, was not read."""
        for each in slices:
            found = self.read_by(table, each)
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

    async def _bind(self) -> None:
        """R1: bindings never go back, and a time says for ever what it said first."""
        state = await self.state(REMAP)
        if state is None:
            return
        sums: Counter[tuple[str, int]] = Counter()
        for time, updates in groupby(await self.records_of(REMAP), key=lambda record: record.time):
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

    async def records_of(self, shard: str) -> list[Record]:
        """Return the updates of a record shard, as they are now."""
        client = self.observing()
        await client.reader(shard, self.schema, shard)
        return await RecordShard(client._machines[shard], None, self.places[0]).contents()

    async def state(self, shard: str) -> Any:
        """Return the state of a shard, as it is now; None if it was not made yet."""
        reader = await self.observing().reader(shard, self.schema, shard)
        return None if reader is None else reader.state

    async def rows(self, state: Any, time: int) -> Counter[tuple[Any, ...]]:
        """Return what a shard holds at a time, row by row."""
        held = contents(state, self.schema, 0, time + 1, advance=as_time(state.since))
        found: Counter[tuple[Any, ...]] = Counter()
        for row in listed(await ListEngine(self.places[0]).read(held)).rows:
            if row[TIME] <= time:
                found[tuple(row[name] for name in self.schema.names)] += row[DIFF]
        return Counter({row: count for row, count in found.items() if count})


def read_before(delivered: Iterable[Place], remap: Remap, outputs: Iterable[OutputShard]) -> set[Place]:
    """Return what an incarnation can know as read before, of what was ``delivered`` when it had opened its outputs.

    Nothing was read for an output that it made; of any other one, all that it found bound may have been.
    """
    there = {each.table for each in outputs if not each.data.made}
    return {place for place in delivered if place[0] in there and remap.time_of(place[1], place[2]) is not None}


class Clock:
    """A process's clock: it runs, stands still, or jumps whenever it is read."""

    def __init__(self, world: IngestedWorld) -> None:
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
