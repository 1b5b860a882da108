"""A peek has one answer, the rows of its key at its time, whichever process gives it and whatever dies meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias

import pyarrow as pa
import pytest
from tests.controller.instances.apart import Site, held, site

from strandline.algebra.schema import Column, Schema
from strandline.controller.asking.peeking import peek
from strandline.controller.core import Core
from strandline.controller.instances.replicas import Replicas
from strandline.errors import AsOfError, DefinitionError, Disconnected, InvalidUsage
from strandline.instance import live
from strandline.instance.carriers.buffer import QueueCarrier, pair
from strandline.instance.commands import Advance, Collection, RunIndex
from strandline.instance.indexes.keys import packed, unpacked
from strandline.instance.protocol.codec import decode, encode
from strandline.instance.protocol.messages import (
    CancelPeeks,
    Hello,
    InitializationComplete,
    Peek,
    PeekResponse,
    Reconciled,
    Welcome,
)
from strandline.persist.shard.patience import Deadline
from strandline.store.clock import SystemClock
from strandline.wiring.loop import RunningTask

BY_GROUP = "CREATE INDEX by_group ON totals (grp) IN INSTANCE x"
BY_ID = "CREATE INDEX by_id ON items (id)"
ROWS = pa.table({"a": [1, 1]})
KEY = packed(pa.table({"a": [1]}))


async def asked(core: Core, name: str, *keys: dict[str, Any], as_of: int | None = None, **options: Any) -> Counter[Any]:
    """Return the rows that a peek finds."""
    found = await peek(core, name, keys, as_of, options.get("limit"), options.get("timeout_s", 60.0))
    return Counter(zip(*found.to_pydict().values(), strict=True))


async def right(core: Core, name: str, time: int, **key: Any) -> Counter[Any]:
    """Return the rows of a collection's snapshot that have a key."""
    names = (await core.readers.of(name)).schema.names
    places = {names.index(column): value for column, value in key.items()}
    rows = await held(core, name, time)
    return Counter({row: n for row, n in rows.items() if all(row[at] == value for at, value in places.items())})


def counted(core: Core, index: str) -> dict[str, int]:
    """Return how an index has answered."""
    return live.of(core.live(), live.INDEX, index)


def test_an_index_of_the_environment_answers_from_memory() -> None:
    """Damage: a peek reads the whole collection, or misses a row that was inserted before it."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await at.execute(BY_ID)
            for _ in range(5):
                time = await at.tick()
                for key in (0, at.n - 1, 99):
                    assert await asked(at.core, "items", {"ID": key}) == await right(at.core, "items", time, id=key)
            assert counted(at.core, "by_id") == {"memory": 15, "scanned": 0, "in_memory": 1}
            assert await asked(at.core, "items", {"id": 1}, {"id": 2}, {"id": 2}, limit=1)

    asyncio.run(body())


def test_an_index_in_an_instance_answers_by_any_of_its_replicas() -> None:
    """Damage: a peek finds nothing while one of two replicas is away, or rows of another time."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a", "b") as at:
            await at.execute(BY_GROUP)
            for number in range(6):
                time = await at.tick()
                for group in (0, 3, 9):
                    assert await asked(at.core, "totals", {"grp": group}) == await right(
                        at.core, "totals", time, grp=group
                    )
                if number == 2:
                    await at.processes["a:1"].kill()
            running = at.core.require_writing().running.instances["x"]
            (link,) = running.obeying
            await until(lambda: live.of(link.heard.counters, live.INDEX, "by_group").get("memory", 0) >= 9, at)
            assert at.core.health.problems() == {}

    asyncio.run(body())


async def until(come: Callable[[], bool], at: Site) -> None:
    """Tick until something has come."""
    while not come():
        await at.tick()


