"""Redis keeps the driver contract over a real server, and what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from itertools import count

import pytest
from tests.materialize.drivers.redis.redis_endpoint import RedisDatabase

from redis_server import RedisServer
from strandline.errors import DefinitionError, FencedError, StrandlineError
from strandline.materialize.driver import Applied
from strandline.materialize.drivers.redis import resources
from strandline.materialize.drivers.redis.options import Form
from strandline.materialize.drivers.redis.resources import Left
from strandline.materialize.protocol.task import MaterializationSpec
from strandline.testing.contracts.drivers.coming_and_going import PEOPLE
from strandline.testing.contracts.drivers.driver_contract import DriverContract
from strandline.testing.contracts.drivers.losing import lost
from strandline.testing.contracts.drivers.reduction_contract import ReductionContract
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract
from strandline.testing.simulation.crashes import Crash

pytestmark = pytest.mark.server
DATABASES = count()


@pytest.fixture
def make_endpoint(redis_server: RedisServer) -> Callable[[], RedisDatabase]:
    """Each endpoint is a database of its own."""
    return lambda: RedisDatabase(redis_server, next(DATABASES))


class TestRedis(DriverContract, SplitsContract):
    pass


class TestRedisWithJson(DriverContract):
    @pytest.fixture
    def make_endpoint(self, redis_server: RedisServer) -> Callable[[], RedisDatabase]:
        """Each endpoint is a database of its own."""
        return lambda: RedisDatabase(redis_server, next(DATABASES), Form.JSON)


class TestRedisReductions(ReductionContract):
    exact = False


@pytest.mark.slow
class TestRedisSplitsUnderFaults(SplitsUnderFaultsContract):
    pass


@pytest.mark.parametrize("everything", [True, False])
def test_a_session_that_does_not_look_for_what_it_left_is_caught(
    everything: bool, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the contract's test would pass whatever the driver does."""
    monkeypatch.setattr(Left, "refusal", lambda *_: None)
    with pytest.raises((AssertionError, StrandlineError)):
        asyncio.run(lost(RedisDatabase(redis_server, next(DATABASES)), everything=everything))


def test_keys_that_were_given_up_are_like_any_others(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: who has deleted its keys deletes those of another program; or its namesake elsewhere is refused."""
    database = RedisDatabase(redis_server, next(DATABASES))

    def filled(backfill: int, location: str, *, gives_up: bool = False) -> MaterializationSpec:
        binding = replace(PEOPLE, backfill=backfill, incarnation=f"m-1-s-1@{location}", gives_up=gives_up)
        return MaterializationSpec("m", (binding,))

    def dies(*_: object) -> None:
        raise Crash("it deletes keys")

    async def body() -> None:
        driver, emptied = database.driver(), filled(1, "here", gives_up=True)
        inner = MaterializationSpec("inner", (replace(PEOPLE, resource="People:new"),))
        await driver.apply(filled(0, "here"), {})
        with monkeypatch.context() as dying, pytest.raises(Crash):
            dying.setattr(resources, "drop_all", dies)
            await driver.apply(emptied, {})
        for other in (filled(0, "there"), inner):
            with pytest.raises(DefinitionError, match="materialization 'm'.* fills the keys People:"):
                await driver.apply(other, {})
        await driver.apply(emptied, {})
        with closing(database.client()) as client:
            client.set("People:9", "theirs")
            assert await driver.apply(emptied, {}) == Applied()
            with pytest.raises(FencedError, match="filled by a later session"):
                await driver.apply(filled(0, "here"), {})
            with pytest.raises(DefinitionError, match="another program fills the keys People:"):
                await driver.apply(filled(2, "here"), {})
            assert client.get("People:9") == b"theirs"
            client.delete("People:9")
        assert (await driver.apply(filled(0, "there"), {})).action == "took the keys People:*"
        with pytest.raises(DefinitionError, match="'m' of another location fills the keys People:"):
            await driver.apply(filled(2, "here"), {})
        await driver.apply(filled(1, "there", gives_up=True), {})
        assert (await driver.apply(inner, {})).action == "took the keys People:new:*"

    asyncio.run(body())
