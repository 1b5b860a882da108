"""A materialization's world, as the contracts of drivers play it: collections, their endpoint, runtimes that die."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from strandline.algebra.schema import Column, Schema
from strandline.frontier import Frontier
from strandline.materialize.driver import Driver
from strandline.materialize.log import RecoveryLog
from strandline.materialize.protocol.fsm import QUIET_TIMES_MAX
from strandline.materialize.protocol.task import Binding, Checkpoint, MaterializationSpec, canonical, contents
from strandline.materialize.runtime import Task
from strandline.store.clock import Call, Running
from strandline.store.memory import MemoryConsensus
from strandline.store.protocols import Versioned
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.feed import ListFeed
from strandline.testing.simulation.crashes import CrashPlan, Tapped
from strandline.wiring.loop import RunningTask

KEYED = Schema((Column("s", "string"), Column("f", "double"), Column("k", "bigint")))
"""A key's columns (`TWO`) stand last, and in another order than the key has them."""
KEYED_TYPES = {"s": pa.string(), "f": pa.float64(), "k": pa.int64()}
TWO = MaterializationSpec(
    "m", (Binding("orders", "Orders", ("k", "f"), KEYED), Binding("people", "People", ("k",), KEYED))
)

MakeEndpoint: TypeAlias = "Callable[[], EndpointUnderTest]"


class EndpointUnderTest(Protocol):
    """One endpoint, which a driver's author provides to the suite.

    ``fences``: a session that is not the newest can write nothing (false for stores without transactions).  An endpoint
    may also say: ``unnameable``, those of the `HOSTILE` names that it cannot have, and so refuses; ``unholdable``,
    those of the rows of `odd_values.ODD` that it refuses; ``finite``: true if it has no NaN, and so refuses it.  It may
    have a function ``died``, which ends the processes of a runtime that died, as the system would have done.
    """

    fences: bool

    def driver(self) -> Driver:
        """Return one more driver to the endpoint."""
        ...

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows that users read in ``table``."""
        ...

    def checkpoint(self, name: str) -> Checkpoint | None:
        """Return the endpoint's checkpoint of materialization ``name``; None if it keeps none."""
        ...


def row(k: int | None, f: float | None, s: str) -> dict[str, Any]:
    """Return a row of `KEYED`."""
    return {"s": s, "f": f, "k": k}


class Prompt:
    """A call that ends before its caller loses patience, so that a run's points do not depend on threads."""

    def __init__(self, inner: Running) -> None:
        self._inner = inner

    async def wait(self, seconds: float | None) -> bool:
        """See `Running.wait`."""
        return await self._inner.wait(seconds and None)

    async def cancel(self) -> None:
        """See `Running.cancel`."""
        await self._inner.cancel()


