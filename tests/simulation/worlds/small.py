"""A world so small that all its histories can be made: one shard, a few users who do a few things each.

The users begin with their handles open, so that no I/O is spent on that; whoever crashes opens anew, and does again
under the same token what it does not know to be done.  Time stands still and waiting takes no step: an actor that is
left alone for any while is one of the orders anyway (so nobody is paused, either).  An answer that is lost is an effect
that comes late at the next step, so it needs no fate of its own.  Opening anew after a crash is one step.

Source: craft page "reliability" (S8: 2 writers, 1 compactor and collector, 1 reader, LATE included).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from laws.history import Answer, Attempt, Update
from laws.places import WatchedPlaces
from strandline.errors import AsOfError
from strandline.frontier.antichain import Frontier, as_time
from strandline.persist.client import PersistClient
from strandline.persist.codec import encode_rollup
from strandline.persist.records import RecordMerger
from strandline.persist.state import Appended, ShardState
from strandline.persist.write import WriteHandle
from strandline.store.blob import Blob
from strandline.store.consensus import Consensus
from strandline.store.unreliable import Choose
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.exploration import Arrived, Exploration
from strandline.testing.simulation import Fate, IoPoint, SimBlob, SimConsensus, run_sync
from worlds.persist import PLAIN, World
from worlds.rows import SCHEMA, stage
from worlds.tries import until_answered

FATES: Final = (Fate.DONE, Fate.LATE, Fate.LOST, Fate.REFUSED, Fate.CRASH_BEFORE, Fate.CRASH_LATE)
EPOCH: Final = 1
BEGUN: Final = 2
ROLLUP_EVERY: Final = 64


@dataclass(frozen=True, slots=True)
class Seat:
    """A user at work: its process, and the writer that it has open."""

    name: str
    client: PersistClient
    writer: WriteHandle


Doing = Callable[["SmallWorld", Seat], Coroutine[Any, Any, None]]


class SmallWorld(World):
    """One run of ``users``, each of whom does its thing ``operations`` times; see `World`."""

    def __init__(self, choose: Choose, arrived: Arrived, users: Mapping[str, Doing], operations: int) -> None:
        super().__init__(choose, fates=FATES, arrived=lambda: arrived(self.key()))
        self.operations = operations
        self.reading: dict[str, frozenset[str]] = {}  # what was acknowledged before a read that goes on began
        self.asked: dict[tuple[str, int], Attempt] = {}
        self._begun = False
        self._clients: dict[str, int] = {}
        self._simulated = SimBlob(self.places.blob), SimConsensus(self.places.consensus)
        opened, newest = _opened()
        self.places.fill(opened)
        self.history.admitted(PLAIN, EPOCH)
        seats = {name: run_sync(self._sit(name, newest)) for name in users}
        self._begun = True
        for name, do in users.items():
            self.simulation.spawn(name, lambda n, do=do, seat=seats[name]: self._live(do, seat, n))

    def client(self, name: str) -> PersistClient:
        """Start a process: with ids of its own, and a clock that stands still."""
        incarnation = self._clients[name] = self._clients.get(name, 0) + 1
        blob, consensus = _Either(self, 0), _Either(self, 1)
        ids = _Ids(lambda: f"{name}{incarnation}.{self.done[name]}")
        return PersistClient(_Still(), ids, blob, consensus, RecordMerger(blob), rollup_every=ROLLUP_EVERY, grace_ms=0)

    def store(self, which: int) -> Blob | Consensus:
        """Return a store itself while somebody opens, else the simulated one."""
        return self._simulated[which] if self._begun else (self.places.blob, self.places.consensus)[which]

    async def _sit(self, name: str, known: ShardState | None = None) -> Seat:
        client = self.client(name)
        if known is not None:  # what it would read first: to be spared that is a third of a run
            client._machine(PLAIN).adopt(known)
        return Seat(name, client, await client.writer(PLAIN, EPOCH, schema=SCHEMA.ddl))

    async def _live(self, do: Doing, seat: Seat, incarnation: int) -> None:
        if incarnation:
            seat = await IoPoint("restart", (seat.name,), lambda: self._restart(seat.name), (Fate.DONE,))
            self.simulation.remember(self._memory(seat))
        while self.done[seat.name] < self.operations:
            await until_answered(lambda seat=seat: do(self, seat))
            self.done[seat.name] += 1
            self.simulation.remember(self._memory(seat))

    def _memory(self, seat: Seat) -> Hashable:
        """Return all that a user takes from one thing that it did to the next, or from its restart to the first.

        That is the newest state that it knows, its writer's names, and which batches its compactor has looked at.
        """
        looked_at = seat.client._compactors[PLAIN]._looked_at
        return encode_rollup("", seat.writer.state), tuple(seat.writer._idle), looked_at

    def _restart(self, name: str) -> Seat:
        self._begun = False
        try:
            return run_sync(self._sit(name))
        finally:
            self._begun = True

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


class _Still(HandClock):
    """A clock that does not even move when somebody sleeps."""

    async def sleep(self, seconds: float) -> None:
        """Wait for nothing."""


class _Ids:
    """`Ids` that begin anew with each thing that their user does, so that they say nothing of how it went."""

    def __init__(self, owner: Callable[[], str]) -> None:
        self._owner = owner
        self._given: Counter[str] = Counter()

    def fresh(self, kind: str) -> str:
        """Return ``kind``, the owner, what it does, and the next number."""
        owner = self._owner()
        self._given[owner] += 1
        return f"{kind}-{owner}.{self._given[owner]}"


class _Either:
    """A store that is simulated, but for what opens a shard."""

    def __init__(self, world: SmallWorld, which: int) -> None:
        self._world = world
        self._which = which

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.store(self._which), name)


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
        world.asked[purpose, lower] = attempt  # whoever crashes and asks again asks for the same
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


@dataclass(frozen=True, slots=True)
class Model:
    """Who there is, how often each does its thing, and how many faults a history meets at most."""

    users: Mapping[str, Doing]
    operations: int
    faults_max: int

    def __str__(self) -> str:
        return f"{'-'.join(do.__name__ for do in self.users.values())}.x{self.operations}.faults<={self.faults_max}"

    def search(self) -> Exploration:
        """Make all histories.  Raises what one of them breaks, with the choices that replay it in a note."""
        found = Exploration(self.faults_max, CHANGES)
        found.explore(lambda choose, arrived: SmallWorld(choose, arrived, self.users, self.operations).run())
        return found


CHANGES: Final = frozenset({"blob.set", "blob.delete", "consensus.compare_and_set", "consensus.truncate"})
"""Where faults come: what only reads and is lost is read again, which is an order like others."""

_WRITERS: Final[dict[str, Doing]] = {"a": append, "b": append}
_ONE: Final[dict[str, Doing]] = {"a": append, "c": compact}
_COLLECTED: Final[dict[str, Doing]] = {"a": append, "x": collect}
_READ: Final[dict[str, Doing]] = {"r": read}
_ALL: Final[dict[str, Doing]] = {**_WRITERS, "c": compact, **_READ}
MODELS: Final = (
    Model(_COLLECTED, 1, 1),
    Model(_WRITERS, 1, 2),
    Model(_ONE, 1, 2),
    Model({**_WRITERS, **_READ}, 1, 1),
    Model({**_ONE, **_READ}, 1, 1),
    Model(_ALL, 1, 0),
    Model(_ONE, 3, 0),
    Model({**_COLLECTED, **_READ}, 1, 0),
)
"""What takes seconds."""
MODELS_LONG: Final = (
    Model(_ALL, 1, 2),
    Model(_ALL, 2, 0),
    Model(_WRITERS, 2, 2),
    Model({**_COLLECTED, **_READ}, 1, 1),
    Model(_ONE, 2, 2),
    Model(_WRITERS, 3, 1),
    Model({**_WRITERS, **_READ}, 1, 2),
    Model(_ALL, 1, 1),
    Model({**_ONE, **_READ}, 1, 2),
    Model({"a": append, "c": compact, "x": collect, **_READ}, 1, 0),
    Model({**_WRITERS, **_READ}, 2, 0),
)
"""What takes minutes.  Three operations of all four users, with two faults, are more than can be made: see the docs."""
