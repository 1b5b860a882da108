"""A table that one task empties and another one wants is never a table of both, wherever the first one crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.materialize.drivers.delta.delta_endpoint import DeltaEndpoint
from tests.materialize.drivers.redis.redis_endpoint import RedisDatabase
from tests.materialize.drivers.sqlite.test_sqlite import SQLiteEndpoint
from tests.materialize.drivers.staged.memory_lake import MemoryLake

from redis_server import RedisServer
from strandline.testing.contracts.drivers.handing_over import handed_over_everywhere
from strandline.testing.contracts.drivers.world import EndpointUnderTest

NUMBERS = count()
SLOW = pytest.mark.slow


def sqlite(tmp_path: Path) -> Callable[[], EndpointUnderTest]:
    """Return what makes files of SQLite."""
    return lambda: SQLiteEndpoint(tmp_path / f"{next(NUMBERS)}.db")


def delta(tmp_path: Path) -> Callable[[], EndpointUnderTest]:
    """Return what makes lakes of Delta tables."""
    return lambda: DeltaEndpoint(tmp_path / str(next(NUMBERS)))


def lake(_: Path) -> Callable[[], EndpointUnderTest]:
    """Return what makes lakes in memory."""
    return MemoryLake


@pytest.mark.parametrize(
    ("kind", "rows"),
    [(sqlite, True), (lake, True), (lake, False), *(pytest.param(delta, each, marks=SLOW) for each in (True, False))],
)
def test_a_crash_while_a_table_is_emptied_leaves_it_to_one_task(
    kind: Callable[[Path], Callable[[], EndpointUnderTest]], rows: bool, tmp_path: Path
) -> None:
    """Damage: rows of the one that took the table are deleted; or one of both stays stopped."""
    asyncio.run(handed_over_everywhere(kind(tmp_path), rows=rows))


@pytest.mark.server
@pytest.mark.parametrize(("rows", "exact"), [(True, True), (False, False)])
def test_a_crash_while_keys_are_deleted_leaves_them_to_one_task(
    redis_server: RedisServer, rows: bool, exact: bool
) -> None:
    """Damage: the same, of keys of Redis."""
    asyncio.run(handed_over_everywhere(lambda: RedisDatabase(redis_server, 0, exact=exact), rows=rows))
