"""The world of the whole system with instances apart: some views run in replicas, each a process of its own.

It is the world of `worlds/whole.py`, whose controllers crash, sleep and take each other's place; beside them one or two
replicas crash, sleep and are cut off, and obey whichever controller is the newest.  What the laws say of views they say
of these too, wherever they run: a view that stands still has a problem, and in the end all have caught up.
"""

from __future__ import annotations

import random
import re
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar
from unittest import mock

from laws.broken import require
from strandline.controller.assembly import Assembly
from strandline.controller.core import Core
from strandline.controller.instances import link, replicas
from strandline.errors import Disconnected, StoreError
from strandline.frontier import TIME_MAX
from strandline.instance import replica as replica_module
from strandline.instance.connections import Equipment
from strandline.instance.replica import Replica
from strandline.persist.client import PersistClient
from strandline.sources.question import Patience
from strandline.store.protocols import Blob
from strandline.testing.simulation.exploration import Seeded
from strandline.testing.simulation.kernel import NEVER_MS, READ, WAIT, Fate, IoPoint, nothing
from worlds.instance import Instance
from worlds.system import FailingEngine, World
from worlds.whole import CALM_AFTER, TASKS, outside, project, vandal

T = TypeVar("T")

INSTANCE: Final = "x"
REPLICAS: Final = ("a", "b")
SENT: Final = (Fate.DONE, Fate.LOST, Fate.CRASH_BEFORE, Fate.CRASH_AFTER, Fate.PAUSE)
FOCI: Final = ("", "", "carrier.send", "carrier.receive", "consensus.compare_and_set", "engine.evaluate")
ACCEPT_MS: Final = 50
SLICE_S: Final = 0.02
RETRY_S: Final = 0.01
ALONE_S: Final = 0.05
"""A history takes less than a second: what a process waits for is waited for in its measure."""


@dataclass
class Wire:
    """A connection: the frames on their way to either end, and whether it is cut."""

    frames: tuple[deque[bytes], deque[bytes]] = field(default_factory=lambda: (deque(), deque()))
    cut: bool = False


class SimCarrier:
    """One end of a connection, which a run cuts, and whose frames it delays."""

    def __init__(self, wire: Wire, end: int) -> None:
        self._wire = wire
        self._coming, self._going = wire.frames[end], wire.frames[1 - end]
        self._end = end

    async def send(self, frame: bytes) -> None:
        """See `Carrier.send`."""
        try:
            await IoPoint("carrier.send", (self._end, len(frame)), partial(self._send, frame), SENT)
        except StoreError as error:  # the kernel's way to say that it may not have happened
            self._wire.cut = True
            raise Disconnected("the connection was cut") from error

    def _send(self, frame: bytes) -> None:
        if self._wire.cut:
            raise Disconnected("the connection was cut")
        self._going.append(frame)

    async def receive(self, seconds: float | None) -> bytes | None:
        """See `Carrier.receive`."""
        delay_ms = NEVER_MS if seconds is None else round(1000 * seconds)
        await IoPoint("carrier.receive", (self._end,), nothing, WAIT, delay_ms, ready=self._ready)
        if self._coming:
            return self._coming.popleft()
        if self._wire.cut:
            raise Disconnected("the connection was cut")
        return None

    def _ready(self) -> bool:
        return bool(self._coming) or self._wire.cut

    async def close(self) -> None:
        """See `Carrier.close`."""
        self.cut()

    def cut(self) -> None:
        """Cut the connection."""
        self._wire.cut = True


class ApartWorld(World):
    """One run, with an instance and its replicas."""

    def __init__(self, choose, *, calm_after: int) -> None:
        super().__init__(choose, calm_after=calm_after)
        self.asked: dict[str, deque[Wire]] = {}
        """By address, the connections that a replica has not taken yet."""
        self.wires: dict[str, list[Wire]] = {}
        self.working: set[str] = set()

    def assembly(self) -> Assembly:
        """See `World.assembly`."""
        return replace(super().assembly(), dial=self._dial)

    async def _dial(self, address: str) -> SimCarrier:
        wire = Wire()

        def connect() -> None:
            if address not in self.asked:
                raise Disconnected(f"nothing listens at {address}")
            self.asked[address].append(wire)
            self.wires[address].append(wire)

        try:
            await IoPoint("carrier.dial", (address,), connect, READ)
        except StoreError as error:
            raise Disconnected("it cannot be reached") from error
        return SimCarrier(wire, 0)

    def engine(self, address: str, blob: Blob) -> FailingEngine:
        """Return the engine of a process of the replica at ``address``."""
        return FailingEngine(self, blob)

    def controller(self, name: str, wanted: list[str], tasks: int) -> Controller:
        """Return an environment's program."""
        return Controller(self, name, wanted, tasks)

    async def replicate(self, address: str, incarnation: int) -> None:
        """Be a replica, from its start on; an earlier one of this address has died."""
        for wire in self.wires.get(address, []):
            wire.cut = True
        self.wires[address] = []
        queue = self.asked[address] = deque()
        assembly = super().assembly()
        client = PersistClient(
            assembly.clock, self.ids, assembly.blob, assembly.consensus, assembly.engine, rollup_every=self.rollup_every
        )
        equipment = Equipment(
            client,
            self.engine(address, assembly.blob),
            assembly.connectors,
            assembly.drivers,
            assembly.together,
            Patience(assembly.beside, 1.0),
            assembly.lanes,
        )
        runs = Replica(equipment, "", f"{address}.{incarnation}")
        while self.working or self.busy:
            await IoPoint("replica.accept", (address,), nothing, WAIT, ACCEPT_MS, ready=lambda: bool(queue))
            while queue:
                carrier = SimCarrier(queue.popleft(), 1)
                self.simulation.beside(partial(runs.serve, carrier))
        await runs.close()

    @contextmanager
    def constants(self) -> Iterator[None]:
        """See `World.constants`."""
        with (
            super().constants(),
            mock.patch.object(replica_module, "SLICE_S", SLICE_S),
            mock.patch.object(replica_module, "REPORT_S", SLICE_S),
            mock.patch.object(replica_module, "ALONE_S", ALONE_S),
            mock.patch.object(replicas, "MOVES_AFTER_S", 2 * ALONE_S),
            mock.patch.object(link, "MOVES_AFTER_S", 2 * ALONE_S),
            mock.patch.object(link, "RETRY_S_MIN", RETRY_S),
            mock.patch.object(link, "RETRY_S_MAX", RETRY_S),
        ):
            yield


