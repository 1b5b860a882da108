"""What the kill campaigns over endpoints share: runtimes, and an empty endpoint of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kill.endpoints.places import (
    ConnectorPlace,
    DeltaPlace,
    KafkaPlace,
    Place,
    PostgresPlace,
    RedisPlace,
    SQLitePlace,
    WebhookPlace,
    proxied,
)
from tests.kill.endpoints.processes import Nursery, nursery
from tests.materialize.drivers.webhook.receiving import Hooks, receiving


@pytest.fixture(scope="module")
def runtimes() -> Iterator[Nursery]:
    """What starts runtimes."""
    with nursery() as found:
        yield found


@pytest.fixture
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """An empty endpoint of a kind."""
    match request.param:
        case "postgres":
            server = request.getfixturevalue("postgres_server")
            with server.database() as database, proxied(database) as proxy:
                yield PostgresPlace(database, proxy)
        case "redis":
            server = request.getfixturevalue("redis_server")
            yield RedisPlace(server, 600, tmp_path / "secret")
            server.revive()
        case "kafka":
            place = KafkaPlace(request.getfixturevalue("kafka_broker"))
            yield place
            place.seen.server.revive()
            place.seen.drop()
        case "sqlite":
            yield SQLitePlace(tmp_path / "endpoint.db")
        case "connector":
            yield ConnectorPlace(tmp_path / "endpoint.db")
        case "delta":
            yield DeltaPlace(tmp_path / "lake")
        case "webhook":
            with receiving() as receiver:
                yield WebhookPlace(Hooks(receiver))
