"""Redis is killed: before, after and while it takes rows; what was committed is there, and the rest is replayed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest
from tests.materialize.drivers.redis.redis_endpoint import RedisDatabase

from redis_server import RedisServer
from strandline.errors import Unavailable
from strandline.materialize.drivers.redis.server import Server
from strandline.testing.contracts.drivers.world import KEYED, KEYED_TYPES, World, row
from strandline.testing.feed import ListFeed

pytestmark = pytest.mark.server
KILLS = 6
ROWS = 3_000


@pytest.fixture
def database(redis_server: RedisServer) -> Iterator[RedisDatabase]:
    """A database of a server that runs again afterwards."""
    redis_server.revive()
    yield RedisDatabase(redis_server, 499)
    redis_server.revive()


async def caught_up(world: World) -> None:
    """Advance with a new runtime to the end."""
    successor = world.runtime()
    while await successor.advance():
        pass
    await successor.close()
    world.check(world.upper)


@pytest.mark.parametrize("late", [False, True], ids=["before it", "after it"])
def test_a_server_that_is_killed_at_any_call_loses_nothing(
    late: bool, database: RedisDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: after an outage a row is missing, or one that went is still there."""
    real = Server._run

    async def body() -> None:
        world = World(database)
        points = 0
        met = True
        while met:
            met, calls = False, count()

            def dies(self: Server, *args: Any, calls: Any = calls, at: int = points, **how: Any) -> Any:
                nonlocal met
                if next(calls) != at:
                    return real(self, *args, **how)
                met = True
                if late:
                    real(self, *args, **how)
                database.server.kill()
                return real(self, *args, **how)

            world.write_round()
            with monkeypatch.context() as patch:
                patch.setattr(Server, "_run", dies)
                runtime = world.runtime()
                try:
                    while await runtime.advance():
                        pass
                except Unavailable:
                    assert met
                await runtime.close()
            database.server.revive()
            await caught_up(world)
            points += 1
        assert points > 2

    asyncio.run(body())


def test_a_server_that_is_killed_while_it_takes_rows_loses_nothing(
    database: RedisDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: half a transaction stays, because what followed it was never sent again."""
    real, killed = Server._run, 0

    async def body() -> None:
        nonlocal killed
        world = World(database)
        world.feeds[0] = ListFeed("orders", KEYED, KEYED_TYPES, batch_rows=ROWS)
        world.collections[0] = (world.spec.bindings[0], world.feeds[0])
        for number in range(KILLS):
            for k in range(ROWS):
                if number:
                    world.feeds[0].write(world.upper, (row(k, 1.5, str(number - 1)), -1))
                world.feeds[0].write(world.upper, (row(k, 1.5, str(number)), 1))
            world.seal(world.upper + 1)
            calls, killer = count(), threading.Timer(0, database.server.kill)

            def met(
                self: Server, *args: Any, calls: Any = calls, at: int = 1 + number % 3, killer: Any = killer, **how: Any
            ) -> Any:
                if next(calls) == at:
                    killer.start()
                return real(self, *args, **how)

            with monkeypatch.context() as patch:
                patch.setattr(Server, "_run", met)
                try:
                    await world.runtime().advance()
                except Unavailable:
                    killed += 1
            killer.join()
            database.server.revive()
            await caught_up(world)

    asyncio.run(body())
    assert killed, "no kill met a transaction"
