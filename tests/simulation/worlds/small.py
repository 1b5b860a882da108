"""A world so small that all its histories can be made: one shard, a few users that do a few things each.

A user that crashes repeats, under the same token, each call of unknown outcome.  What small worlds have in common:
`seats.py`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from laws.history import Answer, Attempt, Update
from laws.places import WatchedPlaces
from strandline.errors import AsOfError
from strandline.frontier import Frontier, as_time
from strandline.persist.client import PersistClient
from strandline.persist.handles.records import RecordMerger
from strandline.persist.handles.write import WriteHandle
from strandline.persist.shard.codec import encode_rollup
from strandline.persist.shard.state import Appended, ShardState
from strandline.store.unreliable import Choose
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.exploration import Arrived
from strandline.testing.simulation.kernel import run_sync
from worlds.persist import PLAIN, World
from worlds.rows import SCHEMA, stage
from worlds.seats import FATES, ROLLUP_EVERY, Doing, Model, Seated

EPOCH: Final = 1
BEGUN: Final = 2


@dataclass(frozen=True, slots=True)
class Seat:
    """A user at work: its process, and the writer that it has open."""

    name: str
    client: PersistClient
    writer: WriteHandle


class SmallWorld(World, Seated[Seat]):
    """One run of ``users``, each of which does its task ``operations`` times; see `World`."""

    def __init__(self, choose: Choose, arrived: Arrived, users: Mapping[str, Doing[Seat]], operations: int) -> None:
        super().__init__(choose, fates=FATES, arrived=lambda: arrived(self.key()))
        self.operations = operations
        self.reading: dict[str, frozenset[str]] = {}  # what was acknowledged before a read that goes on began
        self.asked: dict[tuple[str, int], Attempt] = {}
        opened, newest = _opened()
        self.furnish(self.places.blob, self.places.consensus)
        self.places.fill(opened)
        self.history.admitted(PLAIN, EPOCH)
        self.seat(users, {name: run_sync(self.sit(name, newest)) for name in users})

    async def sit(self, name: str, known: ShardState | None = None) -> Seat:
        """Open the shard."""
        client = self.process(name, RecordMerger)
        if known is not None:  # what it would read first: to be spared that is a third of a run
            client._machine(PLAIN).adopt(known)
        return Seat(name, client, await client.writer(PLAIN, EPOCH, schema=SCHEMA.ddl))

    def memory(self, seat: Seat) -> Hashable:
        """Return the newest state that it knows, its writer's names, and which batches its compactor has looked at."""
        looked_at = seat.client._compactors[PLAIN]._looked_at
        return encode_rollup("", seat.writer.state), tuple(seat.writer._idle), looked_at

    def key(self) -> Hashable:
        """Return what decides how the run goes on, and what its observers will say."""
        attempts = sorted((a.purpose, a.lower, a.answer.name) for a in self.history.attempts)
        reads = self.history.facts()
        return hash(
            (
                self.simulation.fingerprint(),
                tuple(sorted(self.places.objects.items())),
                tuple((key, tuple((v.seqno, v.data) for v in held)) for key, held in self.places.versions.items()),
                tuple(attempts),
                reads,
                tuple(sorted(self.done.items())),
                tuple(sorted(self.reading.items())),
            )
        )


@cache
def _opened() -> tuple[WatchedPlaces, ShardState]:
    """Return places for every run to begin with: open for writing under `EPOCH`, two times known, since at the last."""
    places = WatchedPlaces(lambda _: True)
    client = PersistClient(HandClock(), CountingIds(), places.blob, places.consensus, rollup_every=ROLLUP_EVERY)

    async def begin() -> None:
        writer = await client.writer(PLAIN, EPOCH, schema=SCHEMA.ddl)
        for time in range(BEGUN):
            await writer.compare_and_append([], Frontier(time), Frontier(time + 1))
        hold = await client.since(PLAIN, "hold", EPOCH)
        await hold.downgrade(Frontier(BEGUN - 1))

    run_sync(begin())
    return places, client.state_of(PLAIN)


