"""What a controller hears of a replica is of that replica alone, of what it runs now, and by the controller's clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn

import msgspec
import pytest
from tests.controller.instances.apart import TOTALS, held, refusing, replica_of, run, site
from tests.controller.instances.pairs import OUT, Pair

from strandline.controller.instances import link
from strandline.controller.instances.link import Heard
from strandline.errors import Unavailable
from strandline.frontier import Frontier
from strandline.instance.commands import Advance
from strandline.instance.protocol.codec import encode
from strandline.instance.protocol.messages import (
    Create,
    CreateInstance,
    InitializationComplete,
    Status,
)
from strandline.testing.doubles import HandClock
from strandline.wiring.loop import RunningTask


def test_a_refused_command_keeps_no_tick_from_waiting_for_the_rest() -> None:
    """Damage: one item that an older replica does not know, and every answer of the instance is of an earlier time."""

    async def body() -> None:
        async with site("a") as at:
            replica = await refusing(at)
            await at.core.assembly.clock.sleep(0.1)
            go_on = replica._go_on

            async def slow() -> None:
                await at.core.assembly.clock.sleep(0.3)
                await go_on()

            replica._go_on = slow  # type: ignore[method-assign]
            await at.agree(await at.tick())

    run(body())


def test_a_command_with_fields_that_a_replica_cannot_read_costs_its_item_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: one plan of a later version, and nothing runs in the instance any longer."""

    def later(command: Any) -> bytes:
        frame = encode(command)
        if not (isinstance(command, Create) and command.id == "odd"):
            return frame
        sent = msgspec.msgpack.decode(frame)
        sent["fields"]["what"]["stages"][-1]["kind"] = "clairvoyant"
        return msgspec.msgpack.encode(sent)

    monkeypatch.setattr(link, "encode", later)

    async def body() -> None:
        async with site("a") as at:
            await at.execute(TOTALS.replace("totals", "odd"))
            time = await at.tick(2)
            assert await held(at.core, "totals", time)
            problems = at.core.health.problems()
            assert problems.keys() == {"odd"}
            assert "does not obey Create" in problems["odd"]
            assert "clairvoyant" in problems["odd"]
            await at.execute("DROP MATERIALIZED VIEW odd")
            await at.agree(await at.tick(2))
            assert at.core.require_writing().running.replicas()["x"]["a"].problem == ""

    run(body())


def test_what_upkeep_of_a_replica_fails_at_is_shown() -> None:
    """Damage: the shards that a replica writes grow without end, and `status` shows nothing."""

    async def body() -> None:
        async with site("a") as at:
            await at.agree(await at.tick(2))
            await at.execute("CREATE INDEX i ON totals (grp) IN INSTANCE x")
            await at.agree(await at.tick(2))
            client = replica_of(at, "a")._equipment.client
            full = "merge failed: the disk is full"
            client.problems = lambda: {"s-7": full, "s-4": full}  # type: ignore[method-assign]
            await at.agree(await at.tick())
            shown = at.core.require_writing().running.replicas()["x"]["a"].problem
            assert shown == f"shard 's-4': {full}; shard 's-7': {full}", "one text, whichever was opened first"

    run(body())


def test_a_replica_forgets_the_shards_of_what_was_dropped() -> None:
    """Damage: a replica whose views come and go grows without end."""

    async def body() -> None:
        async with site("a") as at:
            await at.execute(TOTALS.replace("totals", "more"))
            await at.agree(await at.tick(2))
            replica = replica_of(at, "a")
            shard = at.core.catalog.collection("more").shard
            client = replica._equipment.client
            assert client.known(shard) is not None
            await at.execute("DROP MATERIALIZED VIEW more")
            await at.agree(await at.tick(2))
            assert client.known(shard) is None
            assert client.known(at.core.catalog.collection("totals").shard) is not None

    run(body())