def test_an_index_whose_replicas_are_away_makes_a_peek_slower_and_no_worse() -> None:
    """Damage: a peek fails, or waits, because no replica is there."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await at.execute(BY_GROUP)
            time = await at.tick(3)
            await at.processes["a:1"].kill()
            assert await asked(at.core, "totals", {"grp": 1}) == await right(at.core, "totals", time, grp=1)
            assert await asked(at.core, "totals", {"n": 1}) == await right(at.core, "totals", time, n=1), "no index"

    asyncio.run(body())


def test_a_kept_index_answers_the_controller_that_comes_next() -> None:
    """Damage: a controller that restarts has its indexes made anew, or asks none of them."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await at.execute(BY_GROUP)
            await at.tick(3)
            at.processes["a:1"].cut()
            await at.open()
            time = await at.tick()
            assert await asked(at.core, "totals", {"grp": 1}) == await right(at.core, "totals", time, grp=1)
            link = at.core.require_writing().running.instances["x"].links["a"]
            assert link.heard.reconciled == Reconciled(2, {}, 0, 0)
            await until(lambda: link.heard.counters.get("index/by_group/memory", 0) == 1, at)
            await at.execute("DROP INDEX by_group")
            await at.tick()
            await until(lambda: "by_group" not in at.core.require_writing().running.report().frontiers, at)

    asyncio.run(body())


