"""The world of sources with several outputs: one upstream of tables that keeps no past, and its ingesters.

Partitions come, move and are announced out of order.  What is committed upstream is gone; a snapshot ends with its
connection.  A table is added on the way.  Meanwhile the remap lets go of its past, as an environment's does.  What
happens to its ingesters: `ingested.py`.  Users: `tables_users.py`.

At each commit every output is held against upstream's own history; in the end one that knows nothing must get all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Final

from laws.broken import require
from strandline.frontier import Offsets, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Rows
from strandline.sources.ingest import PERIOD_MS, Ingestion
from strandline.sources.reader import Records
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard, Stalled
from strandline.store.unreliable import Choose
from strandline.testing.doubles import HandClock
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.simulation.kernel import CHANGE, READ
from strandline.testing.upstreams.list_tables import SCHEMA, Change, Place, Row, Tables, TablesReader
from worlds.ingested import REMAP, Incarnation, IngestedWorld, read_before
from worlds.outside import asked

FIRST: Final = ("accounts", "owners")
LATER: Final = "cards"
PARTITIONS: Final = ("p", "q", "r")
KEYS: Final = 4


class TablesWorld(IngestedWorld):
    """One run.  See `IngestedWorld`."""

    schema = SCHEMA
    at_first = FIRST
    shards: ClassVar = {table: table for table in (*FIRST, LATER)}

    def __init__(
        self, choose: Choose, *, keyed: bool = False, calm_after: int | None = None, patience: int = 1
    ) -> None:
        super().__init__(choose, calm_after, patience)
        self.upstream = Tables(keyed=keyed)
        self.now: dict[str, dict[int, int]] = {table: {} for table in self.shards}
        self.first: dict[str, int] = {}  # when each output begins
        self._produced = 0
        for table in self.now:
            self.change("p", table)
        self.upstream.begin_log()

    async def open(self, client: PersistClient, epoch: int, *, simulated: bool = True) -> tuple[Ingestion, Incarnation]:
        """Open the source as it is commanded now."""
        mine = Incarnation(self.commanded(epoch))
        remap = await RemapShard.open(await client.records(REMAP, epoch), epoch)
        outputs = [
            OutputShard(table, SCHEMA, await client.writer(table, epoch, schema=SCHEMA.ddl)) for table in mine.tables
        ]
        mine.read = read_before(self.upstream.delivered, remap.remap, outputs)
        reader = Reader(self, mine) if simulated else TablesReader(self.upstream)
        engine = ListEngine(client.blob)
        mine.durable = {table: await self.durable(table) for table in mine.tables}
        return await Ingestion.open(client.clock, engine, reader, remap, outputs, name="s"), mine

    def read_by(self, table: str, each: Slice) -> set[Place]:
        """Return what reading a slice of a table delivers; a snapshot is none of it."""
        if each.lower == NOTHING_READ:
            return set()
        return {(table, p, offset) for p, offset, _ in self.upstream.between(table, each.lower, each.upper)}

    def change(self, partition: str, table: str, *, announce: bool = True) -> None:
        """Let a row of ``table`` come, or change, or go; a key keeps to one partition."""
        self._produced += 1
        key = self._produced % KEYS * len(PARTITIONS) + PARTITIONS.index(partition)
        old, new = self.now[table].pop(key, None), self._produced
        stays = old is None or self._produced % 5
        if self.upstream.keyed:
            changes = [Change(table, key, new if stays else None)]
        else:
            changes = [Change(table, key, new)] if stays else []
            changes += [] if old is None else [Change(table, key, old, -1)]
        if stays:
            self.now[table][key] = new
        self.upstream.produce(partition, *changes, announce=announce)

    # ---- laws --------------------------------------------------------------------------------------------------------

    async def committed(self, shard: str) -> None:
        """Judge what was just committed to a shard."""
        await super().committed(shard)
        if shard in self.now:
            await self._hold(shard)

    async def _hold(self, table: str) -> None:
        """R2, R3: at each readable time an output holds what is bound by then, each record once."""
        state, remap = await self.state(table), await self.state(REMAP)
        assert state is not None
        assert remap is not None
        upper = as_time(state.upper)
        require("R2", state.upper <= remap.upper, f"{table} is durable up to {upper}, {remap.upper} is bound")
        if not upper:
            return
        began = self.first.setdefault(table, upper - 1)
        times = {t for b in self.bound for t in (b - 1, b) if as_time(state.since) <= t < upper}
        for time in sorted(times | {upper - 1}):
            found = await self.rows(state, time)
            wanted = self.upstream.held(table, self.offsets_at(time)) if time >= began else Counter()
            require("R2", found == wanted, f"{table} at {time} is {dict(found)}; {dict(wanted)} is bound")

    async def catch_up(self) -> None:
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
            state = await self.state(table)
            found, wanted = await self.rows(state, as_time(state.upper) - 1), self._upstream_rows(table)
            require("L2", found == wanted, f"in the end {table} is {dict(found)}, and {dict(wanted)} is upstream")
        kept = self.upstream.end() != self.upstream.forgotten
        require("L2", not kept, f"upstream still keeps what is after {self.upstream.forgotten}")

    def _upstream_rows(self, table: str) -> Counter[Row]:
        return Counter(dict.fromkeys(self.now[table].items(), 1))


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
            self._world.may_read(self._mine, slices, table)
            return await self._inner.read(slices, table=table, locate=locate)

        rows: Rows = await asked("upstream.read", read, ((tuple(slices), table),), READ)
        self._world.was_read(self._mine, slices, table)
        return rows

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