class World:
    """Collections (two, unless told), their materialization, and all durable data; runtimes start and crash.

    ``collections`` change, each as its binding has it; ``feeds`` are those of them that runtimes read.
    """

    def __init__(
        self,
        endpoint: EndpointUnderTest,
        spec: MaterializationSpec = TWO,
        types: Mapping[str, pa.DataType] = KEYED_TYPES,
        batch_rows: int = 1,
    ) -> None:
        self.endpoint = endpoint
        self.spec = spec
        self._versions: dict[str, list[Versioned]] = {}
        self.consensus = MemoryConsensus(self._versions)
        self.feeds = [ListFeed(each.collection, each.schema, types, batch_rows) for each in spec.bindings]
        self.collections = list(zip(spec.bindings, self.feeds, strict=True))
        self.clock = HandClock()
        self.upper = 0
        self._rounds = 0
        self._owners = count()
        self._running: list[Running] = []

    def bump(self, backfill: int) -> None:
        """Request a backfill of the first binding."""
        first, *others = self.spec.bindings
        self.spec = replace(self.spec, bindings=(replace(first, backfill=backfill), *others))

    def bump_all(self, backfill: int) -> None:
        """Request a backfill of every binding."""
        self.spec = replace(self.spec, bindings=tuple(replace(each, backfill=backfill) for each in self.spec.bindings))

    def backup(self) -> Callable[[], None]:
        """Copy the location's own data; what is returned puts the copy in their place."""
        copied = {key: [*versions] for key, versions in self._versions.items()}

        def restore() -> None:
            self._versions.clear()
            self._versions.update(copied)

        return restore

    def runtime(self, plan: CrashPlan | None = None, epoch: int = 1) -> Task:
        """Return a new runtime, as in a new process."""
        plan = CrashPlan() if plan is None else plan
        ids = CountingIds(f"o{next(self._owners)}")
        consensus: Any = Tapped(plan, "consensus", self.consensus)
        log = RecoveryLog(self.clock, ids, consensus, "log/m", epoch)
        feeds: Any = [Tapped(plan, feed.name, feed) for feed in self.feeds]
        driver: Any = Tapped(plan, "driver", self.endpoint.driver(), opens=("open",))
        return Task(self.spec, driver, log, feeds, beside=self._beside)

    def _beside(self, call: Call) -> Running:
        """Begin a call that nothing ends when its runtime is forgotten, as if that had died."""
        self._running.append(Prompt(RunningTask(self.clock, call)))
        return self._running[-1]

    def seal(self, upper: int) -> None:
        """Move the upper of every collection."""
        self.upper = upper
        for _, feed in self.collections:
            feed.seal(Frontier(upper))

    def write_round(self) -> None:
        """Insert, change, delete or leave each of a few keys, and seal; values are few: changes undo each other."""
        self._rounds += 1
        draw = Random(self._rounds)
        for binding, feed in self.collections:
            present = {each["k"]: each for each in contents(binding, feed.before(self.upper)).values()}
            for k in (None, 1, 2, 3):
                old, new = present.get(k), draw.choice((None, "p", "q"))
                if old is not None and old["s"] != new:
                    feed.write(self.upper, (old, -1))
                if new is not None and (old is None or old["s"] != new):
                    feed.write(self.upper, (row(k, None if k == 1 else 1.5, new), 1))
        self.seal(self.upper + 1)

    def write_over(self) -> None:
        """Give the one row of each collection another value, and seal: stored late, it replaces what is there."""
        self._rounds += 1
        for binding, feed in self.collections:
            for old in contents(binding, feed.before(self.upper)).values():
                feed.write(self.upper, (old, -1))
            feed.write(self.upper, (row(9, 1.5, f"round {self._rounds}"), 1))
        self.seal(self.upper + 1)

    def truth(self, index: int, time: int) -> list[str]:
        """Return the rows that a binding's table must hold if it has exactly the changes before ``time``."""
        rows = contents(self.spec.bindings[index], self.feeds[index].before(time)).values()
        return sorted(canonical(each) for each in rows)

    def check(self, time: int) -> None:
        """Check law M2: each table holds exactly what its collection holds before ``time``."""
        for index, binding in enumerate(self.spec.bindings):
            assert sorted(canonical(each) for each in self.endpoint.rows(binding.resource)) == self.truth(index, time)

    def held(self) -> tuple[Checkpoint | None, list[list[str]]]:
        """Return the endpoint's checkpoint, and the rows of each table at the same moment.

        What a runtime sent that died since may commit meanwhile; then they are read again.
        """
        seen = self.endpoint.checkpoint(self.spec.name)
        while True:
            tables = [sorted(map(canonical, self.endpoint.rows(each.resource))) for each in self.spec.bindings]
            checkpoint = self.endpoint.checkpoint(self.spec.name)
            if checkpoint == seen:
                return seen, tables
            seen = checkpoint

    def reached(self) -> int:
        """Return the time of the endpoint's own checkpoint; 0 if it keeps none."""
        checkpoint = self.endpoint.checkpoint(self.spec.name)
        return 0 if checkpoint is None else checkpoint.time(self.spec.state_keys)

    def check_committed(self) -> None:
        """Check law M2 at the endpoint's own checkpoint, if it keeps one."""
        checkpoint, tables = self.held()
        if checkpoint is not None:
            time = checkpoint.time(self.spec.state_keys)
            assert tables == [self.truth(index, time) for index in range(len(tables))]


def write_history(world: World) -> tuple[int, ...]:
    """Write changes of every kind; return the uppers to advance through."""
    orders, people = world.feeds
    odd = row(None, 7.5 if getattr(world.endpoint, "finite", False) else math.nan, "null and nan")
    orders.write(1, (row(1, 0.5, "a"), 1), (odd, 1), (row(2, None, "b"), 1))
    people.write(2, (row(1, 1.0, "x"), 1), (row(2, 2.0, "y"), 1))
    orders.write(5, (row(1, 0.5, "a"), -1), (row(1, 0.5, "A"), 1), (row(2, None, "b"), -1))
    people.write(6, (row(1, 1.0, "x"), -1))
    orders.write(8, (row(2, None, "again"), 1), (odd, -1))
    people.write(9, (row(3, None, "z"), 1), (row(3, None, "z"), -1), (row(1, 9.0, "back"), 1))
    quiet = 9 + 2 * QUIET_TIMES_MAX
    orders.write(quiet, (row(1, 0.5, "A"), -1), (row(1, 0.5, "last"), 1))
    return 3, 7, 10, quiet, quiet + 5


async def advance_through(world: World, runtime: Task, uppers: tuple[int, ...]) -> None:
    """Advance as the environment's ticks would."""
    for upper in uppers:
        world.seal(upper)
        await runtime.advance()
