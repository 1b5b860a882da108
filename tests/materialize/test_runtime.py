"""The runtime over endpoints whose commit is its recovery log, and its status."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strandline.algebra.schema import DIFF
from strandline.errors import DefinitionError, FencedError, InvalidUsage, ProtocolViolation, Unavailable
from strandline.frontier import Frontier
from strandline.materialize.driver import Applied
from strandline.materialize.feed import Batches, Changes
from strandline.materialize.log import RecoveryLog, peek, register_of
from strandline.materialize.protocol import fsm, states
from strandline.materialize.protocol.fsm import QUIET_TIMES_MAX
from strandline.materialize.protocol.messages import (
    Acknowledge,
    Acknowledged,
    Flush,
    Loaded,
    Request,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import Binding, MaterializationSpec, Progress, StateUpdate
from strandline.materialize.runtime import APPLY_ROUNDS_MAX, Task
from strandline.materialize.spool import Spool
from strandline.materialize.status import Counts, Moving, Status
from strandline.store.memory import MemoryConsensus
from strandline.store.protocols import CompareAndSet
from strandline.testing.contracts.drivers.driver_contract import DriverContract, crash_once
from strandline.testing.contracts.drivers.world import KEYED, KEYED_TYPES, MakeEndpoint, World, row
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.endpoints import (
    Endpoint,
    KeyValueSession,
    MemoryDriver,
    MemoryEndpoint,
    MemorySession,
    StagingSession,
)
from strandline.testing.feed import ListFeed
from strandline.testing.simulation.crashes import CrashPlan
from strandline.wiring.loop import RunningTask


class TestKeyValue(DriverContract):
    @pytest.fixture
    def make_endpoint(self) -> MakeEndpoint:
        return partial(MemoryEndpoint, KeyValueSession, fences=False)


class TestStaging(DriverContract):
    @pytest.fixture
    def make_endpoint(self) -> MakeEndpoint:
        return partial(MemoryEndpoint, StagingSession)


CRASHES = st.lists(st.builds(CrashPlan, st.integers(1, 60), after=st.booleans()), max_size=8)


@pytest.mark.parametrize("session", [KeyValueSession, StagingSession])
@given(CRASHES)
def test_any_sequence_of_crashes_loses_nothing(session: type[MemorySession], plans: list[CrashPlan]) -> None:
    """Damage: the leftovers of one recovery break the next one (law M2)."""
    world = World(MemoryEndpoint(session))
    for plan in plans:
        asyncio.run(crash_once(world, CrashPlan(plan._at, after=plan._after)))


def world_of(session: type[MemorySession] = KeyValueSession) -> World:
    """Return a world whose endpoint is in memory."""
    return World(MemoryEndpoint(session))


def test_status_shows_the_position_and_the_counts() -> None:
    """Damage: the status shows a time that the endpoint has not reached."""
    world = world_of()
    orders, people = world.feeds

    async def body() -> None:
        runtime = world.runtime()
        assert (runtime.status.phase, runtime.status.position) == ("Closed", 0)
        orders.write(1, (row(1, 1.0, "a"), 1), (row(2, 1.0, "b"), 1))
        people.write(1, (row(1, 1.0, "a"), 1))
        world.seal(3)
        await runtime.advance()
        orders.write(3, (row(2, 1.0, "b"), -1))
        world.seal(4)
        await runtime.advance()
        world.seal(9)
        await runtime.advance()
        status = runtime.status
        assert (status.name, status.phase, status.checkpoint, status.position) == ("m", "Idle", 4, 9)
        assert (status.committed.transactions, status.committed.stored, status.committed.deleted) == (2, 3, 1)
        assert status.error is None

    asyncio.run(body())


class LargeFeed(ListFeed):
    """A collection of many rows, made batch by batch; it counts the batches that are alive at once."""

    batches, batch_rows = 30, 10_000
    most = 0

    async def changes(self, lower: int, upper: int, *, key: Sequence[str] = (), times: bool = False) -> Changes:
        return Changes(
            self.batches * self.batch_rows, self.made() if lower == 0 else self._batches(pa.table({DIFF: []}))
        )

    async def made(self) -> Batches:
        alive: list[weakref.ref[pa.RecordBatch]] = []
        for n in range(self.batches):
            ks = pa.array(range(n * self.batch_rows, (n + 1) * self.batch_rows), pa.int64())
            columns = {"k": ks, "f": pc.cast(ks, pa.float64()), "s": pc.cast(ks, pa.string())}
            batch = pa.record_batch({**columns, DIFF: pa.array(np.ones(self.batch_rows, np.int64))})
            alive.append(weakref.ref(batch))
            yield batch
            self.most = max(self.most, sum(each() is not None for each in alive))


class Sizing(KeyValueSession):
    """Keeps no rows, only how large the messages were."""

    sizes: ClassVar[list[int]] = []

    def answers(self, message: Request) -> list[Response]:
        if isinstance(message, Store):
            self.sizes.append(len(message.rows))
            return []
        return super().answers(message)


def test_a_first_sync_holds_few_batches_and_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: the first sync of a large view needs more memory than the machine has, and says nothing meanwhile."""
    monkeypatch.setattr(Spool.__init__, "__defaults__", (1 << 20,))
    monkeypatch.setattr(Sizing, "sizes", [])
    feed = LargeFeed("orders", KEYED, KEYED_TYPES)
    feed.seal(Frontier(2))
    rows = feed.batches * feed.batch_rows
    seen: list[Status] = []
    held = 0

    def watch(status: Status) -> None:
        nonlocal held
        held = max(held, sum(each._spool._bytes for each in runtime._transfers.values()))
        seen.append(status)

    spec = MaterializationSpec("m", (Binding("orders", "Orders", ("k", "f"), KEYED),))
    log = RecoveryLog(HandClock(), CountingIds(), MemoryConsensus(), "log/m", 1)
    runtime = Task(spec, MemoryDriver(Endpoint(), Sizing), log, [feed], watch)
    asyncio.run(runtime.advance())
    assert runtime.status.committed == Counts(1, rows, 0)
    assert feed.most <= 2
    assert held <= 2 << 20
    assert sum(Sizing.sizes) == rows
    assert max(Sizing.sizes) <= feed.batch_rows + 2
    read = [status.moving.read for status in seen if status.phase == "Extending"]
    sent = [status.moving.sent for status in seen if status.phase == "Storing"]
    assert read == [n * feed.batch_rows for n in range(feed.batches + 1)]
    assert sent == sorted(sent)
    assert sent[-1] == rows
    assert {status.moving.about for status in seen} == {rows}
    assert runtime.status.moving == Moving()


