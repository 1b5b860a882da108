"""A replica answers each peek once, over the connection that asked, and whatever else it does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from strandline.bench.environment import _change, _Counting, over_lists
from strandline.controller.commanded import collection
from strandline.controller.core import Core
from strandline.controller.defining.creating import create
from strandline.controller.language.statements import CreateTable
from strandline.controller.location.config import Config, Mode
from strandline.instance.carriers.buffer import QueueCarrier, pair
from strandline.instance.commands import RunIndex
from strandline.instance.connections import Equipment
from strandline.instance.indexes.keys import packed, unpacked
from strandline.instance.protocol.codec import decode, encode
from strandline.instance.protocol.messages import (
    AllowWrites,
    CancelPeeks,
    Command,
    Create,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    PeekResponse,
    Reconciled,
    Refused,
    Schedule,
)
from strandline.instance.replica import Replica
from strandline.persist.client import PersistClient
from strandline.persist.handles.contents import Contents
from strandline.sources.question import Patience
from strandline.store.clock import SystemClock
from strandline.testing.doubles import CountingIds
from strandline.wiring.loop import RunningTask, side_by_side


class Held(_Counting):
    """An engine whose peeks wait until they are let go."""

    def __init__(self, blob: Any) -> None:
        super().__init__(blob)
        self.asked = 0
        self.go = asyncio.Event()
        self.go.set()

    async def peek(
        self, old: Contents, columns: Sequence[str], keys: pa.Table, limit: int | None = None
    ) -> pa.Table | None:
        if keys.num_rows:
            self.asked += 1
            await self.go.wait()
        return await super().peek(old, columns, keys, limit)


@dataclass
class Controller:
    """A controller's end of a connection, and what it has heard."""

    carrier: QueueCarrier
    heard: list[Any] = field(default_factory=list)

    async def say(self, *commands: Command) -> None:
        """Send commands."""
        for each in commands:
            await self.carrier.send(encode(each))

    async def hear(self, wanted: Callable[[], bool], seconds: float = 120.0) -> None:
        """Receive until something has come, for so many seconds at most."""
        async with asyncio.timeout(seconds):
            while not wanted():
                frame = await self.carrier.receive(0.01)
                if frame is not None:
                    self.heard.append(decode(frame))

    def answers(self, uuid: str) -> list[PeekResponse]:
        """Return the answers to a peek."""
        return [each for each in self.heard if isinstance(each, PeekResponse) and each.uuid == uuid]

    def ready(self) -> bool:
        """Return whether the replica has compared what it runs."""
        return any(isinstance(each, Reconciled) for each in self.heard)


@dataclass
class Site:
    """A replica that runs an index of a table with some rows, at ``time``."""

    engine: Held
    replica: Replica
    index: Create
    time: int
    serving: list[asyncio.Task[None]] = field(default_factory=list)

    async def connect(self, epoch: int, *before: Command, complete: bool = True) -> Controller:
        """Connect as the controller of a generation, which says ``before`` before it has said everything."""
        ours, theirs = pair()
        self.serving.append(asyncio.get_running_loop().create_task(self.replica.serve(theirs)))
        found = Controller(ours)
        await found.say(Hello(epoch, 1, ""), CreateInstance("x", "a"))
        await found.say(self.index, Schedule("i"), *before, AllowWrites("i"))
        if complete:
            await found.say(InitializationComplete())
            await found.hear(found.ready)
        return found

    def peek(self, uuid: str, number: int = 1, *, as_of: int | None = None) -> Peek:
        """Return a peek by the table's id."""
        key = packed(pa.table({"id": pa.array([number], pa.int32())}))
        return Peek(uuid, "i", key, self.time if as_of is None else as_of, 10)


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    """Make a table with rows, and a replica in an event loop."""
    place, clock = over_lists(), SystemClock()
    core = await Core.open(place.assembly, Config(), Mode.FULL)
    await create(core, CreateTable("items", "id INT, grp INT, amount BIGINT"))
    for number in range(5):
        await _change(core, number)
    time = await core.tick()
    engine = Held(place.assembly.blob)
    client = PersistClient(clock, CountingIds("r"), place.assembly.blob, place.assembly.consensus, engine)
    have = place.assembly
    patience = Patience(partial(RunningTask, clock), 1.0)
    equipment = Equipment(client, engine, have.connectors, have.drivers, side_by_side, patience, 1)
    of = collection(core.catalog.collection("items"), core.config)
    index = Create("i", ("i",), RunIndex(of, ("id",)))
    found = Site(engine, Replica(equipment, "", "r"), index, time)
    try:
        yield found
    finally:
        await found.replica.close()
        for each in found.serving:
            each.cancel()
        await core.close()


def ids(answer: PeekResponse) -> list[int]:
    """Return the keys of the rows in an answer."""
    assert answer.rows is not None, answer
    found: list[int] = unpacked(answer.rows)["id"].to_pylist()
    return found


