"""What DROP gives up is closed, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from strandline.controller.defining import definitions
from strandline.controller.language.statements import Drop
from strandline.errors import Determinate
from strandline.persist.client import PersistClient

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark

VIEW = "CREATE MATERIALIZED VIEW many AS SELECT id, count(*) AS n FROM t GROUP BY id"


async def _dies(self: PersistClient, shard: str, epoch: int) -> None:
    raise KeyboardInterrupt


async def _fails(self: PersistClient, shard: str, epoch: int) -> None:
    raise Determinate("there is no disk")


def test_what_was_dropped_is_closed_by_the_next_environment_if_the_first_one_died(place: Place, monkeypatch) -> None:
    """Else what died with it would be kept, and paid for, and no command would name it."""
    with place.open() as env:
        env.execute("CREATE TABLE t (id INT)")
        env.execute(VIEW)
        env.tick()
        shards = env._core.catalog.items["many"].shards
        with monkeypatch.context() as patched:
            patched.setattr(PersistClient, "close_shard", _dies)
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(definitions.drop(env._core, Drop("materialized view", "many", if_exists=False)))
        assert set(env._core.catalog.dropped) == set(shards)
    with place.open() as env:
        assert [env.inspect(shard)["upper"] for shard in shards] == [None] * len(shards)
        assert env._core.catalog.dropped == ()


def test_what_cannot_be_closed_yet_is_a_problem_until_it_is(place: Place, monkeypatch) -> None:
    """Damage: a DROP that was done fails, or no problem reports what it left behind."""
    with place.open() as env:
        env.execute("CREATE TABLE t (id INT)")
        shard = env._core.catalog.items["t"].shard
        with monkeypatch.context() as patched:
            patched.setattr(PersistClient, "close_shard", _fails)
            env.execute("DROP TABLE t")
        assert "there is no disk" in env.status()["problems"][shard]
        env.execute("CREATE TABLE t (id INT)")
        env.execute("DROP TABLE t")
        assert env.status()["problems"] == {}
        assert env.inspect(shard)["upper"] is None