def test_all_tables_of_a_task_are_at_one_time() -> None:
    """Damage: a join of two tables at the endpoint gives what was never true."""
    world = world_of()
    orders, people = world.feeds

    async def body() -> None:
        runtime = world.runtime()
        orders.write(1, (row(1, 1.0, "a"), 1))
        orders.write(4, (row(2, 1.0, "b"), 1))
        people.write(1, (row(1, 1.0, "a"), 1))
        orders.seal(Frontier(9))
        assert not await runtime.advance(), "nothing is known of the other collection yet"
        people.seal(Frontier(3))
        await runtime.advance()
        assert runtime.status.position == 3
        world.check(3)

    asyncio.run(body())


def test_a_transaction_begins_once_the_previous_one_is_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: two transactions are in flight, and `advance` returns before its rows can be read at the endpoint."""
    world, seen = world_of(), []

    def step(machine: states.Machine, event: states.Event) -> fsm.Step:
        if isinstance(event, states.Extend):
            seen.append(machine.tail)
        return fsm.step(machine, event)

    monkeypatch.setattr("strandline.materialize.runtime.step", step)

    async def body() -> None:
        runtime = world.runtime()
        for time in (1, 2, 3):
            world.feeds[0].write(time, (row(time, 1.0, "a"), 1))
            world.seal(time + 1)
            assert await runtime.advance()
            world.check(time + 1)

    asyncio.run(body())
    assert seen == [states.Done()] * 3


def test_quiet_time_costs_no_transaction_and_frees_history() -> None:
    """Damage: an idle task writes at every tick, or keeps every update ever made."""
    world = world_of()

    async def body() -> None:
        runtime = world.runtime()
        world.feeds[0].write(1, (row(1, 1.0, "a"), 1))
        world.seal(2)
        await runtime.advance()
        for upper in (5, 2 + QUIET_TIMES_MAX):
            world.seal(upper)
            await runtime.advance()
        assert runtime.status.committed.transactions == 1
        assert [feed.since for feed in world.feeds] == [Frontier(1 + QUIET_TIMES_MAX)] * 2
        again = world.runtime()
        await again.advance()
        assert again.status.position == 2 + QUIET_TIMES_MAX

    asyncio.run(body())


@pytest.mark.parametrize("session", [KeyValueSession, StagingSession])
def test_the_log_says_that_a_transaction_is_acknowledged_at_the_cost_of_one_write(session: type[MemorySession]) -> None:
    """Damage: other processes never learn that rows are there; or each tick writes to the store once more."""
    world = world_of(session)
    orders, _ = world.feeds
    written, logged = world.consensus.compare_and_set, list[Progress]()

    async def watched(request: CompareAndSet) -> Any:
        answer = await written(request)
        logged.append((await peek(register_of("log/m", world.clock, CountingIds("p"), world.consensus))).progress)
        return answer

    async def body() -> None:
        runtime = world.runtime()
        await runtime.open()
        world.consensus.compare_and_set = watched  # type: ignore[method-assign]
        for time in (2, 3):
            logged.clear()
            orders.write(time - 1, (row(time, 1.0, "a"), 1))
            world.seal(time)
            await runtime.advance()
            assert [each.committing for each in logged] == [False, True, False], "its extent, its commit, its end"
            before = 0 if time == 2 else 2
            assert [each.acknowledged.time(world.spec.state_keys) for each in logged] == [before, before, time]
            assert logged[-1].extent is None
        logged.clear()
        world.seal(4)
        await runtime.advance()
        assert logged == []

    asyncio.run(body())


def test_an_error_is_raised_and_the_next_advance_starts_again() -> None:
    """Damage: one locked file stops a task until an operator restarts the process."""
    world = world_of()

    async def body() -> None:
        runtime = world.runtime()
        world.feeds[0].write(1, (row(1, 1.0, "a"), 1), (row(1, 1.0, "b"), 1))
        world.seal(2)
        with pytest.raises(DefinitionError, match="more than one row"):
            await runtime.advance()
        assert runtime.status.phase == "Failed"
        assert "more than one row" in (runtime.status.error or "")
        world.feeds[0].write(2, (row(1, 1.0, "b"), -1))
        world.seal(3)
        assert await runtime.advance()
        assert runtime.status.error is None
        world.check(3)

    asyncio.run(body())


def test_being_fenced_is_final() -> None:
    """Damage: two processes take the task from each other for ever."""
    world = world_of()

    async def body() -> None:
        older, newer = world.runtime(), world.runtime(epoch=2)
        await older.open()
        await newer.open()
        world.seal(2)
        for _ in range(2):
            with pytest.raises(FencedError):
                await older.advance()
        assert await newer.advance()

    asyncio.run(body())


def test_feeds_must_be_those_of_the_bindings() -> None:
    """Damage: a table is filled from another collection."""
    world = world_of()
    log = RecoveryLog(HandClock(), CountingIds(), world.consensus, "log", 1)
    with pytest.raises(InvalidUsage, match="one feed per binding"):
        Task(world.spec, world.endpoint.driver(), log, world.feeds[::-1])


@pytest.mark.parametrize("rounds", [0, 3, APPLY_ROUNDS_MAX + 1])
def test_apply_is_repeated_until_it_has_no_state(rounds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: staged work is still outstanding when a table is changed."""
    world = world_of()

    async def apply(self: MemoryDriver, spec: Any, state: Any) -> Applied:
        done = state.get("n", 0)
        return Applied(f"round {done}", StateUpdate({"n": done + 1}, merge_patch=True) if done < rounds else None)

    monkeypatch.setattr(MemoryDriver, "apply", apply)

    async def body() -> None:
        runtime = world.runtime()
        if rounds > APPLY_ROUNDS_MAX:
            with pytest.raises(Unavailable, match="does not come to an end"):
                await runtime.open()
        else:
            await runtime.open()
            assert runtime.status.applied == tuple(f"round {n}" for n in range(rounds + 1))

    asyncio.run(body())


