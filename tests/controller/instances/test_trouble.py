"""Whatever goes wrong at either end of a connection is said; what only one replica may run never runs in two."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NoReturn

import pytest
from tests.controller.instances.apart import TOTALS, Site, held, refusing, replica_of, run, site
from tests.controller.instances.pairs import Pair

from strandline.controller.asking.peeking import peek
from strandline.errors import ConfigError, CorruptionError
from strandline.instance import problems
from strandline.instance.commands import Advance

INDEX = "CREATE INDEX i ON totals (grp) IN INSTANCE x"


async def hangs(*_: Any, **__: Any) -> None:
    """Never return."""
    await asyncio.Event().wait()


async def passes(at: Site, ticks: int = 6) -> None:
    """Tick, each time for a moment only."""
    for _ in range(ticks):
        await at.tick_within(0.2)


def test_items_of_a_replica_that_hangs_are_said_to_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a call in a replica never returns, all views of the instance stand still, and status is silent."""
    monkeypatch.setattr(problems, "LONG_S", 0.3)

    async def body() -> None:
        async with site("a") as at:
            await at.agree(await at.tick(2))
            replica = replica_of(at, "a")

            replica._instance._views.start = hangs  # type: ignore[union-attr, method-assign]
            await at.execute(TOTALS.replace("totals", "more"))
            await passes(at)
            assert at.core.health.problems().keys() >= {"totals", "more"}

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
            for _ in range(50):
                await at.tick_within(0.2)
                if not at.core.health.problems():
                    break
            await at.agree(await at.tick())

    run(body())


def test_a_connection_that_cannot_be_made_says_why() -> None:
    """Damage: a token that cannot be read is for ever said to be "it was not connected yet"."""

    async def body() -> None:
        async with site("a") as at:

            async def bad(_: str) -> NoReturn:
                raise ConfigError("connecting to it needs a token")

            at.core.require_writing().running.instances["x"].links["a"]._dial = bad
            await passes(at, 3)
            assert "connecting to it needs a token" in at.core.health.problems()["totals"]

    run(body())


def test_a_command_that_a_replica_does_not_know_is_its_problem() -> None:
    """Damage: an older replica leaves out what it does not know, and no operator hears of it."""

    async def body() -> None:
        async with site("a") as at:
            await refusing(at)
            await passes(at, 2)
            assert "Fancy" in at.core.require_writing().running.replicas()["x"]["a"].problem

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
            rows = (await peek(at.core, "other", [{"grp": group}], time, None, 5.0)).to_pylist()
            late.set()
            assert {row["n"] > 1000 for row in rows} == {True}

    run(body())


def test_a_peek_waits_for_no_tick() -> None:
    """Damage: each tick holds peeks back for as long as it takes."""

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
            begun = time.monotonic()
            await peek(at.core, "totals", [{"grp": 0}], now, None, 5.0)
            taken = time.monotonic() - begun
            late.set()
            assert taken < 1.0, "the controller asks no longer than 2 s, and reads the rows itself then"

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
            heard: list[float] = []

            obey = other._obey

            async def obeys(connection: Any, command: Any) -> None:
                if isinstance(command, Advance):
                    heard.append(time.monotonic())
                await obey(connection, command)

            slow._instance.look, other._obey = hangs, obeys  # type: ignore[union-attr, method-assign]
            begun = time.monotonic()
            await at.tick_within(2.0)
            assert heard
            assert heard[0] - begun < 1.0

    run(body())


# ---- what only one replica may run -----------------------------------------------------------------------------------


def test_what_only_one_may_run_stays_with_a_replica_that_came_back_and_is_busy() -> None:
    """Damage: an endpoint or a slot is fought over by two replicas, for good."""

    async def body() -> None:
        found = Pair()
        await found.begin()
        found.ends["a:1"].cut()
        await found.clock.sleep(0.05)
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
        await found.clock.sleep(0.05)
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