def test_a_time_that_is_to_come_is_waited_for_and_one_that_is_gone_refused() -> None:
    """Damage: a peek answers at another time than it was asked for, or never."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await at.execute(BY_ID, BY_GROUP)
            time = await at.tick(2)
            for name, key in (("items", {"id": 0}), ("totals", {"grp": 0}), ("totals", {"n": 1})):
                with pytest.raises(AsOfError, match="not complete"):
                    await asked(at.core, name, key, as_of=time + (1 << 30), timeout_s=0.05)
                wanted = time + 1
                come = asyncio.get_running_loop().create_task(asked(at.core, name, key, as_of=wanted))
                time = await at.tick()
                assert await come == await right(at.core, name, wanted, **key)
            await at.tick(3)
            since = (await (await at.core.readers.of("items")).refresh()).since.at
            assert since
            with pytest.raises(AsOfError):
                await asked(at.core, "items", {"id": 0}, as_of=since - 1)

    asyncio.run(body())


def test_a_key_that_no_row_could_have_is_refused_by_name() -> None:
    """Damage: a text finds nothing where a number was meant, and its author believes that."""

    async def body() -> None:
        async with asyncio.timeout(150), site("a") as at:
            await at.execute(BY_ID)
            await at.tick()
            refused: tuple[tuple[dict[str, Any], type[Exception], str], ...] = (
                ({"idd": 1}, DefinitionError, "did you mean 'id'"),
                ({"id": "1"}, InvalidUsage, "column 'id' of the key is int, and the value given is a str"),
                ({"id": 1.0}, InvalidUsage, "a float"),
                ({"id": True}, InvalidUsage, "a bool"),
                ({"id": 1 << 40}, InvalidUsage, "cannot hold"),
                ({}, InvalidUsage, "at least one column"),
            )
            for key, kind, why in refused:
                with pytest.raises(kind, match=why):
                    await asked(at.core, "items", key)
            with pytest.raises(InvalidUsage, match="a key has the columns id"):
                await asked(at.core, "items", {"id": 1}, {"grp": 1})
            with pytest.raises(DefinitionError, match="drop that first"):
                await at.execute("DROP TABLE items")
            for text, why in (
                ("CREATE INDEX i ON nothing (a)", "no collection 'nothing'"),
                ("CREATE INDEX i ON items (idd)", "did you mean 'id'"),
                ("CREATE INDEX i ON items (id) IN INSTANCE z", "no instance 'z'"),
                ("CREATE INDEX by_id ON items (grp)", "there is an index 'by_id' already"),
            ):
                with pytest.raises(DefinitionError, match=why):
                    await at.execute(text)

    asyncio.run(body())


@pytest.mark.parametrize("seed", range(6))
def test_peeks_at_any_time_beside_ticks_are_filters_of_snapshots(seed: int) -> None:
    """Damage: a peek that races a tick has half of it."""

    async def body() -> None:
        rng = random.Random(seed)
        async with asyncio.timeout(150), site("a", "b") as at:
            await at.execute(BY_ID, BY_GROUP, "CREATE INDEX by_two ON items (grp, amount)")
            times = [await at.tick()]
            done: list[tuple[str, dict[str, Any], int, Counter[Any]]] = []

            async def ask() -> None:
                for _ in range(40):
                    name, key = rng.choice(
                        [
                            ("items", {"id": rng.randrange(12)}),
                            ("items", {"grp": rng.randrange(8), "amount": rng.randrange(4)}),
                            ("totals", {"grp": rng.randrange(8)}),
                            ("totals", {"n": rng.randrange(3)}),
                        ]
                    )
                    time = rng.choice(times[-3:])
                    with suppress(AsOfError):
                        done.append((name, key, time, await asked(at.core, name, key, as_of=time)))
                    await asyncio.sleep(0)  # noqa: TID251 - no time passes

            asking = [asyncio.get_running_loop().create_task(ask()) for _ in range(3)]
            checked = 0
            while not all(each.done() and each.result() is None for each in asking) or checked < len(done):
                times.append(await at.tick())
                for name, key, time, found in done[checked:]:
                    checked += 1
                    with suppress(AsOfError):  # history was released meanwhile
                        assert found == await right(at.core, name, time, **key)
            assert checked > 60

    asyncio.run(body())


# ---- replicas that do not behave -------------------------------------------------------------------------------------

Answering: TypeAlias = Callable[["Peer", Peek], Awaitable[None]]


class Peer:
    """A replica that runs whatever it is to run, and answers peeks as a test says."""

    def __init__(self, answering: Answering) -> None:
        self.answering = answering
        self.peeks: list[Peek] = []
        self.cancelled: list[str] = []
        self.ends: list[QueueCarrier] = []
        self.serving: list[asyncio.Task[None]] = []

    def connected(self) -> QueueCarrier:
        """Return a controller's end of a new connection."""
        ours, theirs = pair()
        self.ends.append(theirs)
        self.serving.append(asyncio.get_running_loop().create_task(self.serve(theirs)))
        return ours

    async def serve(self, carrier: QueueCarrier) -> None:
        """Obey."""
        with suppress(Disconnected):
            while (frame := await carrier.receive(None)) is not None:
                match decode(frame):
                    case Hello():
                        await carrier.send(encode(Welcome("peer")))
                    case InitializationComplete():
                        await carrier.send(encode(Reconciled(0, {}, 0, 1)))
                    case Peek() as said:
                        self.peeks.append(said)
                        await self.answering(self, said)
                    case CancelPeeks(uuids):
                        self.cancelled += uuids

    async def answer(self, asked: Peek, rows: pa.Table | None = ROWS, *, times: int = 1) -> None:
        """Answer a peek over the newest connection."""
        for _ in range(times):
            answer = PeekResponse(asked.uuid, error="no") if rows is None else PeekResponse(asked.uuid, packed(rows))
            await self.ends[-1].send(encode(answer))

    def cut(self) -> None:
        """Cut the newest connection."""
        self.ends[-1].cut()


async def twice(peer: Peer, asked: Peek) -> None:
    """Answer twice."""
    await peer.answer(asked, times=2)


async def never(peer: Peer, asked: Peek) -> None:
    """Answer not at all."""


async def refusing(peer: Peer, asked: Peek) -> None:
    """Answer with an error."""
    await peer.answer(asked, None)


async def dying(peer: Peer, asked: Peek) -> None:
    """Be gone before there is an answer."""
    peer.cut()


async def opened(**answering: Answering) -> tuple[Replicas, dict[str, Peer]]:
    """Return replicas that obey, each of which answers as the test says."""
    clock = SystemClock()
    peers = {name: Peer(each) for name, each in answering.items()}

    async def dial(address: str) -> QueueCarrier:
        return peers[address].connected()

    replicas = Replicas("x", Hello(1, 1, ""), dial, partial(RunningTask, clock), clock, lambda: None)
    await replicas.follow({name: name for name in peers})
    schema = Schema((Column("a", "int"),))
    replicas.start("i", RunIndex(Collection("v", "s", schema), ("a",)))
    replicas.aim(Advance(1))
    while len(replicas.obeying) < len(peers):
        await clock.sleep(0.005)
    return replicas, peers


