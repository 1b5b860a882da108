"""Redis keeps the driver contract over a real server, and what is its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

import pytest
from tests.materialize.drivers.redis.redis_endpoint import RedisDatabase

from redis_server import RedisServer
from strandline.errors import StrandlineError
from strandline.materialize.drivers.redis.left import Left
from strandline.materialize.drivers.redis.options import Form
from strandline.testing.contracts.drivers.driver_contract import DriverContract
from strandline.testing.contracts.drivers.losing import lost
from strandline.testing.contracts.drivers.reduction_contract import ReductionContract
from strandline.testing.contracts.drivers.splits_contract import SplitsContract, SplitsUnderFaultsContract

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
