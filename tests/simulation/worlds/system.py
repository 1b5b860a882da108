"""What surrounds the environments of the world of the whole system: stores, weather, upstreams, endpoints, an observer.

`World` is one run: what is durable, what a new process is given (`World.assembly`), and the limits of this history.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final, TypeVar
from unittest import mock

from laws.broken import judged, require
from laws.logs import WatchedConsensus
from laws.views import Attempt, Observer
from strandline.compute import sides, step
from strandline.controller import core as core_module
from strandline.controller import planning, retention
from strandline.controller.assembly import Assembly
from strandline.errors import Unavailable
from strandline.instance import problems
from strandline.instance.commands import RunIngestion
from strandline.persist.client import PersistClient
from strandline.persist.handles import register
from strandline.persist.shard import machine, patience, trace
from strandline.sources import ingest
from strandline.sources.reader import SourceReader
from strandline.store.memory import MemoryBlob
from strandline.store.protocols import Blob
from strandline.store.unreliable import Choose
from strandline.testing.lists.list_assembly import ListAnalyst
from strandline.testing.lists.list_engine import ListEngine
from strandline.testing.lists.list_source import ListReader
from strandline.testing.simulation.exploration import FAULT
from strandline.testing.simulation.kernel import Fate, Simulation, run_sync
from strandline.testing.simulation.places import SideBySide, SimBlob, SimClock, SimConsensus, SimIds
from worlds.meanings import define, queries
from worlds.outside import (
    SESSIONS,
    Ambush,
    ExposedBlob,
    ExposedConsensus,
    FickleUpstream,
    Place,
    SimDriver,
    SimReader,
    Weather,
)

T = TypeVar("T")

STEPS_MAX: Final = 20_000
PATIENCE: Final = (64, 4, 2, 2)
ROLLUPS_EVERY: Final = (128, 128, 6)
FANS: Final = (2, 3, 8)
KEEP_HISTORY: Final = ("1 hour", "100 milliseconds", "0 seconds")
TICKS_BETWEEN: Final = (16, 1, 3)
"""How often holds are moved."""
INLINE_BYTES: Final = (100, 200_000)
_SMALL, _ANEW = step.SMALL_ROWS_MAX, sides.ROWS_MIN
LARGE: Final = ((100_000, _SMALL, _ANEW), (100_000, 0, 1), (3, 0, _ANEW), (0, _SMALL, _ANEW))
"""Above how many updates a merge is carried out beside ticks; how many a small window has at most, and how many at
least a window that may be computed anew.

One choice for all three: a history makes as many choices as it did when there was only the first.
"""
LONG_ROWS: Final = (200_000, 200_000, 2, 0)
"""Above how many updates a step takes so long that it is made in a lane."""
LANES: Final = (1, 2)
LONG_S: Final = 0.03
"""How long a tick runs until it is said what it waits for."""
RESUME_MS: Final = 5
"""How often upstream learns what it may forget: a history takes less than a second."""
SKEWS_MS: Final = (0, -5_000, 5_000, -3_600_000, 3_600_000)
"""How wrong a clock may be set."""
ACKNOWLEDGED_MIN: Final = 2
"""W1: a history in which less than this was acknowledged says nothing, and counts as failed."""
SOURCES: Final = ("u1", "u2")
PARTITIONS: Final = ("p", "q")
PLACES: Final = ("checkpointing", "staging", "direct")


class OneHost:
    """`Processes` of one host on which every incarnation of an instance is a process of its own."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def host(self) -> str:
        """Return the host's name."""
        return "host"

    def boot(self) -> str:
        """Return the host's start."""
        return "boot"

    def own(self) -> int:
        """Return this process's id."""
        return self._pid

    def started_ms(self, pid: int, boot: str) -> int | None:
        """Return when a process started."""
        return pid


