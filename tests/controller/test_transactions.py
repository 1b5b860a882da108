"""Transactions of an environment: what takes part in them, and what a view over several tables sees of them."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from strandline.controller.defining import definitions
from strandline.persist.together.transactions import Transactions

if TYPE_CHECKING:
    from tests.controller.conftest import Place

pytestmark = pytest.mark.spark

PAIRS = "CREATE MATERIALIZED VIEW pairs AS SELECT a.id, b.id IS NULL AS alone FROM a FULL OUTER JOIN b ON a.id = b.id"


def registered(env) -> set[str]:
    """The shards that take part in the environment's transactions."""
    return set(env._run(env._core.writing.transactions.shards()))


def test_a_dropped_table_no_longer_takes_part_even_if_the_dropping_process_died(place: Place, monkeypatch) -> None:
    """Else every tick would write to every table that ever was."""
    with place.open() as env:
        env.execute("CREATE TABLE a (id INT)")
        env.execute("CREATE TABLE b (id INT)")
        a, b = (env._core.catalog.collection(name).shard for name in "ab")
        env.execute("DROP TABLE a")
        assert registered(env) == {b}

        async def dies(self: Transactions, shard: str) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patched:
            patched.setattr(Transactions, "forget", dies)
            with pytest.raises(KeyboardInterrupt):
                asyncio.run(definitions.drop(env._core, definitions.statements.Drop("table", "b", if_exists=False)))
        assert registered(env) == {b}
    with place.open() as env:
        assert registered(env) == set()
        env.execute("CREATE TABLE b (id INT)")
        env.insert("b", [{"id": 1}])
        env.tick()
        assert env._core.catalog.collection("b").shard != b
        assert {row["id"] for row in env.query("SELECT * FROM b").collect()} == {1}
    assert a != b


def test_a_view_over_two_tables_sees_no_half_of_what_several_threads_commit(place: Place) -> None:
    """Damage: a report shows an order without its customer, for a moment that no engineer can reproduce."""
    with place.open() as env:
        env.execute("CREATE TABLE a (id INT)")
        env.execute("CREATE TABLE b (id INT)")
        env.execute(PAIRS)
        env.tick()
        times: list[int | None] = []

        def commit(first: int) -> None:
            for id_ in range(first, first + 3):
                with env.transaction() as txn:
                    txn.insert("a", [{"id": id_}])
                    txn.insert("b", [{"id": id_}])
                times.append(txn.timestamp)

        threads = [threading.Thread(target=commit, args=(first,)) for first in (10, 20)]  # noqa: TID251
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            env.tick()
        for thread in threads:
            thread.join()
        env.tick()

        assert len(set(times)) == 6
        for time in [t for t in times if t is not None]:
            rows = env.query("SELECT * FROM pairs", as_of=time).collect()
            assert not any(row["alone"] for row in rows)
            assert len(rows) == sum(t <= time for t in times if t is not None)
