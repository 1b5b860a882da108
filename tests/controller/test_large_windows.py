"""A large window reads of a collection what the changes reach, and the view is the one that Spark would compute."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.controller.conftest import Place

from strandline.client import Environment
from strandline.compute import sides, step

pytestmark = pytest.mark.views

KEYS, LINES = 8_000, 3
SQL = {
    "joined": "SELECT l.id, l.amount, o.amount AS paid FROM lines l JOIN orders o ON l.id = o.id",
    "left_out": "SELECT o.id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM lines l WHERE l.id = o.id)",
    "latest": "SELECT id, line, rank() OVER (PARTITION BY id ORDER BY amount DESC, line) AS r FROM lines",
    "greatest": "SELECT id, max(amount) AS most, count(DISTINCT amount) AS kinds FROM lines GROUP BY id",
}
CHANGES = (
    "DELETE FROM lines WHERE id BETWEEN 30 AND 33",
    "UPDATE lines SET amount = amount + 20 WHERE line = 2 AND id IN (60, 61)",
    "DELETE FROM lines WHERE id IS NULL AND line = 1",
)


def _rows(start: int, stop: int, lines: int) -> pa.Table:
    """Return ``lines`` rows for each key; the key 7 is NULL."""
    ids, line = np.repeat(np.arange(start, stop), lines), np.tile(np.arange(lines), stop - start)
    numbers = {"line": pa.array(line, pa.int32()), "amount": pa.array((ids + line) % 11, pa.int32())}
    return pa.table({"id": pa.array(ids, pa.int32(), mask=ids == 7), **numbers})


def _last_steps(env: Environment) -> list[dict[str, Any]]:
    steps = [stage["last_step"] for view in SQL for stage in env.explain(view).stages]
    return [last for last in steps if last is not None]


def test_a_large_window_whose_keys_lie_together_reads_parts_of_its_inputs(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: loading a day into a table of years takes as long as the years; or a group's other rows are not seen."""
    monkeypatch.setattr(step, "SMALL_ROWS_MAX", 0)
    monkeypatch.setattr(sides, "PRUNE_ROWS_MIN", 0)
    with place.open() as env:
        for table, lines in (("orders", 1), ("lines", LINES)):
            env.execute(f"CREATE TABLE {table} (id INT, line INT, amount INT)")
            for start in range(0, KEYS, KEYS // 4):
                env.insert(table, _rows(start, start + KEYS // 4, lines))
        for name, sql in SQL.items():
            env.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
        env.tick()
        seen: set[str] = set()
        for change in CHANGES:
            env.execute(change)
            env.tick()
            seen |= {access for last in _last_steps(env) for access in last["access"].values()}
            for name in SQL:
                assert env.verify(name).ok, (change, str(env.verify(name)))
        assert "prune" in seen


def test_a_large_window_that_is_computed_anew_is_exact_at_each_of_its_times(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: what was computed anew at the window's end stands for all of its times, or beside what was stored."""
    monkeypatch.setattr(step, "SMALL_ROWS_MAX", 0)
    with place.open() as env:
        for table, lines in (("orders", 1), ("lines", LINES)):
            env.execute(f"CREATE TABLE {table} (id INT, line INT, amount INT)")
            env.insert(table, _rows(0, 200, lines))
        for name, sql in SQL.items():
            env.execute(f"CREATE MATERIALIZED VIEW {name} AS {sql}")
        env.tick()
        monkeypatch.setattr(sides, "ROWS_MIN", 0)
        monkeypatch.setattr(sides, "SHARE_MAX", 0.0)
        times = [env.execute(change) for change in CHANGES]
        env.tick()
        assert {last["window"] for last in _last_steps(env)} == {step.ANEW}
        for time in times:
            for name in SQL:
                found = env.verify(name, as_of=time)
                assert found.ok, str(found)