async def ended(replicas: Replicas, peers: dict[str, Peer]) -> None:
    """End what `opened` began."""
    await replicas.close()
    for peer in peers.values():
        for each in peer.serving:
            each.cancel()


async def come(fact: Callable[[], bool]) -> None:
    """Return when it is so."""
    while not fact():
        await SystemClock().sleep(0.001)


def answered(rows: bytes | None) -> list[Any] | None:
    """Return the rows of an answer."""
    return None if rows is None else unpacked(rows).to_pylist()


@pytest.mark.parametrize(
    ("answering", "wanted"),
    [
        ({"a": twice}, True),
        ({"a": twice, "b": twice}, True),
        ({"a": dying, "b": twice}, True),
        ({"a": refusing, "b": twice}, True),
        ({"a": never, "b": twice}, True),
        ({"a": dying}, False),
        ({"a": refusing}, False),
        ({"a": refusing, "b": dying}, False),
        ({"a": never}, False),
    ],
    ids=str,
)
def test_each_peek_has_one_answer(answering: dict[str, Answering], wanted: bool) -> None:
    """Damage: rows are handed on twice, or to another peek; or a peek waits for a replica that is gone."""

    async def body() -> None:
        async with asyncio.timeout(150):
            replicas, peers = await opened(**answering)
            for n in range(5):
                deadline = Deadline(SystemClock(), 120 if wanted else 0.2)
                rows = await replicas.peek(Peek(f"u-{n}", "i", KEY, 3), deadline)
                assert answered(rows) == (ROWS.to_pylist() if wanted else None)
            said = {each.uuid for peer in peers.values() for each in peer.peeks}
            assert "u-0" in said
            await ended(replicas, peers)
            left = [each for each in replicas._history.reduced() if isinstance(each, Peek | CancelPeeks)]
            assert left == [], "a replica that connects later is asked nothing"

    asyncio.run(body())


def test_a_peek_that_its_caller_gave_up_is_cancelled() -> None:
    """Damage: replicas go on with what no caller waits for."""

    async def body() -> None:
        async with asyncio.timeout(150):
            replicas, peers = await opened(a=never)
            waiting = asyncio.get_running_loop().create_task(
                replicas.peek(Peek("u", "i", KEY, 3), Deadline(SystemClock(), 120))
            )
            await come(lambda: bool(peers["a"].peeks))
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            await come(lambda: peers["a"].cancelled == ["u"])
            await peers["a"].answer(peers["a"].peeks[0])
            rows = await replicas.peek(Peek("w", "i", KEY, 3), Deadline(SystemClock(), 0.1))
            assert rows is None, "the late answer is of another peek"
            await ended(replicas, peers)

    asyncio.run(body())


def test_a_peek_that_is_open_is_asked_of_a_replica_that_connects() -> None:
    """Damage: one replica hangs, and another one that comes meanwhile is not asked."""

    async def body() -> None:
        async with asyncio.timeout(150):
            replicas, peers = await opened(a=never, b=dying)
            waiting = asyncio.get_running_loop().create_task(
                replicas.peek(Peek("u", "i", KEY, 3), Deadline(SystemClock(), 120))
            )
            await come(lambda: bool(peers["b"].peeks))
            peers["b"].answering = twice
            while not waiting.done():
                replicas.aim(Advance(1))  # has links try again
                await asyncio.sleep(0.01)  # noqa: TID251 - a connection is tried again after a while
            assert answered(await waiting) == ROWS.to_pylist()
            assert [each.uuid for each in peers["b"].peeks] == ["u", "u"]
            await ended(replicas, peers)

    asyncio.run(body())
