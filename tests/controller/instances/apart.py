"""A controller and replicas as if in processes of their own, in one event loop: what tests of instances are made of."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from strandline.bench.environment import ITEMS, VIEWS, Place, _change, over_lists
from strandline.controller.asking.reads import snapshot
from strandline.controller.core import Core
from strandline.controller.defining.creating import create
from strandline.controller.defining.definitions import drop
from strandline.controller.holding import Hold
from strandline.controller.language.statements import Drop, parse
from strandline.controller.location.config import Config, Mode
from strandline.errors import Disconnected
from strandline.instance.carriers.buffer import QueueCarrier, pair
from strandline.instance.connections import Equipment
from strandline.instance.protocol.messages import Refused
from strandline.instance.replica import Replica
from strandline.persist.client import PersistClient
from strandline.persist.shard.patience import Deadline
from strandline.plane import Engine
from strandline.sources.question import Patience
from strandline.store.clock import Beside, SystemClock
from strandline.store.protocols import Blob
from strandline.testing.doubles import CountingIds
from strandline.testing.lists.list_engine import listed
from strandline.wiring.loop import RunningTask, side_by_side

TABLE = f"CREATE TABLE items ({ITEMS})"
TOTALS = f"CREATE MATERIALIZED VIEW totals IN INSTANCE x AS {VIEWS['totals']}"
ABOVE = "CREATE MATERIALIZED VIEW above AS SELECT grp, n FROM totals WHERE n > 0"


class Process:
    """A replica's process: it may be killed, and begun anew with nothing but what is durable."""

    def __init__(self, place: Place, name: str, engine: Engine | None = None) -> None:
        self.place = place
        self.engine: Engine = place.assembly.engine if engine is None else engine
        self.name = name
        self.begun = 0
        self.ends: list[QueueCarrier] = []
        self.serving: list[asyncio.Task[None]] = []
        self.replica: Replica | None = None
        self.begin()

    def begin(self) -> None:
        """Begin the process."""
        self.begun += 1
        have, clock = self.place.assembly, SystemClock()
        beside: Beside = partial(RunningTask, clock)
        ids = CountingIds(f"{self.name}{self.begun}")
        client = PersistClient(clock, ids, have.blob, have.consensus, self.engine)
        equipment = Equipment(
            client, self.engine, have.connectors, have.drivers, side_by_side, Patience(beside, 1.0), have.lanes
        )
        self.replica = Replica(equipment, "", f"{self.name}{self.begun}")

    async def kill(self) -> None:
        """End the process as it is."""
        self.replica = None
        for each in self.serving:
            each.cancel()
        self.cut()
        await asyncio.sleep(0)  # noqa: TID251 - no time passes

    def cut(self) -> None:
        """Cut its connections."""
        for end in self.ends:
            end.cut()
        self.ends.clear()

    def connected(self) -> QueueCarrier:
        """Return a controller's end of a new connection."""
        if self.replica is None:
            raise Disconnected(f"{self.name} does not run")
        ours, theirs = pair()
        self.ends += [ours, theirs]
        self.serving.append(asyncio.get_running_loop().create_task(self.replica.serve(theirs)))
        return ours


class Later:
    """A store whose answers come a moment later, as those of a real one do: what goes on beside gets its turns."""

    def __init__(self, store: object) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)

        async def later(*arguments: Any, **named: Any) -> Any:
            await asyncio.sleep(0)  # noqa: TID251 - it gives way, and waits for no time
            return await call(*arguments, **named)

        return later if inspect.iscoroutinefunction(call) else call