# ---- users -----------------------------------------------------------------------------------------------------------


async def append(world: SmallWorld, seat: Seat) -> None:
    """Append one row exactly once, wherever the upper is."""
    purpose = f"{seat.name}.{world.done[seat.name]}"
    while True:
        lower = as_time(seat.writer.state.upper)
        updates = [Update(f"{purpose}@{lower}".encode(), lower, 1)]
        staged = [await stage(seat.client.blob, seat.writer, updates, lower, lower + 1, inline=True)]
        attempt = world.asked.get((purpose, lower)) or world.history.ask(
            purpose, {PLAIN: updates}, lower, lower + 1, EPOCH
        )
        world.asked[purpose, lower] = attempt  # a user that crashes repeats the same request
        outcome = await seat.writer.compare_and_append(staged, Frontier(lower), Frontier(lower + 1), token=purpose)
        if isinstance(outcome, Appended):
            world.history.tell_purpose(purpose, as_time(outcome.upper) - 1)
            return
        world.history.tell(attempt, Answer.NO)


async def read(world: SmallWorld, seat: Seat) -> None:
    """Read the newest time that is complete."""
    handle = await seat.client.reader(PLAIN, SCHEMA, PLAIN)
    assert handle is not None
    time = as_time(handle.state.upper) - 1
    if time < 0:
        return
    world.reading[seat.name] = world.history.purposes()
    try:
        await world.read(seat.client, handle, time, timeout_s=0, at_once=True)
    except AsOfError:
        world.marks["read: no more"] += 1
    finally:
        del world.reading[seat.name]


async def compact(world: SmallWorld, seat: Seat) -> None:
    """Merge all that is there into one batch."""
    compactor = await seat.client.compactor(PLAIN)
    assert compactor is not None
    await compactor.whole()


async def collect(world: SmallWorld, seat: Seat) -> None:
    """Write a rollup, and collect all before it."""
    await seat.client._machine(PLAIN).roll_up()
    collector = await seat.client.collector(PLAIN)
    assert collector is not None
    await collector.collect()


_WRITERS: Final[dict[str, Doing[Seat]]] = {"a": append, "b": append}
_ONE: Final[dict[str, Doing[Seat]]] = {"a": append, "c": compact}
_COLLECTED: Final[dict[str, Doing[Seat]]] = {"a": append, "x": collect}
_READ: Final[dict[str, Doing[Seat]]] = {"r": read}
_ALL: Final[dict[str, Doing[Seat]]] = {**_WRITERS, "c": compact, **_READ}
MODELS: Final = (
    Model(SmallWorld, _WRITERS, 1, 2),
    Model(SmallWorld, _ONE, 1, 2),
    Model(SmallWorld, {**_WRITERS, **_READ}, 1, 1),
    Model(SmallWorld, {**_ONE, **_READ}, 1, 1),
    Model(SmallWorld, _ALL, 1, 0),
    Model(SmallWorld, _ONE, 3, 0),
    Model(SmallWorld, {**_COLLECTED, **_READ}, 1, 0),
)
"""What takes seconds."""
MODELS_LONG: Final = (
    Model(SmallWorld, _COLLECTED, 1, 1),
    Model(SmallWorld, _ALL, 1, 2),
    Model(SmallWorld, _ALL, 2, 0),
    Model(SmallWorld, _WRITERS, 2, 2),
    Model(SmallWorld, {**_COLLECTED, **_READ}, 1, 1),
    Model(SmallWorld, _ONE, 2, 2),
    Model(SmallWorld, _WRITERS, 3, 1),
    Model(SmallWorld, {**_WRITERS, **_READ}, 1, 2),
    Model(SmallWorld, _ALL, 1, 1),
    Model(SmallWorld, {**_ONE, **_READ}, 1, 2),
    Model(SmallWorld, {"a": append, "c": compact, "x": collect, **_READ}, 1, 0),
    Model(SmallWorld, {**_WRITERS, **_READ}, 2, 0),
)
"""What takes minutes.  Three operations of all four users, with two faults, are more than can be made: see the docs."""