def test_what_was_done_to_tables_is_said_until_they_are_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: of a table that was filled long ago `status` says for ever that it is filled from the start."""
    world = world_of()

    async def apply(self: MemoryDriver, spec: Any, state: Any) -> Applied:
        return Applied("table 't' is filled from the start")

    monkeypatch.setattr(MemoryDriver, "apply", apply)

    async def body() -> None:
        runtime = world.runtime()
        await runtime.open()
        said = runtime.status.applied
        assert said == ("table 't' is filled from the start",)
        world.seal(2)
        assert runtime.status.applied == said
        while runtime.status.position < 2:
            await runtime.advance()
        await runtime.settle()
        assert runtime.status.applied == ()
        again = world.runtime(epoch=2)  # nothing is filled by opening it anew, so nothing is over
        await again.open()
        assert again.status.applied == said

    asyncio.run(body())


def test_a_driver_that_breaks_the_protocol_is_stopped() -> None:
    """Damage: unrequested rows count as an answer."""

    class Chatty(KeyValueSession):
        def answers(self, message: Request) -> list[Response]:
            if isinstance(message, Flush):
                self._answers.put(Loaded(0, pa.table({})))
            return super().answers(message)

    world = world_of(Chatty)

    async def body() -> None:
        world.seal(2)
        runtime = world.runtime()
        with pytest.raises(ProtocolViolation, match="Loaded came in Flushing"):
            await runtime.advance()
        assert runtime.status.committed.transactions == 0

    asyncio.run(body())


def test_an_advance_goes_on_from_what_was_under_way_to_where_the_collections_are() -> None:
    """Damage: a tick is said to have reached the endpoint, and its rows come with the next one."""
    gate, commits = asyncio.Event(), asyncio.Event()

    class Slow(KeyValueSession):
        async def ask(self, message: Request) -> list[Response]:
            if isinstance(message, StartCommit):
                self.say(StartedCommit())
                commits.set()
                await gate.wait()
                return []
            if isinstance(message, Acknowledge):
                return [Acknowledged()]
            return await super().ask(message)

    world = world_of(Slow)

    async def body() -> None:
        runtime = world.runtime()
        runtime._beside = partial(RunningTask, HandClock())  # it looks for more while the endpoint commits
        world.write_round()
        first = RunningTask(HandClock(), cast("Any", runtime.advance))
        await commits.wait()
        world.write_round()
        while not isinstance(runtime._machine.head, states.Extending):
            await asyncio.to_thread(lambda: None)
        world.write_round()
        gate.set()
        await first.wait(None)
        await runtime.advance()
        assert runtime.status.position == world.upper
        world.check(world.upper)
        await runtime.close()

    asyncio.run(asyncio.wait_for(body(), 120))
