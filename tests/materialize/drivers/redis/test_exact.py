"""Redis with the option exact: a transaction is stored once, by one session."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

import pytest
from tests.materialize.drivers.redis.redis_endpoint import RedisDatabase

from redis_server import RedisServer
from strandline.materialize.drivers.redis.options import Form
from strandline.materialize.drivers.redis.resources import Marks
from strandline.materialize.drivers.redis.server import Server
from strandline.testing.contracts.drivers.driver_contract import DriverContract
from strandline.testing.contracts.drivers.fencing_contract import FencingContract
from strandline.testing.contracts.drivers.reduction_contract import ReductionContract, crash_everywhere, example

pytestmark = pytest.mark.server
DATABASES = count(300)


@pytest.fixture
def make_endpoint(redis_server: RedisServer) -> Callable[[], RedisDatabase]:
    """Each endpoint is a database of its own."""
    return lambda: RedisDatabase(redis_server, next(DATABASES), exact=True)


class TestExactRedis(DriverContract, FencingContract, ReductionContract):
    pass


class TestExactRedisWithJson(ReductionContract):
    @pytest.fixture
    def make_endpoint(self, redis_server: RedisServer) -> Callable[[], RedisDatabase]:
        """Each endpoint is a database of its own."""
        return lambda: RedisDatabase(redis_server, next(DATABASES), Form.JSON, exact=True)


def _none(self: Marks, server: Server, keys: Sequence[bytes]) -> list[bool]:
    return [False for _ in keys]


def _dropped_early(self: Marks, server: Server) -> bool:
    server.ask("UNLINK", self.key)
    return False


@pytest.mark.parametrize(("method", "defect"), [("marked", _none), ("any", _dropped_early)])
def test_a_replay_that_does_not_know_what_was_stored_is_caught(
    method: str, defect: object, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the test above would pass whatever the driver does."""
    monkeypatch.setattr(Marks, method, defect)

    with pytest.raises(AssertionError):
        asyncio.run(crash_everywhere(lambda: RedisDatabase(redis_server, next(DATABASES), exact=True)))


def test_marks_are_gone_once_a_transaction_is_acknowledged(make_endpoint: Callable[[], RedisDatabase]) -> None:
    """Damage: a database holds the name of each key twice, for ever."""
    endpoint = make_endpoint()
    asyncio.run(example(endpoint))
    marks = [key for key in endpoint.client().scan_iter() if key.startswith(b"strandline:stored")]
    assert marks == []