def test_a_replica_that_does_not_listen_is_called_ever_more_seldom() -> None:
    """Damage: a machine that is gone is called five times a second, for ever."""

    async def body() -> None:
        clock, tries = HandClock(), list[int]()

        async def unreachable(address: str) -> NoReturn:
            tries.append(clock.now)
            raise Unavailable(f"{address} does not answer")

        known = link.Link(
            "a:1", unreachable, partial(RunningTask, clock), clock, tuple, lambda *_: None, reported=lambda: None
        )
        while len(tries) < 8:
            clock.now += 10
            known.say(Advance(1))
            await known._sending.rest()
        pauses = [(after - before) / 1000 for before, after in pairwise(tries)]
        assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0], abs=0.02)
        await known.close()

    run(body())


def test_nothing_of_before_counts_once_everything_was_said_anew() -> None:
    """Damage: a tick ends because a replica had done another one, when it ran something else."""

    async def body() -> None:
        found = Pair()
        await found.begin()
        known = found.replicas.links["a"]
        assert known.obeys
        assert known.heard.advanced is not None
        found.held["a:1"] = asyncio.Event()
        for command in (CreateInstance("x", "a"), InitializationComplete()):
            known.say(command)
        await found.clock.sleep(0.05)
        assert not known.obeys
        found.held["a:1"].set()
        while not known.obeys:
            await found.clock.sleep(0.01)
        assert known.heard.advanced is None
        await found.replicas.close()

    run(body())


def test_what_stands_in_the_way_in_one_replica_is_shown_though_another_one_goes_on() -> None:
    """Damage: an operator believes in two replicas, one of which never does anything, until the other one dies."""

    async def body() -> None:
        async with site("a", "b") as at:
            await at.agree(await at.tick(2))
            instance = replica_of(at, "b")._instance
            assert instance is not None
            reader = instance._reader

            async def away(collection: Any) -> Any:
                if collection.name == "items":
                    raise Unavailable("there is no credential here")
                return await reader(collection)

            instance._reader = away  # type: ignore[method-assign]
            await at.execute(TOTALS.replace("totals", "more"))
            await at.agree(await at.tick(2))
            shown = at.core.require_writing().running.replicas()["x"]
            assert (shown["a"].problems, shown["b"].problems) == ({}, {"more": "there is no credential here"})
            assert (shown["a"].obeys, shown["b"].obeys) == (True, True)

    run(body())


def test_a_problem_of_one_replica_is_none_while_another_one_is_at_work() -> None:
    """Damage: status says that a source stands still, and each second that it does not."""

    async def body() -> None:
        found = Pair()
        await found.begin()
        found.replicas.start("n", replace(OUT, log="log-n"))
        await found.bring()
        busy = found.replicas.links["b"].heard
        busy.advanced = None
        found.replicas.links["a"].heard.problems["n"] = "no credential"
        assert "n" not in found.replicas.problems()
        busy.problems["n"] = "no credential"
        assert found.replicas.problems()["n"] == "no credential"
        await found.replicas.close()

    run(body())


def test_how_long_something_takes_is_counted_by_one_clock() -> None:
    """Damage: the clock of a replica is a minute behind, and each of its steps is said to take long at once."""
    heard = Heard()
    heard.learn(Status(under_way={"v": 10**15, "w": 3}), 5)
    heard.learn(Status(under_way={"w": None}), 6)
    assert heard.under_way == {"v": 5}


def test_what_is_late_and_moves_is_not_said_to_hang() -> None:
    """Damage: under load every view is said to wait since the controller began, and a real hang looks like the rest."""

    async def body() -> None:
        found = Pair()
        found.replicas.start("n", replace(OUT, log="log-n"))
        await found.replicas.follow({"a": "a:1"})
        await found.bring()
        heard, begun = found.replicas.links["a"].heard, []
        for time in range(3, 9):
            heard.writes["log-n"] = Frontier(time)
            found.replicas.aim(Advance(time + 1))
            await found.clock.sleep(0.02)
            heard.advanced = None
            begun.append(found.replicas.going_on()["n"])
        assert len(set(begun)) > 1
        assert sorted(set(begun)) == begun, "since it moved last"
        for time in (20, 21, 22):
            found.replicas.aim(Advance(time))
            await found.clock.sleep(0.02)
            heard.advanced = None
            begun.append(found.replicas.going_on()["n"])
        assert len(set(begun[-2:])) == 1, "it stands"
        await found.replicas.close()

    run(body())
