"""A small world of compute: one input, and the stage of a view over it that several incarnations write, one at a time.

One incarnation steps; another one takes over while it does, or steps under the same epoch; one that crashes begins
anew under a newer one.  Meanwhile the input may go on.  At each commit the view is held against its definition at every
readable time; in the end one that knows nothing must bring it to where the input is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from laws.broken import require
from strandline.algebra.schema import DIFF, TIME
from strandline.compute.sink.actor import Sink
from strandline.compute.stage import Stage, split
from strandline.compute.step import StageRun
from strandline.controller.planning import plan_view
from strandline.frontier import Frontier, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import StageRequest
from strandline.persist.handles.read import ReadHandle, contents
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.codec import encode_rollup
from strandline.persist.shard.state import Appended
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.unreliable import Choose
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_assembly import ListAnalyst
from strandline.testing.lists.list_engine import ListEngine, listed, updates
from strandline.testing.lists.list_source import SCHEMA as MESSAGES
from strandline.testing.simulation.exploration import Arrived
from strandline.testing.simulation.kernel import run_sync
from worlds.meanings import VIEWS, Row
from worlds.seats import ROLLUP_EVERY, Doing, Model, Places, Room

INPUT: Final = "in"
OUTPUT: Final = "out"
SOURCE: Final = "u1"
VIEW: Final = VIEWS["extremes"]
EPOCH: Final = 1
BEGUN: Final = 2
"""How many times of the input are there from the beginning."""
HISTORY: Final[dict[int, tuple[tuple[Row, int], ...]]] = {
    0: ((("p", 0, 3), 1), (("q", 0, 2), 1)),
    1: ((("p", 1, 1), 1),),
    5: ((("p", 0, 3), -1),),
    9: ((("q", 0, 2), -1), (("q", 1, 7), 1)),
}
"""What changes at each time of the input."""


@dataclass(eq=False)
class Seat:
    """A user at work: its process, the epoch that it opens under, and what it has open."""

    name: str
    client: PersistClient
    epoch: int | None = None
    run: StageRun | None = None
    input: ReadHandle | None = None
    feeding: WriteHandle | None = None


class SinkWorld(Room[Seat]):
    """One run of ``users``, each of which does its task ``operations`` times."""

    def __init__(self, choose: Choose, arrived: Arrived, users: Mapping[str, Doing[Seat]], operations: int) -> None:
        super().__init__(choose, arrived, operations, _opened())
        self._observer = self.observing()
        self._output: ReadHandle | None = None
        seats = {name: Seat(name, self._process(name)) for name in users}
        for name, do in users.items():
            if do is not take_over:
                run_sync(self.open(seats[name], feeds=do is feed))
        self._feeders = frozenset(name for name, do in users.items() if do is feed)
        self.seat(users, seats)

    async def sit(self, name: str) -> Seat:
        """Open anew, under a newer epoch; the input has one writer, and one epoch."""
        feeds = name in self._feeders
        seat = Seat(name, self._process(name), EPOCH if feeds else self.fresh_epoch())
        await self.open(seat, feeds=feeds)
        return seat

    async def open(self, seat: Seat, *, feeds: bool = False) -> None:
        """Open what a user works with."""
        epoch = EPOCH if seat.epoch is None else seat.epoch
        if feeds:
            seat.feeding = await seat.client.writer(INPUT, epoch, schema=MESSAGES.ddl)
            return
        seat.input = await seat.client.reader(INPUT, MESSAGES, SOURCE)
        assert seat.input is not None
        engine = ListEngine(seat.client.blob)
        writer = await seat.client.writer(OUTPUT, epoch, schema=stage().schema.ddl)
        sink = Sink(engine, writer, stage().schema, "the definition")
        await sink.open()
        seat.run = StageRun(stage(), engine, {SOURCE: seat.input}, sink)

    def memory(self, seat: Seat) -> Hashable:
        """Return the newest states that it knows, and what its sink believes and owes."""
        if seat.feeding is not None:
            return encode_rollup("", seat.feeding.state), tuple(seat.feeding._idle)
        if seat.run is None or seat.input is None:
            return seat.epoch
        sink = seat.run.sink
        at = sink._accounted.at, repr(sink._digest), repr(sink._mint)
        believed = (sink.known, sink.desired, sink._doubted, at, repr(sink._correction._held))
        states = encode_rollup("", sink.writer.state), encode_rollup("", seat.input.state)
        return believed, states, tuple(sink.writer._idle), seat.epoch

    async def committed(self, shard: str) -> None:
        """K2: at each readable time the view is its definition over the input."""
        if shard != OUTPUT:
            return
        if self._output is None:
            self._output = await self._observer.reader(OUTPUT, stage().schema, "extremes")
        assert self._output is not None
        state = await self._output.refresh()
        since, upper = as_time(state.since), as_time(state.upper)
        held = contents(state, stage().schema, 0, upper, advance=since)
        rows = listed(await ListEngine(self.places[0]).read(held)).rows if held.rows else ()
        for time in range(since, upper):
            found: Counter[Row] = Counter()
            for row in rows:
                if row[TIME] <= time:
                    found[tuple(row[name] for name in stage().schema.names)] += row[DIFF]
            wanted = Counter(VIEW.meaning({SOURCE: list(at(time).elements())}))
            found = Counter({row: count for row, count in found.items() if count})
            require("K2", found == wanted, f"the view at {time} is {dict(found)}; its definition gives {dict(wanted)}")

    async def catch_up(self) -> None:
        """L2: one that knows nothing brings the view to where the input is."""
        seat = Seat("last", self.observing(), self.fresh_epoch())
        await self.open(seat)
        assert seat.run is not None
        await step_to(seat.run, seat.run.known())

    def _process(self, name: str) -> PersistClient:
        return self.process(name, ListEngine)


def at(time: int) -> Counter[Row]:
    """Return the input's contents at ``time``."""
    found: Counter[Row] = Counter()
    for when, changes in HISTORY.items():
        for row, diff in changes:
            found[row] += diff if when <= time else 0
    return found


