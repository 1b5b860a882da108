"""A verification goes on beside ticks: no other call waits for it, and what it compares stays readable so long."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from tests.controller.conftest import Place

from strandline.client import Environment
from strandline.controller import retention
from strandline.controller.asking import verification
from strandline.errors import EvaluationError
from strandline.plane import present

pytestmark = pytest.mark.spark

STAGES = "SELECT total, count(*) AS n FROM (SELECT k, sum(n) AS total FROM orders GROUP BY k) GROUP BY total"


def _verifying() -> bool:
    query = present()
    return query is not None and query.text.startswith("verify ")


@pytest.fixture
def env(place: Place, monkeypatch: pytest.MonkeyPatch) -> Iterator[Environment]:
    """An environment that lets history go with each tick; its table is changed before `verify` compares."""
    monkeypatch.setattr(retention, "TICKS_BETWEEN", 1)
    with place.open(config={"keep_history": "0"}) as env:
        env.execute("CREATE TABLE orders (k STRING, n INT)")
        env.insert("orders", [{"k": "a", "n": 1}, {"k": "a", "n": 2}, {"k": "b", "n": 3}])
        compare = verification._compare

        def change() -> None:
            for n in range(3):
                env.insert("orders", [{"k": "a", "n": n + 4}])
                env.tick()

        async def beside(*given: Any) -> Any:
            if _verifying():  # else it is a tick that checks itself
                await asyncio.to_thread(Context().run, change)
            return await compare(*given)

        monkeypatch.setattr(verification, "_compare", beside)
        yield env


def test_a_view_is_compared_at_the_time_at_which_its_verification_began(env: Environment) -> None:
    """Damage: `verify` of a large view stops all ticks, or calls a view wrong that has moved on meanwhile."""
    env.execute("CREATE MATERIALIZED VIEW totals AS SELECT k, sum(n) AS total FROM orders GROUP BY k")
    env.tick()
    found = env.verify("totals")
    assert found.ok
    assert found.as_of < env.verify("totals").as_of


def test_what_is_computed_again_stage_by_stage_reads_what_was_read_first(
    env: Environment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the first answer fails, and by then the history that the second one reads is gone."""
    env.execute("CREATE MATERIALIZED VIEW totals AS SELECT k, sum(n) AS total FROM orders GROUP BY k")
    env.tick()
    checked = verification._checked
    attempts: list[int] = []

    async def fails_first(*given: Any, time: int) -> Any:
        found = await checked(*given, time=time)
        if _verifying():
            attempts.append(time)
            if len(attempts) == 1:
                raise EvaluationError("a row that no answer needs")
        return found

    monkeypatch.setattr(verification, "_checked", fails_first)
    assert env.verify("totals").ok
    assert attempts == [attempts[0]] * 2


def test_state_is_compared_with_inputs_that_go_on(env: Environment) -> None:
    """Damage: the state of a view seems wrong, or cannot be compared, while its inputs change."""
    env.execute(f"CREATE MATERIALIZED VIEW most AS {STAGES}")
    env.tick()
    assert len(env._core.catalog.collection("most").stages) > 1
    assert env.verify("most").ok


def test_an_endpoint_is_compared_while_others_change_what_it_holds(env: Environment, tmp_path: Path) -> None:
    """Damage: `verify` of an endpoint stops all ticks."""
    env.execute("CREATE MATERIALIZED VIEW totals AS SELECT k, sum(n) AS total FROM orders GROUP BY k")
    env.execute(
        f"CREATE MATERIALIZATION out INTO sqlite OPTIONS (path '{tmp_path}/out.db') AS totals TO totals KEY (k)"
    )
    env.tick()
    assert env.verify("out").ok


def test_what_a_verification_held_is_given_back(env: Environment) -> None:
    """Damage: history that no reader needs is kept until a lease is over."""
    env.execute("CREATE MATERIALIZED VIEW totals AS SELECT k, sum(n) AS total FROM orders GROUP BY k")
    env.tick()

    def leases() -> list[str]:
        return [
            holder["name"]
            for name in ("orders", "totals")
            for holder in env.inspect(name)["holders"]
            if holder["lease_left_ms"] is not None
        ]

    before = leases()
    assert env.verify("totals").ok
    assert leases() == before