async def begun(at: Site, controller: Controller) -> None:
    """Return when the index answers."""
    for number in range(500):
        await controller.say(at.peek(f"try-{number}"))
        await controller.hear(lambda number=number: bool(controller.answers(f"try-{number}")))  # type: ignore[misc]
        if controller.answers(f"try-{number}")[0].rows is not None:
            return
        await SystemClock().sleep(0.01)
    raise AssertionError("the index was not begun")


def test_a_peek_is_answered_once_and_other_commands_meanwhile() -> None:
    """Damage: an answer comes twice; or a peek that takes long holds up everything that the replica does."""

    async def body() -> None:
        async with asyncio.timeout(150), site() as at:
            it = await at.connect(1)
            await begun(at, it)
            at.engine.go.clear()
            await it.say(at.peek("a", 2), at.peek("a", 2), at.peek("b", 3))
            nothing = Peek("c", "nothing", at.peek("c").key, at.time)
            await it.say(nothing, Peek("d", "i", b"no rows", at.time))
            await it.hear(lambda: bool(it.answers("c") and it.answers("d")))
            assert "does not run here" in it.answers("c")[0].error
            assert "no rows in the format" in it.answers("d")[0].error
            at.engine.go.set()
            await it.hear(lambda: bool(it.answers("a") and it.answers("b")))
            await it.say(Hello(1, 1, ""))
            await it.hear(lambda: any(isinstance(each, Refused) for each in it.heard))
            assert [ids(each) for each in it.answers("a")] == [[2]]
            assert [ids(each) for each in it.answers("b")] == [[3]]

    asyncio.run(body())


def test_a_cancelled_peek_is_answered_that_it_was_cancelled() -> None:
    """Damage: a peek that is cancelled is answered twice, or never, or holds a thread for ever."""

    async def body() -> None:
        async with asyncio.timeout(150), site() as at:
            it = await at.connect(1)
            await begun(at, it)
            at.engine.go.clear()
            asked = at.engine.asked
            await it.say(at.peek("a"), at.peek("b"), at.peek("late", as_of=at.time + (1 << 40)))
            while at.engine.asked < asked + 2:
                await SystemClock().sleep(0.001)
            await it.say(CancelPeeks(("a", "late", "unknown")), CancelPeeks(("a",)))
            await it.hear(lambda: bool(it.answers("a") and it.answers("late")))
            at.engine.go.set()
            await it.hear(lambda: bool(it.answers("b")))
            await it.say(at.peek("z"), CancelPeeks(("b",)))
            await it.hear(lambda: bool(it.answers("z")))
            assert [each.cancelled for each in it.answers("a")] == [True]
            assert [each.cancelled for each in it.answers("late")] == [True]
            assert [ids(each) for each in it.answers("b")] == [[1]]
            assert it.answers("unknown") == []

    asyncio.run(body())


def test_a_peek_of_a_connection_that_is_gone_or_superseded_is_dropped() -> None:
    """Damage: a controller that comes next gets answers to what it never asked, or work goes on for no one."""

    async def body() -> None:
        async with asyncio.timeout(150), site() as at:
            first = await at.connect(1)
            await begun(at, first)
            asked = at.engine.asked
            at.engine.go.clear()
            await first.say(at.peek("of one"))
            while at.engine.asked == asked:
                await SystemClock().sleep(0.001)
            second = await at.connect(2)
            await second.say(at.peek("of two"))
            await first.say(at.peek("too late"))
            while at.engine.asked < asked + 2:
                await SystemClock().sleep(0.001)
            second.carrier.cut()
            third = await at.connect(2)
            at.engine.go.set()
            await third.say(at.peek("of three"))
            await third.hear(lambda: bool(third.answers("of three")))
            assert [each.uuid for each in third.heard if isinstance(each, PeekResponse)] == ["of three"]
            assert not any(first.answers(each) for each in ("of one", "too late"))
            assert at.engine.asked == asked + 3, "what came over the old connection is not looked for"

    asyncio.run(body())


def test_a_peek_that_comes_before_everything_is_said_waits_for_that() -> None:
    """Damage: a controller that connects again asks an index that is about to be dropped, or gets no answer."""

    async def body() -> None:
        async with asyncio.timeout(150), site() as at:
            first = await at.connect(1)
            await begun(at, first)
            first.carrier.cut()
            again = await at.connect(2, at.peek("a"), at.peek("b"), CancelPeeks(("b",)), complete=False)
            await again.hear(lambda: bool(again.answers("b")))
            assert (again.answers("a"), again.answers("b")[0].cancelled) == ([], True)
            await again.say(InitializationComplete())
            await again.hear(lambda: bool(again.answers("a")))
            assert [ids(each) for each in again.answers("a")] == [[1]]
            said = next(each for each in again.heard if isinstance(each, Reconciled))
            assert (said.reused, said.created) == (1, 0)

    asyncio.run(body())
