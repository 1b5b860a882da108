"""Whatever goes wrong at either end of a connection is said; what only one replica may run never runs in two."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NoReturn

import pytest
from tests.controller.instances.apart import TOTALS, Site, held, refusing, replica_of, run, site
from tests.controller.instances.pairs import Pair

from strandline.controller.asking import peeking
from strandline.controller.asking.peeking import peek
from strandline.errors import ConfigError, CorruptionError
from strandline.instance import problems
from strandline.instance.commands import Advance

PATIENCE_S = 60.0
INDEX = "CREATE INDEX i ON totals (grp) IN INSTANCE x"


async def hangs(*_: Any, **__: Any) -> None:
    """Never return."""
    await asyncio.Event().wait()


async def passes(at: Site, until: Callable[[], bool]) -> None:
    """Tick until it is so, each time for a moment only."""
    while not until():
        await at.tick_within(0.2)


def test_items_of_a_replica_that_hangs_are_said_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a call in a replica never returns, all views of the instance stand still, and status is silent."""

    async def body() -> None:
        async with site("a") as at:
            await at.agree(await at.tick(2))
            monkeypatch.setattr(problems, "LONG_S", 0.3)
            replica = replica_of(at, "a")

            replica._instance._views.start = hangs  # type: ignore[union-attr, method-assign]
            await at.execute(TOTALS.replace("totals", "more"))
            await passes(at, lambda: at.core.health.problems().keys() >= {"totals", "more"})

    run(body())


def test_what_fails_in_a_replica_as_a_whole_is_said_until_it_no_longer_fails() -> None:
    """Damage: its views stand still, and the reason was said for a quarter of a second to a list that is not shown."""

    async def body() -> None:
        async with site("a") as at:
            await at.agree(await at.tick(2))
            replica = replica_of(at, "a")
            look = replica._instance.look  # type: ignore[union-attr]

            async def bad(**_: Any) -> NoReturn:
                raise CorruptionError("the rollup of a shard is gone")

            replica._instance.look = bad  # type: ignore[union-attr, method-assign]
            await at.tick()
            assert "rollup of a shard is gone" in at.core.health.problems()["totals"]
            status = at.core.require_writing().running.replicas()["x"]["a"]
            assert "rollup of a shard is gone" in status.problem
            replica._instance.look = look  # type: ignore[union-attr, method-assign]
            await passes(at, lambda: not at.core.health.problems())
            await at.agree(await at.tick())

    run(body())


def test_a_connection_that_cannot_be_made_says_why() -> None:
    """Damage: a token that cannot be read is for ever said to be "it was not connected yet"."""

    async def body() -> None:
        async with site("a") as at:

            async def bad(_: str) -> NoReturn:
                raise ConfigError("connecting to it needs a token")

            at.core.require_writing().running.instances["x"].links["a"]._dial = bad
            said = "connecting to it needs a token"
            await passes(at, lambda: said in at.core.health.problems().get("totals", ""))

    run(body())


def test_a_command_that_a_replica_does_not_know_is_its_problem() -> None:
    """Damage: an older replica leaves out what it does not know, and no operator hears of it."""

    async def body() -> None:
        async with site("a") as at:
            await refusing(at)
            running = at.core.require_writing().running
            await passes(at, lambda: "Fancy" in running.replicas()["x"]["a"].problem)

    run(body())


def test_an_end_that_fails_costs_no_connection() -> None:
    """Damage: an endpoint's library raises at its end, and the replica is deaf from then on."""

    async def body() -> None:
        async with site("a") as at:
            await at.agree(await at.tick(2))
            replica = replica_of(at, "a")

            stop = replica._instance.stop  # type: ignore[union-attr]

            async def bad(name: str) -> NoReturn:
                await stop(name)
                raise OSError("disk I/O error")

            replica._instance.stop = bad  # type: ignore[union-attr, method-assign]
            await at.execute("DROP MATERIALIZED VIEW totals", TOTALS)
            await at.agree(await at.tick(2))
            assert len(at.processes["a:1"].serving) == 1, "it is the first connection"

    run(body())


def test_an_index_never_answers_for_another_one_of_its_name() -> None:
    """Damage: a peek returns rows of a collection that was not asked about."""

    async def body() -> None:
        async with site("a") as at:
            await at.execute(
                TOTALS.replace("totals", "other").replace("count(*)", "count(*) + 1000"),
                INDEX,
            )
            time = await at.tick(3)
            group = next(iter(await held(at.core, "totals", time)))[0]
            replica = replica_of(at, "a")
            go_on, late = replica._go_on, asyncio.Event()

            async def slow() -> None:
                await late.wait()
                await go_on()

            replica._go_on = slow  # type: ignore[method-assign]
            instance = at.core.require_writing().running.instances["x"]
            instance.aim(Advance(time))
            await at.execute("DROP INDEX i", INDEX.replace("totals", "other"))
            assert at.core.require_writing().running.upper("i").at == 0, "nothing was said of the new one yet"
            rows = (await peek(at.core, "other", [{"grp": group}], time, None, 60.0)).to_pylist()
            late.set()
            assert {row["n"] > 1000 for row in rows} == {True}

    run(body())


