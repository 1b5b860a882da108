"""A replica that computes something wrong is named and stopped, and its views are right again."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pytest
from tests.controller.instances.apart import Site, held, site

from strandline.algebra.nodes import Node
from strandline.compute.sink.actor import Sink
from strandline.compute.sink.correction import Disagreement
from strandline.controller.asking import verification, wrong_replicas
from strandline.controller.asking.selfcheck import SelfCheck
from strandline.controller.asking.status import status
from strandline.controller.asking.wrong_replicas import Recomputed, WrongReplicas
from strandline.controller.defining.creating import alter
from strandline.controller.language.instances import AddReplica, DropReplica
from strandline.controller.language.statements import parse
from strandline.controller.location.items import View
from strandline.frontier import Frontier
from strandline.instance.commands import Advance
from strandline.instance.instance import Instance
from strandline.instance.protocol.messages import Command, Hello, Unknown
from strandline.instance.replica import Connection
from strandline.persist.handles.contents import Rows, StageRequest
from strandline.persist.shard.batch import Digest, Staged
from strandline.plane import Differences
from strandline.store.protocols import Blob
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


def counted_wrong_inside(names: Sequence[str], row: Row) -> Row | None:
    """Count one too many in the stage that counts the rows of groups."""
    return row | {"rows": row["rows"] + 1} if row.get("grp_3") == GROUP and row["__diff"] > 0 else row


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

    @property
    def owing(self) -> bool:
        """Whether the right replica still has something to withdraw."""
        return any(sink.owes for sink in self.sinks("a"))

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
        assert not self.owing


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


@pytest.mark.parametrize(("a", "b"), [(0, SLOW), (SLOW, 0)], ids=["the right one is first", "the wrong one is first"])
def test_a_replica_that_is_wrong_in_an_inner_stage_is_named(a: int, b: int) -> None:
    """Damage: what a view is computed from is wrong, and the replica that computes rightly from it is stopped."""

    async def body() -> None:
        async with two(a, b, NESTED) as at:
            view = at.at.core.catalog.items["nested"]
            assert isinstance(view, View)
            at.engine.plant, at.engine.shard = counted_wrong_inside, next(iter(view.stages.values()))
            assert await at.until_named() <= NAMED_WITHIN
            (problem,) = at.problems.values()
            assert problem.startswith("replica 'b' of instance 'x' computed 'nested/"), problem
            await at.flat()

    asyncio.run(body())


def test_wrong_rows_that_a_replica_trusted_are_found_and_the_other_one_is_named() -> None:
    """Damage: the right replica is stopped for what it computed from rows that it was given as certified."""

    async def body() -> None:
        async with two(0, 0) as at:
            await at.at.processes["a:1"].kill()
            at.engine.plant, at.engine.evaluated = counted_wrong, True
            for _ in range(10):
                await at.tick()  # b alone
            at.at.processes["a:1"].begin()
            for _ in range(200):
                await at.tick()
                if any("computed 'totals' wrong" in each for each in at.problems.values()):
                    break
                await asyncio.sleep(0.01)  # noqa: TID251 - a connection is tried again after a while
            (problem,) = at.problems.values()
            assert problem.startswith("replica 'b' of instance 'x' computed 'totals' wrong at "), problem
            for _ in range(20):
                await at.tick()
            await at.flat()

    asyncio.run(body())


def test_a_view_that_is_yet_to_be_refreshed_is_not_looked_at_for_ever() -> None:
    """Damage: where a replica was wrong once, no tick is ever left out again, until the year that a report is for."""
    late = "CREATE MATERIALIZED VIEW late IN INSTANCE x REFRESH AT '2999-01-01' AS SELECT grp, n FROM totals"

    async def body() -> None:
        async with asyncio.timeout(120), site("a") as at:
            await at.execute(late)
            await at.tick(3)
            judge, shard = WrongReplicas(at.core), at.core.catalog.collection("late").shard
            judge._wrong[shard] = wrong_replicas._Wrong("x")  # as of all views of an instance that had a wrong replica
            for _ in range(wrong_replicas.AUDIT_AFTER):
                assert not judge.settled
                await judge.turn()
            assert judge.settled
            assert at.core.health.problems() == {}

    asyncio.run(body())


def test_a_shard_that_was_wrong_before_is_audited_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: replicas go on from rows that are known to be wrong, look after look; or one is named that is right."""

    async def wrong(*_: object) -> Differences:
        return Differences(1, 0, pa.table({"grp": [GROUP]}))

    monkeypatch.setattr(Recomputed, "compare", wrong)

    async def body() -> None:
        async with site("a", "b") as at:
            time = await at.tick(4)
            shard, judge = at.core.catalog.collection("totals").shard, WrongReplicas(at.core)
            found = Disagreement(Frontier(time), Frontier(time + 1), Digest(1, 1), Digest(2, 2), missing=1)
            at.core.require_writing().running.instances["x"].links["a"].heard.disagreements[shard] = found
            await judge.turn()
            await judge.settle()
            view = at.core.catalog.items["totals"]
            assert isinstance(view, View)
            assert (view.audits, at.core.health.problems()) == (1, {})

    asyncio.run(body())


