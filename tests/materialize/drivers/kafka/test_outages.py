"""The broker is killed before, while and after it commits; what a consumer gets is exact all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from tests.materialize.drivers.kafka.topics_under_test import Topics

from kafka_server import KafkaServer
from strandline.errors import Unavailable
from strandline.materialize.drivers.kafka import driver
from strandline.materialize.drivers.kafka.driver import Writer
from strandline.store.clock import SystemClock
from strandline.testing.contracts.drivers.push_contract import PushWorld

pytestmark = [pytest.mark.server, pytest.mark.time_limit(600)]

BACK_SECONDS_MAX = 240


@pytest.fixture
def topics(kafka_broker: KafkaServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Topics]:
    """A cluster without topics; a broker that is away is given up soon."""
    monkeypatch.setattr(driver, "TRIES_MAX", 1)
    seen = Topics(kafka_broker)
    yield seen
    kafka_broker.revive()
    seen.drop()


async def caught_up(world: PushWorld) -> None:
    """Advance to the end with runtimes that begin anew, as soon as the broker is there for all of its transactions."""
    async with asyncio.timeout(BACK_SECONDS_MAX):
        while True:
            runtime = world.runtime()
            try:
                while await runtime.advance():
                    pass
                break
            except Unavailable:
                await SystemClock().sleep(0.2)
            finally:
                await runtime.close()
    world.check(world.upper)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kills", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("moment", ["before it is asked to commit", "while it commits", "after it has committed"])
def test_a_broker_that_is_killed_loses_nothing_and_repeats_nothing(
    moment: str, kills: int, topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: after an outage consumers miss a transaction, or count it twice."""
    real = Writer.commit

    async def body() -> None:
        world = PushWorld(topics)
        world.write_round()
        await caught_up(world)
        for _ in range(kills):

            def commit(self: Writer, *args: Any) -> None:
                killer = threading.Timer(0, topics.server.kill)
                match moment:
                    case "before it is asked to commit":
                        topics.server.kill()
                        real(self, *args)
                    case "while it commits":
                        killer.start()
                        try:
                            real(self, *args)
                        finally:
                            killer.join()
                    case _:
                        real(self, *args)
                        topics.server.kill()
                        raise Unavailable("the answer to COMMIT was lost")

            world.write_round()
            with monkeypatch.context() as patch:
                patch.setattr(Writer, "commit", commit)
                runtime = world.runtime()
                with suppress(Unavailable):
                    await runtime.advance()
                await runtime.close()
            assert topics.server.process is None, "it was killed"
            topics.server.revive()
            await caught_up(world)

    asyncio.run(body())
