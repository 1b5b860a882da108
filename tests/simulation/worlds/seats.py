"""What worlds share that are so small that all their histories can be made: users that sit at open handles, and models.

The users begin with their handles open, so that no I/O is spent on that; a user that crashes opens anew in one step.
Time stands still and waiting takes no step: an actor that is left alone for any while is one of the orders anyway (so
no user is paused, either).  An answer that is lost is an effect that comes late at the next step, so it needs no fate
of its own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar
from unittest import mock

from laws.broken import judged
from strandline.errors import FencedError
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Merger
from strandline.persist.shard import machine, patience
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.store.protocols import Blob, Committed, CompareAndSet, Consensus, Mismatch, Versioned
from strandline.store.unreliable import Choose
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.simulation.exploration import Arrived, Exploration
from strandline.testing.simulation.kernel import Fate, IoPoint, Simulation, run_sync
from strandline.testing.simulation.places import SimBlob, SimConsensus
from worlds.tries import until_answered

FATES: Final = (Fate.DONE, Fate.LATE, Fate.LOST, Fate.REFUSED, Fate.CRASH_BEFORE, Fate.CRASH_LATE)
CHANGES: Final = frozenset(
    {"blob.set", "blob.delete", "consensus.compare_and_set", "consensus.truncate", "upstream.commit"}
)
"""Where faults come: what only reads and is lost is read again, which is an order like others."""
ROLLUP_EVERY: Final = 64
STEPS_MAX: Final = 2_000


class Seat(Protocol):
    """A user at work."""

    @property
    def name(self) -> str:
        """The user's name."""
        ...


S = TypeVar("S", bound=Seat)
Doing: TypeAlias = Callable[[Any, S], Coroutine[Any, Any, None]]
"""What a user does once, in a world, at its seat."""


class Small(Protocol):
    """A world in which all histories are made."""

    def run(self) -> None:
        """Make one history.  Raises what it breaks."""
        ...


class Seated(Generic[S]):
    """A world's users: ``furnish`` it with stores, then `seat` them.  To be mixed into a world.

    ``simulation`` and ``done`` are the world's; ``operations``: how often each user does its thing.
    """

    simulation: Simulation
    done: Counter[str]
    operations: int
    begun = False
    """Whether I/O is simulated: not while a user opens."""

    def furnish(self, blob: Blob, consensus: Consensus) -> None:
        """Let ``blob`` and ``consensus`` be what is durable."""
        self._clients: dict[str, int] = {}
        self._plain = blob, consensus
        self._simulated = SimBlob(blob), SimConsensus(consensus)

    def seat(self, users: Mapping[str, Doing[S]], seats: Mapping[str, S]) -> None:
        """Let the users begin, at open handles."""
        self.begun = True
        for name, do in users.items():
            self.simulation.spawn(name, lambda n, do=do, name=name: self._live(do, seats[name], n))

    async def sit(self, name: str) -> S:
        """Open what the user ``name`` works with, as after a crash."""
        raise NotImplementedError

    def memory(self, seat: S) -> Hashable:
        """Return all that a user takes from one thing that it did to the next, or from its restart to the first."""
        raise NotImplementedError

    def process(self, name: str, merger: Callable[[Blob], Merger]) -> PersistClient:
        """Start a process: with ids of its own, and a clock that stands still."""
        incarnation = self._clients[name] = self._clients.get(name, 0) + 1
        blob, consensus = _Either(self, 0), _Either(self, 1)
        ids = _Ids(lambda: f"{name}{incarnation}.{self.done[name]}")
        return PersistClient(_Still(), ids, blob, consensus, merger(blob), rollup_every=ROLLUP_EVERY, grace_ms=0)

    def store(self, which: int) -> Blob | Consensus:
        """Return a store itself while a user opens, else the simulated one."""
        return self._simulated[which] if self.begun else self._plain[which]

    async def _live(self, do: Doing[S], seat: S, incarnation: int) -> None:
        """Do it as often as it is to be done; one that is fenced stops."""
        try:
            if incarnation:
                seat = await IoPoint("restart", (seat.name,), lambda: self._restart(seat.name), (Fate.DONE,))
                self.simulation.remember(self.memory(seat))
            while self.done[seat.name] < self.operations:
                await until_answered(lambda seat=seat: do(self, seat))
                self.done[seat.name] += 1
                self.simulation.remember(self.memory(seat))
        except FencedError:
            self.done[seat.name] = self.operations

    def _restart(self, name: str) -> S:
        self.begun = False
        try:
            return run_sync(self.sit(name))
        finally:
            self.begun = True