def test_a_replica_that_runs_alone_goes_on() -> None:
    """Damage: a view stands still, because the only replica that is there was found to be wrong."""

    async def body() -> None:
        async with two(SLOW, 0) as at:
            at.engine.plant = counted_wrong
            while not at.problems:
                at.at.core.require_writing().running.instances["x"].bar = lambda *_: None  # type: ignore[method-assign]
                await at.tick()
            del at.at.core.require_writing().running.instances["x"].bar
            await at.at.processes["a:1"].kill()
            before = await at.tick()
            assert "it runs on, since no other replica is connected" in at.problems["totals"]
            await at.tick()
            assert (await at.at.core.readers.of("totals")).state.upper.at != before
            assert at.sinks("b") != []

    asyncio.run(body())


@pytest.mark.parametrize("by", ["another process", "dropping and adding it"])
def test_an_operator_has_a_replica_trusted_again(by: str) -> None:
    """Damage: a replica that was mended is never used again."""

    async def body() -> None:
        async with two(SLOW, 0) as at:
            at.engine.plant = counted_wrong
            await at.until_named()
            await at.tick()
            at.engine.plant = None
            if by == "another process":
                await at.at.processes["b:1"].kill()
                at.at.processes["b:1"].begin()
            else:
                for change in ("DROP REPLICA b", "ADD REPLICA b 'b:1'"):
                    statement = parse(f"ALTER INSTANCE x {change}")
                    assert isinstance(statement, AddReplica | DropReplica)
                    await alter(at.at.core, statement)
            instance = at.at.core.require_writing().running.instances["x"]
            for _ in range(200):
                await at.tick()
                if len(instance.obeying) == 2 and at.sinks("b"):
                    break
                await asyncio.sleep(0.01)  # noqa: TID251 - a connection is tried again after a while
            await at.flat()
            assert (at.problems, len(instance.obeying)) == ({}, 2)

    asyncio.run(body())


def test_what_was_found_before_a_controller_began_names_no_process_of_now() -> None:
    """Damage: a replica was mended and restarted, and the next controller stops it for what another process did."""

    async def body() -> None:
        async with two(SLOW, 0) as at:
            at.engine.plant = counted_wrong
            await at.until_named()
            at.engine.plant = None
            await at.at.processes["b:1"].kill()
            at.at.processes["a:1"].cut()
            at.at.processes["b:1"].begin()
            await at.at.open()
            at.judge = WrongReplicas(at.at.core)
            for _ in range(20):
                await at.tick()
            await at.flat()
            assert at.problems == {}

    asyncio.run(body())


def test_a_replica_that_writes_on_although_it_is_barred_is_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a wrong replica that hears no command spoils its views for ever."""
    monkeypatch.setattr(wrong_replicas, "OBEYS_WITHIN_S", 0)

    async def body() -> None:
        async with two(SLOW, 0) as at:
            at.at.processes["a:1"].cut()
            at.at.processes["b:1"].cut()
            await at.at.open()  # a generation under which replicas do not write yet
            at.judge = WrongReplicas(at.at.core)
            for _ in range(3):
                await at.tick()
            at.engine.plant, replica = counted_wrong, at.at.processes["b:1"].replica
            assert replica is not None
            obey = replica._obey

            async def deaf(connection: Connection, command: Command | Unknown) -> None:
                if isinstance(command, Advance | Hello):
                    await obey(connection, command)

            monkeypatch.setattr(replica, "_obey", deaf)
            await at.until_named()
            (problem,) = at.problems.values()
            assert "has not said yet that it obeys" in problem
            for _ in range(60):
                await at.tick()
                await asyncio.sleep(0.01)  # noqa: TID251 - a connection is tried again after a while
                if at.at.core.catalog.writes > 1 and not at.owing:
                    break
            assert at.at.core.catalog.writes == at.at.core.catalog.epoch
            for _ in range(20):
                await at.tick()
            await at.flat()

    asyncio.run(body())


def test_the_only_replica_is_found_wrong_by_the_self_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a view with one replica is wrong, and stays so until a person happens to verify it."""

    async def unanswered(*_: object) -> None:
        """Answer no text: this engine reads none."""

    monkeypatch.setattr(verification, "_meant", unanswered)

    async def body() -> None:
        async with asyncio.timeout(150), site("b", b=partial(Replicated, turns=0)) as at:
            check, engine = SelfCheck(at.core), at.processes["b:1"].engine
            assert isinstance(engine, Replicated)
            await at.tick()
            await check.turn()
            assert at.core.health.problems() == {}
            engine.plant = counted_wrong
            await at.tick(GROUP + 1)
            await check.turn()
            await check.settle()
            assert "the self-check found" in at.core.health.problems()["totals"]

    asyncio.run(body())


def test_of_three_replicas_the_wrong_one_is_named() -> None:
    """Damage: a right replica is stopped, as one of two that may be wrong."""

    async def body() -> None:
        engines = {"a": partial(Replicated, turns=SLOW), "c": partial(Replicated, turns=SLOW + 1)}
        async with asyncio.timeout(120), site("a", "b", "c", b=partial(Replicated, turns=0), **engines) as at:
            both = Two(at)
            for _ in range(10):
                await both.tick()
            both.engine.plant = counted_wrong
            await both.until_named()
            for _ in range(10):
                await both.tick()
            assert at.core.require_writing().running.instances["x"].trust.bars.keys() == {"b"}
            await both.flat()

    asyncio.run(body())