def test_a_peek_waits_for_no_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: each tick holds peeks back for as long as it takes."""
    monkeypatch.setattr(peeking, "ANSWER_S", PATIENCE_S)  # after that the controller reads the rows itself

    async def body() -> None:
        async with site("a") as at:
            await at.execute(INDEX)
            now = await at.tick(3)
            replica = replica_of(at, "a")
            late = asyncio.Event()

            async def slow(**_: Any) -> None:
                await late.wait()

            replica._instance.look = slow  # type: ignore[union-attr, method-assign]
            instance = at.core.require_writing().running.instances["x"]
            for _ in range(3):
                instance.aim(Advance(now))
                await at.core.assembly.clock.sleep(0.05)
            asking = asyncio.create_task(peek(at.core, "totals", [{"grp": 0}], now, None, 60.0))  # noqa: TID251
            await asyncio.wait([asking], timeout=PATIENCE_S / 2)
            answered = asking.done()
            late.set()
            await asking
            assert answered, "it waits for the tick"

    run(body())


def test_an_instance_that_is_slow_keeps_no_other_one_waiting() -> None:
    """Damage: one replica that takes long makes the views of all instances late."""

    async def body() -> None:
        async with site("a") as at:
            at.process("q")
            await at.execute(
                "CREATE INSTANCE y REPLICAS (q 'q:1')",
                TOTALS.replace("totals", "more").replace("INSTANCE x", "INSTANCE y"),
            )
            await at.agree(await at.tick(2))
            slow = replica_of(at, "a")
            other = replica_of(at, "q")
            heard = asyncio.Event()
            obey = other._obey

            async def obeys(connection: Any, command: Any) -> None:
                if isinstance(command, Advance):
                    heard.set()
                await obey(connection, command)

            slow._instance.look, other._obey = hangs, obeys  # type: ignore[union-attr, method-assign]
            ticking = asyncio.create_task(at.tick_within(PATIENCE_S))  # noqa: TID251
            await heard.wait()
            assert not ticking.done(), "it waits for the slow one"
            ticking.cancel()
            await asyncio.wait([ticking])

    run(body())


# ---- what only one replica may run -----------------------------------------------------------------------------------


def test_what_only_one_may_run_stays_with_a_replica_that_came_back_and_is_busy() -> None:
    """Damage: an endpoint or a slot is fought over by two replicas, for good."""

    async def body() -> None:
        found = Pair()
        await found.begin()
        found.ends["a:1"].cut()
        while found.replicas.links["a"].connected:
            await found.clock.sleep(0.01)
        found.held["a:1"] = asyncio.Event()
        for ahead_ms in (1_000, 14_500, 5_000):
            await found.bring(ahead_ms)
        assert found.begun in ([], ["a:1"]), "it is connected: it may run it"
        found.held["a:1"].set()
        for _ in range(3):
            await found.bring()
        assert set(found.begun) == {"a:1"}
        await found.replicas.close()

    run(body())


def test_a_barred_replica_lets_go_before_another_one_begins() -> None:
    """Damage: a wrong replica and a right one write to one endpoint."""

    async def body() -> None:
        found = Pair()
        await found.begin()
        found.clock.ahead_ms += 60_000
        found.held["a:1"] = asyncio.Event()
        found.replicas.bar("a", "it is wrong")
        await found.bring()
        assert found.begun == [], "it has not said that it obeys"
        found.held["a:1"].set()
        while not found.replicas.trust.obeys("a", found.replicas.links["a"]):
            await found.clock.sleep(0.01)
        await found.bring()
        assert found.begun == ["b:1"]
        await found.replicas.close()

    run(body())


def test_a_barred_replica_that_never_obeys_keeps_nothing_for_ever() -> None:
    """Damage: an endpoint stands still for as long as a wrong replica hangs."""

    async def body() -> None:
        found = Pair()
        await found.begin()
        found.held["a:1"] = asyncio.Event()
        found.replicas.bar("a", "it is wrong")
        await found.bring()
        assert found.begun == []
        await found.bring(16_000)
        assert found.begun == ["b:1"]
        await found.replicas.close()

    run(body())


def test_a_replica_that_is_no_longer_one_is_left_and_one_that_moved_is_found() -> None:
    """Damage: what a replica of before runs goes on beside its successor, and a new address is never dialed."""

    async def body() -> None:
        pair = Pair()
        await pair.replicas.follow({"a": "a:1", "b": "b:1"})
        await pair.bring()
        await pair.replicas.follow({"a": "a:2"})
        await pair.bring()
        assert {name: link.address for name, link in pair.replicas.links.items()} == {"a": "a:2"}
        assert sorted(pair.ends) == ["a:1", "a:2", "b:1"]
        await asyncio.wait(pair.serving[:2])  # each ends with its connection
        await pair.replicas.follow({})
        await asyncio.wait(pair.serving)

    run(body())
