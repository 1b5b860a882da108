"""A small world of sources: one upstream, which deletes messages as soon as it may, and its ingesters.

Some ingest under one epoch, side by side; another one takes over under a newer one; an ingester that crashes begins
anew.  Meanwhile messages come, and the remap releases its past as the data become durable.  At each commit the source
is held against upstream's own messages; in the end one that knows nothing must get all of them, once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from typing import Any, Final, TypeVar

import msgspec

from laws.broken import require
from strandline.algebra.schema import DIFF, TIME
from strandline.errors import Unavailable
from strandline.frontier import Frontier, Offsets, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Rows
from strandline.persist.handles.read import ReadHandle, SinceHandle, contents
from strandline.persist.handles.records import RecordShard
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.codec import encode_rollup
from strandline.sources.ingest import PERIOD_MS, Ingestion
from strandline.sources.reader import Records
from strandline.sources.reclock import Slice
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard, Stalled
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.unreliable import Choose
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, listed
from strandline.testing.lists.list_source import SCHEMA as MESSAGES
from strandline.testing.lists.list_source import ListReader, Upstream
from strandline.testing.simulation.exploration import Arrived
from strandline.testing.simulation.kernel import CHANGE, READ, Fate, IoPoint, run_sync
from worlds.meanings import Row
from worlds.outside import asked
from worlds.seats import ROLLUP_EVERY, Doing, Model, Places, Room

T = TypeVar("T")

DATA: Final = "data"
REMAP: Final = "remap"
HISTORY: Final = "history"
EPOCH: Final = 1
BEGUN: Final = (("p", (3, 1)), ("q", (2,)))
"""Which messages are there from the beginning."""


@dataclass(eq=False)
class Seat:
    """A user at work: its process, the epoch that it opens under, and what it has open."""

    name: str
    client: PersistClient
    epoch: int | None = None
    remap: RemapShard | None = None
    data: WriteHandle | None = None
    ingestion: Ingestion | None = None
    hold: SinceHandle | None = None


class SourceWorld(Room[Seat]):
    """One run of ``users``, each of which does its task ``operations`` times."""

    def __init__(self, choose: Choose, arrived: Arrived, users: Mapping[str, Doing[Seat]], operations: int) -> None:
        super().__init__(choose, arrived, operations, _opened())
        self.upstream = Upstream()
        for partition, values in BEGUN:
            self.upstream.produce(partition, *values)
        self._observer = self.observing()
        self._data: ReadHandle | None = None
        self._users = users
        seats = {name: Seat(name, self.process(name, ListEngine)) for name in users}
        for name, do in users.items():
            if do is not take_over:
                run_sync(self._open_for(seats[name], do))
        self.seat(users, seats)

    async def sit(self, name: str) -> Seat:
        """Open anew: an ingester under a newer epoch."""
        do = self._users[name]
        seat = Seat(name, self.process(name, ListEngine), self.fresh_epoch() if do in INGESTING else EPOCH)
        await self._open_for(seat, do)
        return seat

    async def _open_for(self, seat: Seat, do: Doing[Seat]) -> None:
        if do in INGESTING:
            await self.open(seat)
        elif do is let_go:
            seat.data = await seat.client.writer(DATA, EPOCH, schema=MESSAGES.ddl)
            seat.hold = await seat.client.since(REMAP, HISTORY, EPOCH)

    async def open(self, seat: Seat) -> None:
        """Open the source under the user's epoch."""
        epoch = EPOCH if seat.epoch is None else seat.epoch
        seat.remap = await RemapShard.open(await seat.client.records(REMAP, epoch), epoch)
        seat.data = await seat.client.writer(DATA, epoch, schema=MESSAGES.ddl)
        reader, engine = _Reader(self), ListEngine(seat.client.blob)
        output = OutputShard("", MESSAGES, seat.data)
        seat.ingestion = await Ingestion.open(_Leaping(), engine, reader, seat.remap, [output], name="s")

    def memory(self, seat: Seat) -> Hashable:
        """Return the newest states that it knows, its bindings, and what it may have read before."""
        if seat.data is None:
            return seat.epoch
        states = encode_rollup("", seat.data.state), tuple(seat.data._idle), seat.epoch
        if seat.remap is None or seat.ingestion is None:
            assert seat.hold is not None
            return *states, seat.hold.since.at
        shard = seat.remap._shard
        bound = repr(seat.remap.remap), encode_rollup("", shard.state), tuple(shard._writer._idle)
        return *states, *bound, seat.ingestion._steps[""]._begun.at

    def facts(self) -> Hashable:
        """Return what is upstream, and what was forgotten there."""
        return tuple((p, tuple(values)) for p, values in self.upstream.partitions.items()), self.upstream.forgotten

    async def committed(self, shard: str) -> None:
        """R1, R2, R3: at each readable time the source holds the messages that are bound by then, once each."""
        bound = await self._bound()
        offsets = [{"p": 0, "q": 0} | entries for _, entries in sorted(bound.items())]
        back = [later for earlier, later in pairwise(offsets) if any(later[p] < earlier[p] for p in earlier)]
        require("R1", not back, f"a binding goes back to {back[:1]}")
        if self._data is None:
            self._data = await self._observer.reader(DATA, MESSAGES, "source")
        assert self._data is not None
        state = await self._data.refresh()
        machine = self._observer._machine(REMAP)
        require("R2", state.upper <= machine.state.upper, f"{state.upper} is durable, {machine.state.upper} is bound")
        for time in range(max(as_time(state.since), as_time(machine.state.since)), as_time(state.upper)):
            covered = bound.get(max((t for t in bound if t <= time), default=-1), {})
            wanted = Counter(
                (p, i, value) for p, end in covered.items() for i, value in enumerate(self.upstream.partitions[p][:end])
            )
            found = await self._held(self._data, time)
            require("R2", found == wanted, f"the source at {time} is {dict(found)}; {dict(wanted)} is bound")

    async def may_forget(self, resume: Offsets) -> None:
        """R4: what upstream may forget is durable here."""
        if self._data is None:
            self._data = await self._observer.reader(DATA, MESSAGES, "source")
        assert self._data is not None
        upper = as_time((await self._data.refresh()).upper)
        held = await self._held(self._data, upper - 1) if upper else Counter()
        ends = Counter(partition for partition, _, _ in held)
        lost = [(partition, end) for partition, end in resume.entries if ends[partition] < end]
        require("R4", not lost, f"upstream may forget {lost}, and {dict(ends)} is durable")

    async def catch_up(self) -> None:
        """L2: one that knows nothing gets all that is upstream, once."""
        seat = Seat("last", self.observing(), self.fresh_epoch())
        self.begun = False
        await self.open(seat)
        assert seat.ingestion is not None
        assert seat.remap is not None
        await bind_and_step(seat.ingestion, seat.remap)
        assert self._data is not None
        upper = as_time((await self._data.refresh()).upper)
        found = await self._held(self._data, upper - 1)
        wanted = Counter((p, i, v) for p, values in self.upstream.partitions.items() for i, v in enumerate(values))
        require("L2", found == wanted, f"in the end the source is {dict(found)}, and {dict(wanted)} is upstream")

    async def _bound(self) -> dict[int, dict[str, int]]:
        """Return the offsets that are bound, by time."""
        machine = self._observer._machine(REMAP)
        await machine.open(create=False)
        await machine.refresh()
        bound: dict[int, dict[str, int]] = {}
        sums: Counter[tuple[str, int]] = Counter()
        for record in await RecordShard(machine, None, self.places[0]).contents():
            sums[tuple(msgspec.json.decode(record.data))] += record.diff
            there = [entry for entry, count in sums.items() if count]
            bound[record.time] = dict(there)
            whole = len(bound[record.time]) == len(there) or record.diff < 0
            require("R1", whole or record.diff > 0, f"two offsets of one partition are bound: {there}")
        return bound

    async def _held(self, reader: ReadHandle, time: int) -> Counter[Row]:
        state = reader.state
        held = contents(state, MESSAGES, 0, time + 1, advance=as_time(state.since))
        found: Counter[Row] = Counter()
        for row in listed(await ListEngine(self.places[0]).read(held)).rows:
            if row[TIME] <= time:
                found[tuple(row[name] for name in MESSAGES.names)] += row[DIFF]
        return Counter({row: count for row, count in found.items() if count})