def play(seed: int, prepare: Callable[[ApartWorld], None] = lambda _: None) -> ApartWorld:
    """Make the history that ``seed`` is, to its end.  What it breaks is raised, with how to make it again."""
    rng = random.Random(seed)
    world = ApartWorld(Seeded(rng, FOCI[int(rng.random() * len(FOCI))]), calm_after=CALM_AFTER[int(rng.random() * 3)])
    try:
        populate(world)
        prepare(world)
        world.run()
    except Exception as error:
        error.add_note(f"replay this history: worlds.apart.play({seed})")
        raise
    return world


def populate(world: ApartWorld, project: Callable[[ApartWorld], list[str]] = project) -> None:
    """Choose what this history is like, and start the actors in it."""
    world.choose_limits()
    world.instances = 1 + world.choose("instances", 2)
    world.shared = world.choose("shared", 2) == 0
    for upstream in world.upstreams.values():
        upstream.retracts = world.choose("takes back", 3) > 0
        upstream.produce("p", *(world.choose("value", 4) for _ in range(2)))
    replicas = REPLICAS[: 1 + world.choose("replicas", 2)]
    listed = ", ".join(f"{name} '{name}:1'" for name in replicas)
    wanted = [f"CREATE INSTANCE {INSTANCE} REPLICAS ({listed})", *(placed(world, text) for text in project(world))]
    tasks = world.one_of("tasks", TASKS)
    for name in replicas:
        world.simulation.spawn(name, lambda n, name=name: world.replicate(f"{name}:1", n))
    for n in range(world.instances):
        name = f"i{n}"
        world.working.add(name)
        world.simulation.spawn(name, lambda _, name=name: work(world, name, wanted, tasks))
    world.simulation.spawn("outside", lambda _: outside(world))
    if world.choose("vandal", 3) == 0:
        world.busy.add("vandal")
        world.simulation.spawn("vandal", lambda _: vandal(world))


def placed(world: World, text: str) -> str:
    """Choose whether a view, a source or a materialization runs in the instance."""
    found = re.match(r"CREATE (?:MATERIALIZED VIEW|SOURCE|MATERIALIZATION) (\w+)", text)
    if found is None or world.choose("placed", 3) == 0:
        return text
    return f"{found[0]} IN INSTANCE {INSTANCE}{text[found.end() :]}"


class Controller(Instance):
    """An environment's program, whose views run in replicas too."""

    async def _ticked(self, core: Core, tick: Coroutine[Any, Any, T]) -> T:
        """See `Instance._ticked`.  C2: a frontier that the controller acts upon was true."""
        found = await super()._ticked(core, tick)
        world, writing = self.world, core.require_writing()
        said = {name: upper for each in writing.running.instances.values() for name, upper in each.frontiers().items()}
        catalog = await world.observer.catalog()
        if said and catalog.epoch == writing.epoch and catalog.items == core.catalog.items:
            true = await world.observer.uppers(catalog)
            wrong = {name: upper for name, upper in said.items() if (upper.at or 0) > true.get(name, TIME_MAX)}
            require("C2", not wrong, f"replicas are taken to have {wrong}, and there is {true}")
        for instance in writing.running.replicas().values():
            for each in instance.values():
                kept = {"reused": each.reused, "replaced": each.replaced, "created": each.created}
                world.marks.update(
                    f"replicas: {word}" for word, count in (kept | {"dropped": each.dropped}).items() if count
                )
        return found


async def work(world: ApartWorld, name: str, wanted: list[str], tasks: int) -> None:
    """Be an environment's program, and say when it has ended."""
    await world.controller(name, wanted, tasks).live()
    world.working.discard(name)