class Connectors:
    """Sources of one instance."""

    def __init__(self, world: World, *, simulated: bool = True) -> None:
        self._world = world
        self._simulated = simulated

    def check(self, name: str, connector: str, options: object, schema: object, others: object) -> None:
        """Accept everything."""

    def counts(self, connector: str) -> str:
        """See `Connectors`."""
        return "rows"

    def shares(self, source: RunIngestion) -> bool:
        """Return whether replicas read a source at the same time."""
        return self._world.shared

    def connections(self, connector: str) -> Mapping[str, str]:
        """Return that no connector uses any."""
        return {}

    async def reader(self, source: RunIngestion, client: PersistClient, epoch: int) -> SourceReader:
        """Return the reader of ``source``."""
        world = self._world
        upstream = world.upstreams[source.options["upstream"]]
        if not self._simulated:
            return ListReader(upstream)
        return SimReader(
            upstream, lambda resume: run_sync(world.observer.may_forget(source.outputs[0].collection.shard, resume))
        )

    def resolve(self, *_: object) -> None:
        """See `Connectors.resolve`: nothing is referred to."""

    def alterable(self, *_: object) -> tuple[str, ...]:
        """See `Connectors.alterable`: nothing is."""
        return ()

    async def ask(self, name: str, connector: str, options: object) -> None:
        """See `Connectors.ask`: the upstream is there."""

    async def ask_wider(self, source: RunIngestion, client: PersistClient, epoch: int) -> None:
        """See `Connectors.ask_wider`: every column can be read."""

    async def release(self, source: RunIngestion, others: Sequence[str], client: PersistClient, epoch: int) -> None:
        """Let go what is kept for ``source``: it takes the shard of its reader, which must be open still."""
        await client.records(source.progress, epoch)