@dataclass(frozen=True)
class _Read:
    """What was read: equal to what says the same."""

    told: str
    rows: Rows = field(compare=False)


class _Reader:
    """A `SourceReader` whose every call is an I/O point, but for what opens a source."""

    bounded = True

    def __init__(self, world: SourceWorld) -> None:
        self._world = world
        self._inner = ListReader(world.upstream)

    def records(self, table: str) -> Records:
        """See `SourceReader.records`."""
        return self._inner.records(table)

    async def snapshot(self, table: str) -> Offsets | None:
        """See `SourceReader.snapshot`."""
        return await self._inner.snapshot(table)

    async def upstream_frontier(self) -> Offsets:
        """See `SourceReader.upstream_frontier`."""
        return await self._ask("frontier", self._inner.upstream_frontier, (), READ)

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """See `SourceReader.read`."""

        async def read(_: object) -> _Read:
            rows = await self._inner.read(slices, table=table, locate=locate)
            return _Read(repr(listed(rows)), rows)

        return (await self._ask("read", read, (tuple(slices),), READ)).rows

    async def commit(self, resume: Offsets) -> None:
        """See `SourceReader.commit`."""

        async def commit(offsets: Offsets) -> None:
            await self._world.may_forget(offsets)
            await self._inner.commit(offsets)

        await self._ask("commit", commit, (resume,), CHANGE)

    async def close(self) -> None:
        """See `SourceReader.close`."""

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """See `SourceReader.likely_small`."""
        return True

    def notices(self) -> tuple[str, ...]:
        """See `SourceReader.notices`."""
        return ()

    async def _ask(
        self, what: str, call: Callable[..., Coroutine[Any, Any, T]], arguments: tuple[object, ...], fates: tuple
    ) -> T:
        if not self._world.begun:
            return await call(*arguments)
        return await asked(f"upstream.{what}", call, arguments, fates)