Places: TypeAlias = tuple[dict[str, bytes], dict[str, list[Versioned]]]
"""What is durable: objects, and the versions of each key."""


class Room(Seated[S]):
    """A small world over ``opened`` places, without persist's own observers: a subclass says what the laws are."""

    def __init__(self, choose: Choose, arrived: Arrived, operations: int, opened: Places) -> None:
        self.simulation = Simulation(choose, FATES, None, STEPS_MAX, lambda: arrived(self.key()))
        self.done: Counter[str] = Counter()
        self.operations = operations
        self.generation = 1
        objects, versions = opened
        self.objects, self.versions = dict(objects), {key: list(held) for key, held in versions.items()}
        self.places = MemoryBlob(self.objects), Told(self.versions, self._committed)
        self.furnish(*self.places)

    def fresh_epoch(self) -> int:
        """Begin a new generation: a user that opens under it fences all older ones."""
        self.generation += 1
        return self.generation

    def observing(self) -> PersistClient:
        """Return a process to which nothing happens."""
        return PersistClient(HandClock(), CountingIds("observer"), *self.places, rollup_every=ROLLUP_EVERY)

    def run(self) -> None:
        """Make one history, and see everything catch up after it.  Raises what it breaks.

        A store is asked once: what it does not answer is the caller's to bear.
        """
        with (
            mock.patch.object(machine, "CAS_RETRIES_MAX", 1),
            mock.patch.object(patience, "ATTEMPTS_MAX", 1),
        ):
            with judged():
                self.simulation.drive()
            run_sync(self.catch_up())

    async def committed(self, shard: str) -> None:
        """Hold what is durable against the laws, now that ``shard`` has a new version."""
        raise NotImplementedError

    async def catch_up(self) -> None:
        """L2: bring everything to where it should be, as a process that knows nothing does."""
        raise NotImplementedError

    def facts(self) -> Hashable:
        """Return what decides how the run goes on besides stores, users and generations."""
        return ()

    def key(self) -> Hashable:
        """Return what decides how the run goes on, and what its observers will say."""
        objects = tuple(sorted(self.objects.items()))
        versions = tuple((key, tuple((v.seqno, v.data) for v in held)) for key, held in sorted(self.versions.items()))
        done = tuple(sorted(self.done.items()))
        return hash((self.simulation.fingerprint(), objects, versions, done, self.generation, self.facts()))

    def _committed(self, shard: str) -> None:
        run_sync(self.committed(shard))


class Told(MemoryConsensus):
    """A Consensus that reports each key with a new version."""

    def __init__(self, versions: dict[str, list[Versioned]], told: Callable[[str], None]) -> None:
        super().__init__(versions)
        self._told = told

    async def compare_and_set(self, request: CompareAndSet) -> Committed | Mismatch:
        outcome = await super().compare_and_set(request)
        if isinstance(outcome, Committed):
            self._told(request.key)
        return outcome


@dataclass(frozen=True, slots=True)
class Model:
    """The users, how often each does its task, and how many faults a history meets at most."""

    world: Callable[[Choose, Arrived, Mapping[str, Doing[Any]], int], Small]
    users: Mapping[str, Doing[Any]]
    operations: int
    faults_max: int

    def __str__(self) -> str:
        return f"{'-'.join(do.__name__ for do in self.users.values())}.x{self.operations}.faults<={self.faults_max}"

    def search(self) -> Exploration:
        """Make all histories.  Raises what one of them breaks, with the choices that replay it in a note."""
        found = Exploration(self.faults_max, CHANGES)
        found.explore(lambda choose, arrived: self.world(choose, arrived, self.users, self.operations).run())
        return found


def search(model: Model) -> tuple[str, int, int, int, float]:
    """Return the model's name, how many runs, ends and states there were, and how many seconds a processor took."""
    begun = time.process_time()
    found = model.search()
    return str(model), found.runs, found.ends, len(found.states), time.process_time() - begun


class _Still(HandClock):
    """A clock that does not even move when a user sleeps."""

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

    def __init__(self, world: Seated[Any], which: int) -> None:
        self._world = world
        self._which = which

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world.store(self._which), name)
