"""`strandline bench peek`: how long a peek by key takes, beside ticks that change rows.

A view of many rows is kept in memory by an index.  Peeks come at a steady rate, each by another key, whether the ones
before are answered or not: so a peek that waits for others counts that it has waited.  Ticks change some of the rows
meanwhile.  Every answer has just the row of its key, and some are compared with the view's contents at the same time.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from strandline.bench.measured import Edit, Measured, opened, spread
from strandline.controller.asking.peeking import peek
from strandline.errors import InvalidUsage
from strandline.instance import live

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS: Final = 100_000
RATE: Final = 1_000
"""Peeks per second."""
SECONDS: Final = 20.0
WARM_SECONDS: Final = 8.0
CHANGED: Final = 100
"""How many rows a tick changes."""
INTERVAL_S: Final = 1.0
PATIENCE_S: Final = 120.0
"""How long an answer may take."""
COMPARED: Final = 50
"""How many answers are compared with the contents."""


def measure_peeks(
    session: SparkSession,
    directory: Path,
    *,
    rows: int = ROWS,
    rate: int = RATE,
    seconds: float = SECONDS,
    changed: int = CHANGED,
    warm_seconds: float = WARM_SECONDS,
) -> dict[str, Any]:
    """Measure in ``directory`` and return every figure.

    ``p50_ms``, ``p99_ms``, ``max_ms``: from when a peek was due to its answer.  ``scanned``: how many were answered by
    reading the view's shard.  ``ticks``, ``tick_ms``: how many ticks ran meanwhile, and how long they took.
    """
    run = _Run(rows, rate, changed)
    asyncio.run(run.go(session, directory, warm_seconds, seconds))
    return run.figures()


@dataclass
class _Run:
    rows: int
    rate: int
    changed: int
    ms: list[float] = field(default_factory=list)
    tick_ms: list[float] = field(default_factory=list)
    counters: dict[str, int] = field(default_factory=dict)
    amounts: dict[int, int] = field(default_factory=dict)
    _random: random.Random = field(default_factory=lambda: random.Random(1))

    async def go(self, session: SparkSession, location: Path, warm_s: float, seconds: float) -> None:
        async with opened(session, location) as env:
            await self._define(env, session)
            await self._beside(env, warm_s)
            self.ms, self.tick_ms, before = [], [], self._counted(env)
            await self._beside(env, seconds)
            self.counters = {name: count - before[name] for name, count in self._counted(env).items()}
            await self._compare(env)

    def figures(self) -> dict[str, Any]:
        """Return all figures."""
        if not self.ms:
            raise InvalidUsage("no peek was made: let it take longer")
        return {
            **spread(self.ms),
            "peeks": len(self.ms),
            "scanned": self.counters["scanned"],
            "ticks": len(self.tick_ms),
            "tick_ms": spread(self.tick_ms)["p50_ms"],
            "rows": self.rows,
            "peeks_per_s": self.rate,
            "rows_changed": self.changed,
        }

    async def _define(self, env: Measured, session: SparkSession) -> None:
        await env.execute("CREATE TABLE items (id BIGINT, kind STRING, amount BIGINT)")
        rows = session.range(self.rows).selectExpr("id", "concat('kind ', id % 97) AS kind", "id * 3 AS amount")
        await env.commit([Edit("items", None, rows)])
        self.amounts = {number: number * 3 for number in range(self.rows)}
        await env.execute("CREATE MATERIALIZED VIEW shown AS SELECT id, kind, amount + 1 AS amount FROM items")
        await env.execute("CREATE INDEX shown_by_id ON shown (id)")
        await env.tick()

    async def _beside(self, env: Measured, seconds: float) -> None:
        """Peek for so many seconds, beside ticks."""
        until = time.perf_counter() + seconds
        ticking = asyncio.create_task(self._tick(env, until))  # noqa: TID251 - ticks go on beside
        asked: set[asyncio.Task[None]] = set()
        due = until - seconds
        while due < until:
            await env.core.client.clock.sleep(max(0.0, due - time.perf_counter()))
            for number in self._random.sample(range(self.rows), max(1, self.rate // 100)):  # what is due in 10 ms
                due += 1 / self.rate
                task = asyncio.create_task(self._peek(env, number, due))  # noqa: TID251 - it waits for no other
                asked.add(task)
                task.add_done_callback(asked.discard)
        await ticking
        while asked:
            await asyncio.wait(asked)

    async def _tick(self, env: Measured, until: float) -> None:
        while (begun := time.perf_counter()) < until:
            await self._change(env)
            self.tick_ms.append((await env.tick()).ms)
            await env.core.client.clock.sleep(max(0.0, INTERVAL_S - (time.perf_counter() - begun)))

    async def _change(self, env: Measured) -> None:
        numbers = self._random.sample(range(self.rows), self.changed)
        gone = _items({number: self.amounts[number] for number in numbers})
        self.amounts |= {number: self.amounts[number] + 7 for number in numbers}
        await env.commit([Edit("items", gone, _items({number: self.amounts[number] for number in numbers}))])

    async def _peek(self, env: Measured, number: int, due: float) -> None:
        await env.core.client.clock.sleep(max(0.0, due - time.perf_counter()))
        found = await peek(env.core, "shown", [{"id": number}], None, None, PATIENCE_S)
        self.ms.append((time.perf_counter() - due) * 1000)
        assert found["id"].to_pylist() == [number], f"the key {number} has one row"

    async def _compare(self, env: Measured) -> None:
        at = (await env.tick()).time
        whole = {row["id"]: row for row in (await env.rows("shown", at)).to_pylist()}
        for number in self._random.sample(range(self.rows), min(COMPARED, self.rows)):
            found = (await peek(env.core, "shown", [{"id": number}], at, None, PATIENCE_S)).to_pylist()
            assert found == [whole[number]], f"{found} is not the view's row"
            assert found[0]["amount"] == self.amounts[number] + 1

    def _counted(self, env: Measured) -> dict[str, int]:
        return live.of(env.core.live(), live.INDEX, "shown_by_id")


def _items(amounts: dict[int, int]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(list(amounts), pa.int64()),
            "kind": [f"kind {number % 97}" for number in amounts],
            "amount": pa.array(list(amounts.values()), pa.int64()),
        }
    )