@cache
def stage() -> Stage:
    """Return the view's one stage, which reads what it stored before."""
    (only,) = split(plan_view(VIEW.sql, {SOURCE: MESSAGES}, ListAnalyst()), "extremes")
    assert only.kind == "regroup"
    return only


@cache
def _opened() -> Places:
    """Return places for every run to begin with: the input as it begins, and a view without history."""
    objects: dict[str, bytes] = {}
    versions: dict[str, list] = {}
    client = PersistClient(
        HandClock(), CountingIds(), MemoryBlob(objects), MemoryConsensus(versions), rollup_every=ROLLUP_EVERY
    )

    async def begin() -> None:
        writer = await client.writer(INPUT, EPOCH, schema=MESSAGES.ddl)
        for number in range(BEGUN):
            await write(client, writer, number, f"begun.{number}")
        await client.writer(OUTPUT, EPOCH, schema=stage().schema.ddl)

    run_sync(begin())
    return objects, versions


async def write(client: PersistClient, writer: WriteHandle, number: int, token: str) -> None:
    """Append what changes at the ``number``-th time of the input, once."""
    time = list(HISTORY)[number]
    lower = as_time(writer.state.upper)
    named = [dict(zip(MESSAGES.names, row, strict=True)) | {TIME: time, DIFF: diff} for row, diff in HISTORY[time]]
    request = StageRequest(INPUT, MESSAGES, lower, time + 1, writer.stage_prefix(), inline_bytes_max=writer.inline_room)
    staged = await ListEngine(client.blob).stage(updates(MESSAGES, named), request)
    outcome = await writer.compare_and_append([staged], Frontier(lower), Frontier(time + 1), token=token)
    assert isinstance(outcome, Appended), f"the input has no other writer: {outcome}"


async def step_to(run: StageRun, upper: Frontier) -> None:
    """Step, and look that it has come there: one that says nothing has done it."""
    await run.step(upper)
    require("silent", not run.standing(upper), f"the step came back, and {run.standing(upper)}")


# ---- users -----------------------------------------------------------------------------------------------------------


async def step(world: SinkWorld, seat: Seat) -> None:
    """Bring the view one time further; the last time to where the input is."""
    assert seat.run is not None
    assert seat.input is not None
    known = (await seat.input.refresh()).upper
    last = world.done[seat.name] + 1 == world.operations
    await step_to(seat.run, known if last else Frontier(world.done[seat.name] + 1))


async def take_over(world: SinkWorld, seat: Seat) -> None:
    """Open under a newer epoch, and do the same."""
    if seat.epoch is None:
        seat.epoch = world.fresh_epoch()
    if seat.run is None:
        await world.open(seat)
    await step(world, seat)


async def feed(world: SinkWorld, seat: Seat) -> None:
    """Append the next time of the input, exactly once."""
    assert seat.feeding is not None
    number = BEGUN + world.done[seat.name]
    if as_time((await seat.feeding.refresh()).upper) <= list(HISTORY)[number]:
        await write(seat.client, seat.feeding, number, f"{seat.name}.{number}")


_TAKEN: Final[dict[str, Doing[Seat]]] = {"a": step, "b": take_over}
_RIVALS: Final[dict[str, Doing[Seat]]] = {"a": step, "b": step}
_FEEDING: Final[dict[str, Doing[Seat]]] = {"f": feed}
FED: Final = Model(SinkWorld, {"a": step} | _FEEDING, 1, 1)
RACING: Final = Model(SinkWorld, _RIVALS, 2, 0)
SINK_MODELS: Final = (
    Model(SinkWorld, _TAKEN, 2, 0),
    Model(SinkWorld, _RIVALS, 1, 1),
    RACING,
    FED,
)
"""What takes seconds."""
SINK_MODELS_LONG: Final = (
    Model(SinkWorld, _TAKEN, 1, 1),
    Model(SinkWorld, _TAKEN, 1, 2),
    Model(SinkWorld, _TAKEN, 2, 1),
    Model(SinkWorld, _TAKEN | _FEEDING, 1, 1),
    Model(SinkWorld, _RIVALS, 2, 1),
    Model(SinkWorld, _RIVALS | _FEEDING, 1, 1),
    Model(SinkWorld, {"a": step} | _FEEDING, 2, 2),
)
"""What takes minutes."""