class _Leaping(HandClock):
    """A clock by which upstream is due to be told whenever that is looked at."""

    def now_ms(self) -> int:
        """Return a time that is a period later than the last."""
        self.now += PERIOD_MS
        return self.now


@cache
def _opened() -> Places:
    """Return places for every run to begin with: a source that has bound and read nothing."""
    objects: dict[str, bytes] = {}
    versions: dict[str, list] = {}
    client = PersistClient(
        HandClock(), CountingIds(), MemoryBlob(objects), MemoryConsensus(versions), rollup_every=ROLLUP_EVERY
    )

    async def begin() -> None:
        await client.records(REMAP, EPOCH)
        await client.writer(DATA, EPOCH, schema=MESSAGES.ddl)
        await client.since(REMAP, HISTORY, EPOCH)

    run_sync(begin())
    return objects, versions


async def bind_and_step(ingestion: Ingestion, remap: RemapShard) -> None:
    """Bind the next time, and make all that is bound durable.  Raises `Unavailable` where upstream stalls it."""
    for outcome in (await ingestion.tick(as_time(remap.remap.upper)), await ingestion.catch_up()):
        if isinstance(outcome, Stalled):
            raise Unavailable(str(outcome.error)) from outcome.error
    behind = not remap.remap.upper <= ingestion.upper
    require("silent", not behind, f"{remap.remap.upper} is bound, {ingestion.upper} is durable, and nothing is said")


# ---- users -----------------------------------------------------------------------------------------------------------


async def ingest(world: SourceWorld, seat: Seat) -> None:
    """Bind the next time, and make all that is bound durable."""
    assert seat.ingestion is not None
    assert seat.remap is not None
    await bind_and_step(seat.ingestion, seat.remap)


async def take_over(world: SourceWorld, seat: Seat) -> None:
    """Open under a newer epoch, and do the same."""
    if seat.epoch is None:
        seat.epoch = world.fresh_epoch()
    if seat.ingestion is None:
        await world.open(seat)
    await ingest(world, seat)


async def come(world: SourceWorld, seat: Seat) -> None:
    """Let a message come to one of the partitions, and one to a new one."""
    at = world.done[seat.name]

    def produce() -> None:
        world.upstream.produce("p", 7 + at)
        world.upstream.produce("r", 9 + at)

    await IoPoint("outside", (), produce, (Fate.DONE,))


async def let_go(world: SourceWorld, seat: Seat) -> None:
    """Let the remap forget when things happened that are durable, as an environment does at its ticks."""
    assert seat.data is not None
    assert seat.hold is not None
    upper = as_time((await seat.data.refresh()).upper)
    await seat.hold.downgrade(Frontier(max(0, upper - 1)))


INGESTING: Final = (ingest, take_over)
_TWO: Final[dict[str, Doing[Seat]]] = {"a": ingest, "b": ingest}
_TAKEN: Final[dict[str, Doing[Seat]]] = {"a": ingest, "b": take_over}
_COME: Final[dict[str, Doing[Seat]]] = {"o": come}
_LET: Final[dict[str, Doing[Seat]]] = {"l": let_go}
COMING: Final = Model(SourceWorld, {"a": ingest} | _COME, 2, 1)
SOURCE_MODELS: Final = (
    Model(SourceWorld, _TWO, 1, 0),
    Model(SourceWorld, _TAKEN, 1, 0),
    Model(SourceWorld, {"a": ingest} | _LET, 2, 0),
)
"""What takes seconds, beside `COMING`, which is searched where bugs are planted in it."""
SOURCE_MODELS_LONG: Final = (
    COMING,
    Model(SourceWorld, {"a": ingest} | _COME | _LET, 2, 1),
    Model(SourceWorld, _TWO, 1, 1),
    Model(SourceWorld, _TWO | _COME, 1, 0),
    Model(SourceWorld, _TAKEN, 1, 1),
)
"""What takes minutes."""