class Site:
    """A location over lists, the processes of its replicas by address, and its controller."""

    def __init__(self) -> None:
        self.place = over_lists()
        self.processes: dict[str, Process] = {}
        self.controllers = 0
        self.n = 0
        self.core: Core

    def process(self, name: str, engine: Callable[[Blob], Engine] | None = None) -> Process:
        """Begin the process of a replica, which listens at its name's address; ``engine``: its own."""
        own = None if engine is None else engine(self.place.assembly.blob)
        found = self.processes[f"{name}:1"] = Process(self.place, name, own)
        return found

    async def dial(self, address: str) -> QueueCarrier:
        """Connect to a replica."""
        if address not in self.processes:
            raise Disconnected(f"nothing listens at {address}")
        return self.processes[address].connected()

    async def open(self, **options: Any) -> Core:
        """Open the location as a process of its own; the controller before is not asked."""
        self.controllers += 1
        clock = SystemClock()
        assembly = replace(
            self.place.assembly,
            consensus=Later(self.place.assembly.consensus),
            clock=clock,
            ids=CountingIds(f"c{self.controllers}"),
            together=side_by_side,
            beside=partial(RunningTask, clock),
            dial=self.dial,
        )
        self.core = await Core.open(assembly, Config(take_over=True, **options), Mode.FULL)
        return self.core

    async def execute(self, *texts: str) -> None:
        """Define what the texts say."""
        for text in texts:
            statement = parse(text)
            await (drop(self.core, statement) if isinstance(statement, Drop) else create(self.core, statement))  # type: ignore[arg-type]

    async def tick(self, ticks: int = 1) -> int:
        """Change the table and tick."""
        for _ in range(ticks):
            await _change(self.core, self.n)
            self.n += 1
            time = await self.core.tick()
        return time

    async def tick_within(self, seconds: float) -> int:
        """Change the table and tick, for so long at most."""
        await _change(self.core, self.n)
        self.n += 1
        return await self.core.tick(deadline=Deadline(self.core.assembly.clock, seconds))

    async def agree(self, time: int) -> None:
        """Fail unless the view holds at ``time`` what its query says, and nothing has a problem."""
        assert self.core.health.problems() == {}
        items, totals = [await held(self.core, name, time) for name in ("items", "totals")]
        wanted: Counter[str] = Counter()
        sums: Counter[str] = Counter()
        for (_, grp, amount), count in items.items():
            wanted[grp] += count
            sums[grp] += count * amount
        assert totals == Counter({(grp, n, sums[grp]): 1 for grp, n in wanted.items() if n})


def run(body: Coroutine[Any, Any, None]) -> None:
    """Run a test within its time."""

    async def limited() -> None:
        async with asyncio.timeout(150):
            await body

    asyncio.run(limited())


def replica_of(at: Site, name: str) -> Replica:
    """Return what runs in the process of a replica."""
    found = at.processes[f"{name}:1"].replica
    assert found is not None
    return found


async def refusing(at: Site) -> Replica:
    """Return the replica ``a``, once it has refused a command that it does not know, and all else is where it was."""
    await at.agree(await at.tick(2))
    replica = replica_of(at, "a")
    assert replica._connection is not None
    await replica._send(replica._connection, Refused("Fancy", "this version does not know this command"))
    return replica


async def held(core: Core, name: str, time: int) -> Counter[tuple[Any, ...]]:
    """Return the rows of a collection at ``time``."""
    reader = await core.readers.of(name)
    found: Counter[tuple[Any, ...]] = Counter()
    for row in listed(await snapshot(core, reader, time, Hold())).rows:
        found[tuple(row[each] for each in reader.schema.names)] += row["__diff"]
    return Counter({row: count for row, count in found.items() if count})


@asynccontextmanager
async def site(*replicas: str, **engines: Callable[[Blob], Engine]) -> AsyncIterator[Site]:
    """Open a location with a table, an instance with these replicas, and a view in it.

    ``engines``: those of replicas that have one of their own.
    """
    at = Site()
    for name in replicas:
        at.process(name, engines.get(name))
    await at.open()
    listed = ", ".join(f"{name} '{name}:1'" for name in replicas)
    await at.execute(TABLE, f"CREATE INSTANCE x REPLICAS ({listed})", TOTALS)
    try:
        yield at
    finally:
        await at.core.close()
        for process in at.processes.values():
            await process.kill()
