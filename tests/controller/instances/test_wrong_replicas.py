"""A replica that computes something wrong is named and stopped, and its views are right again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest
from tests.controller.instances.apart import Site, held, site

from strandline.algebra.nodes import Node
from strandline.compute.sink.actor import Sink
from strandline.controller.asking.status import status
from strandline.controller.asking.wrong_replicas import WrongReplicas
from strandline.instance.instance import Instance
from strandline.persist.handles.contents import Rows, StageRequest
from strandline.persist.shard.batch import Staged
from strandline.store.blob import Blob
from strandline.testing.lists.list_engine import Listed, ListEngine, Row, listed

NAMED_WITHIN: Final = 3
FLAT: Final = 60
"""So many ticks after a replica was named nothing is withdrawn, and all that was written since is right."""
NESTED: Final = (
    "CREATE MATERIALIZED VIEW nested IN INSTANCE x AS SELECT n, count(*) AS groups FROM "
    "(SELECT grp, count(*) AS n FROM items GROUP BY grp) GROUP BY n"
)
GROUP: Final = 3
"""The group that is computed wrong; each eighth row is of it."""

Plant = Callable[[Sequence[str], Row], Row | None]


def counted_wrong(names: Sequence[str], row: Row) -> Row | None:
    """Count one too many."""
    return row | {"n": row["n"] + 1} if "n" in names and row.get("grp") == GROUP and row["__diff"] > 0 else row


def dropped(names: Sequence[str], row: Row) -> Row | None:
    """Drop the rows of a group."""
    return None if "grp" in names and row["grp"] == GROUP else row


class Replicated(ListEngine):
    """The engine of one replica: it stages after so many turns of the others, and wrong rows once something is planted.

    ``shard``: where they are staged; empty: in all.  ``evaluated``: results are wrong too before they are staged.
    """

    def __init__(self, blob: Blob, turns: int) -> None:
        super().__init__(blob)
        self.turns = turns
        self.plant: Plant | None = None
        self.shard = ""
        self.evaluated = False

    def planted(self, rows: Rows) -> Rows:
        """Return rows as they are after the plant."""
        frame, plant = listed(rows), self.plant
        if plant is None:
            return rows
        kept = [made for row in frame.rows if (made := plant(frame.names, row)) is not None]
        return Rows(Listed(frame.names, tuple(kept)))

    async def evaluate(self, node: Node, frames: Mapping[str, Rows], *, origin: int = 0) -> Rows:
        """See `Engine.evaluate`."""
        found = await super().evaluate(node, frames, origin=origin)
        return self.planted(found) if self.evaluated else found

    async def stage(self, rows: Rows, request: StageRequest) -> Staged:
        """See `Engine.stage`."""
        for _ in range(self.turns):
            await asyncio.sleep(0)  # noqa: TID251 - the other replica is faster
        wrong = not self.evaluated and self.shard in {"", request.shard}
        return await super().stage(self.planted(rows) if wrong else rows, request)


SLOW: Final = 60


class Two:
    """A site with two replicas, of which ``b`` is wrong once something is planted there."""

    def __init__(self, at: Site) -> None:
        self.at = at
        self.judge = WrongReplicas(at.core)
        self.named: dict[str, int] = {}
        """At which tick each view got a problem."""

    @property
    def engine(self) -> Replicated:
        """The engine of ``b``."""
        engine = self.at.processes["b:1"].engine
        assert isinstance(engine, Replicated)
        return engine

    async def tick(self) -> int:
        """Tick as an environment does, and let both replicas come to the end of it."""
        await self.judge.settle()
        time = await self.at.tick()
        instance = self.at.core.require_writing().running.instances["x"]
        for _ in range(3_000):
            if len(instance._done) == len(instance.obeying):
                break
            await asyncio.sleep(0)  # noqa: TID251 - it gives way, and waits for no time
        await self.judge.turn()
        await self.judge.settle()
        return time

    async def until_named(self, ticks: int = NAMED_WITHIN * 8) -> int:
        """Tick until a replica has a problem; return how many ticks that took since it computed something wrong."""
        wrong = 0
        for _ in range(ticks):
            before = self.at.n
            await self.tick()
            wrong += wrong > 0 or before % 8 == GROUP
            if self.problems:
                return wrong
        raise AssertionError("no replica was named")

    @property
    def problems(self) -> dict[str, str]:
        """What is said of the views."""
        return self.at.core.health.problems()

    def sinks(self, name: str) -> list[Sink]:
        """Return the sinks of a replica."""
        replica = self.at.processes[f"{name}:1"].replica
        instance = None if replica is None else replica._instance
        assert isinstance(instance, Instance)
        return [run.sink for run in instance._views.dataflows.runs]

    async def right(self, time: int) -> None:
        """Fail unless the views hold at ``time`` what their queries say."""
        items = await held(self.at.core, "items", time)
        counts: Counter[Any] = Counter()
        for (_, grp, _), count in items.items():
            counts[grp] += count
        totals = await held(self.at.core, "totals", time)
        assert {(grp, n) for grp, n, _ in totals.elements()} == set(counts.items())
        if "nested" in self.at.core.catalog.items:
            assert await held(self.at.core, "nested", time) == Counter(
                dict.fromkeys(Counter(counts.values()).items(), 1)
            )

    async def flat(self) -> None:
        """Fail unless everything is right from now on, with nothing to withdraw."""
        for _ in range(2):
            await self.tick()
        before = [sink.counters.conflicts + sink.counters.audits for sink in self.sinks("a")]
        times = [await self.tick() for _ in range(FLAT)]
        for time in times:
            await self.right(time)
        assert [sink.counters.conflicts + sink.counters.audits for sink in self.sinks("a")] == before
        assert not any(sink.owes for sink in self.sinks("a"))


@asynccontextmanager
async def two(a: int, b: int, *views: str) -> AsyncIterator[Two]:
    """Open a site of two replicas, which stage after so many turns of the other, and bring all to where it is."""
    async with (
        asyncio.timeout(120),
        site("a", "b", a=partial(Replicated, turns=a), b=partial(Replicated, turns=b)) as at,
    ):
        await at.execute(*views)
        both = Two(at)
        for _ in range(10):
            await both.tick()
        assert both.problems == {}
        yield both


@pytest.mark.parametrize("evaluated", [False, True], ids=["staged wrong", "evaluated wrong"])
@pytest.mark.parametrize("plant", [counted_wrong, dropped])
@pytest.mark.parametrize(("a", "b"), [(0, SLOW), (SLOW, 0)], ids=["the right one is first", "the wrong one is first"])
def test_a_wrong_replica_is_named_and_stopped(a: int, b: int, plant: Plant, *, evaluated: bool) -> None:
    """Damage: what readers see of a view depends on which replica is faster, and no operator learns of it."""

    async def body() -> None:
        async with two(a, b) as at:
            at.engine.plant, at.engine.evaluated = plant, evaluated
            assert await at.until_named() <= NAMED_WITHIN
            (problem,) = at.problems.values()
            assert problem.startswith("replica 'b' of instance 'x' computed 'totals' wrong at "), problem
            counted = "row(s) missing and" in problem and f"'grp': {GROUP}" in problem
            assert counted or (a < b and not evaluated and "the digest of what it was to write" in problem)
            await at.tick()
            assert at.sinks("b") == []
            shown = (await status(at.at.core))["instances"]["x"]["replicas"]
            assert "computed 'totals' wrong" in shown["b"]["problem"]
            assert shown["a"].get("problem", "") == ""
            await at.flat()

    asyncio.run(body())