class World:
    """One run's stores, upstreams, endpoints and observer."""

    def __init__(self, choose: Choose, *, calm_after: int | None = None, fates: Sequence[Fate] = tuple(Fate)) -> None:
        self.simulation = Simulation(choose, fates, calm_after, STEPS_MAX)
        self.choose = self.simulation.choose
        still = SimClock(self.simulation)
        self.blob, self.consensus = MemoryBlob(), WatchedConsensus(still, SimIds())
        self.weather = Weather()
        self.upstreams = {name: FickleUpstream() for name in SOURCES}
        self.places = {name: Place() for name in PLACES}
        self.ids = SimIds()
        self.marks: Counter[str] = Counter()
        self.busy = {"outside"}  # the actors that still do what an environment has to bear
        self.pending: dict[str, Attempt] = {}  # by instance: what it does not know to be committed
        self.processes = 0
        self.serial = 0
        self.acknowledged = 0
        self.instances = 1
        self.patience = PATIENCE[0]
        self.rollup_every = ROLLUPS_EVERY[0]
        self.fan = FANS[-1]
        self.inline_bytes = INLINE_BYTES[-1]
        self.large_updates, self.small_rows, self.anew_rows = LARGE[0]
        self.long_rows = LONG_ROWS[0]
        self.lanes = LANES[0]
        self.keep_history = KEEP_HISTORY[0]
        self.ticks_between = TICKS_BETWEEN[0]
        self.skewed = False
        self.shared = True
        """Whether replicas may read one source at the same time."""
        self.watched = False
        """Whether it is looked beside every tick whether it runs long."""
        self.queries = queries()
        self.ambushes: dict[str, Ambush] = {}  # by key: what happens before its next flush
        self.outside = PersistClient(still, self.ids, self.blob, self.consensus, grace_ms=None)
        observing = PersistClient(still, SimIds(), self.blob, self.consensus)
        self.observer = Observer(observing, ListEngine(self.blob, self.queries), self.upstreams, self.places)

    @property
    def io_points(self) -> int:
        """How many steps were taken, each a call to what is outside."""
        return len(self.simulation.trace)

    def one_of(self, label: str, options: Sequence[T]) -> T:
        """Choose one of ``options``."""
        return options[self.choose(label, len(options))]

    def number(self) -> int:
        """Return a number that was not given out before."""
        self.serial += 1
        return self.serial

    def client(self, clock: SimClock) -> PersistClient:
        """Return the client of a new process that is no environment."""
        blob = SimBlob(ExposedBlob(self.blob, self.weather))
        consensus = SimConsensus(ExposedConsensus(self.consensus, self.weather))
        return PersistClient(clock, self.ids, blob, consensus, grace_ms=None)

    def skew_ms(self) -> int:
        """Choose how wrong a clock is from now on."""
        return 0 if not self.skewed or self.simulation.calm else self.one_of("clock", SKEWS_MS)

    def assembly(self) -> Assembly:
        """Return what a new process is given: its own engine and clock, and the way to all that is durable."""
        self.processes += 1
        blob = SimBlob(ExposedBlob(self.blob, self.weather))
        return Assembly(
            clock=SimClock(self.simulation, self.skew_ms()),
            ids=self.ids,
            blob=blob,
            consensus=SimConsensus(ExposedConsensus(self.consensus, self.weather, self.ambushes)),
            engine=FailingEngine(self, blob),
            analyst=ListAnalyst(),
            connectors=Connectors(self),
            drivers=lambda endpoint, options: SimDriver(self.places[options["at"]], SESSIONS[endpoint]),
            together=SideBySide(self.choose),
            beside=self.simulation.beside,
            lanes=self.lanes,
            processes=OneHost(self.processes),
            address=None,
            opened=ExitStack(),
        )

    def choose_limits(self) -> None:
        """Choose what this history's limits are."""
        self.patience = self.one_of("patience", PATIENCE)
        self.rollup_every = self.one_of("rollups", ROLLUPS_EVERY)
        self.fan = self.one_of("fan", FANS)
        self.inline_bytes = self.one_of("inline", INLINE_BYTES)
        self.large_updates, self.small_rows, self.anew_rows = self.one_of("large", LARGE)
        self.keep_history = self.one_of("history", KEEP_HISTORY)
        self.ticks_between = self.one_of("letting go", TICKS_BETWEEN)
        self.skewed = self.choose("clocks", 4) == 0
        self.long_rows = self.one_of("long", LONG_ROWS)
        self.lanes = self.one_of("lanes", LANES)

    @contextmanager
    def constants(self) -> Iterator[None]:
        """Let the limits be this history's, and the definitions be planned once."""
        with (
            mock.patch.object(machine, "CAS_RETRIES_MAX", self.patience),
            mock.patch.object(patience, "ATTEMPTS_MAX", self.patience),
            mock.patch.object(register, "RETRIES_MAX", self.patience),
            mock.patch.object(trace, "FAN", self.fan),
            mock.patch.object(trace, "INLINE_BYTES_FULL", self.inline_bytes),
            mock.patch.object(trace, "LARGE_UPDATES", self.large_updates),
            mock.patch.object(step, "SMALL_ROWS_MAX", self.small_rows),
            mock.patch.object(step, "LONG_ROWS_MIN", self.long_rows),
            mock.patch.object(sides, "ROWS_MIN", self.anew_rows),
            mock.patch.object(retention, "TICKS_BETWEEN", self.ticks_between),
            mock.patch.object(problems, "LONG_S", LONG_S),
            mock.patch.object(ingest, "PERIOD_MS", RESUME_MS),
            mock.patch.object(core_module, "PersistClient", partial(PersistClient, rollup_every=self.rollup_every)),
            mock.patch.object(planning, "define", define),
        ):
            yield

    def run(self) -> None:
        """Drive the history to its end, then look at everything once more.  Raises `LawBrokenError` or what broke."""
        with self.constants():
            with judged():
                self.simulation.drive()
            run_sync(self.observer.look())
        require("W1", self.acknowledged >= ACKNOWLEDGED_MIN, f"only {self.acknowledged} things were acknowledged")


class FailingEngine(ListEngine):
    """A `ListEngine` that fails, now and then, as a lost executor or a full disk does; ``evaluate`` takes a while."""

    def __init__(self, world: World, blob: Blob) -> None:
        super().__init__(blob, world.queries)
        self._world = world

    async def evaluate(self, node, frames, *, origin=0):
        """See `Engine.evaluate`."""
        await self._fail("engine.evaluate")
        return await super().evaluate(node, frames, origin=origin)

    async def stage(self, rows, request):
        """See `Engine.stage`."""
        await self._fail("engine.stage")
        return await super().stage(rows, request)

    async def stage_many(self, asked):
        """See `Engine.stage_many`: it fails as a whole, or each `stage` in it."""
        await self._fail("engine.stage_many")
        return await super().stage_many(asked)

    async def _fail(self, site: str) -> None:
        if self._world.simulation.calm:
            return
        match self._world.choose(FAULT + site, 4):
            case 1:
                raise Unavailable(f"{site}: an executor was lost")
            case 2:
                raise OSError(f"{site}: the disk is full")
            case 3:
                await self._world_sleeps()

    async def _world_sleeps(self) -> None:
        await SimClock(self._world.simulation).sleep(0.05)
