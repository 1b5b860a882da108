"""`strandline bench tick`: what a tick costs under many views, with no change and with few.

One environment over files and Spark gets more and more views of ten kinds (joins, groups, a window, a top-k …), each
kind again and again with other constants, so that no two views are one.  For each number of views it is ticked with
nothing changed, and with `CHANGED` rows of the largest table changed, half of them deleted and half inserted.  At the
end plain Spark says whether every view is right.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from strandline.bench.measured import Edit, Measured, Tick, opened, percentile
from strandline.controller.asking.verification import verify

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

VIEWS: Final = (1, 10, 50)
SALES: Final = 20_000
CUSTOMERS: Final = 2_000
PRODUCTS: Final = 200
CHANGED: Final = 100
IDLE_TICKS: Final = 20
WARM_TICKS: Final = 3
"""So many ticks with changes come before those that count: plans and classes are made in them."""
CHANGED_TICKS: Final = 10

TABLES: Final = {
    "sales": "id BIGINT, customer INT, product INT, region STRING, amount DECIMAL(12,2), quantity INT",
    "customers": "id INT, name STRING, segment STRING, country STRING",
    "products": "id INT, kind STRING, price DECIMAL(12,2)",
}
#: One view of each kind; ``{k}`` is a small number that makes views of a kind differ.
KINDS: Final = (
    """SELECT c.segment, s.region, count(*) AS n, sum(s.amount) AS amount
       FROM sales s JOIN customers c ON s.customer = c.id WHERE s.quantity > {k} GROUP BY c.segment, s.region""",
    "SELECT id, customer, amount * quantity AS worth FROM sales WHERE quantity > 90 - {k}",
    """SELECT c.id, c.segment, s.id AS sale, s.amount
       FROM customers c LEFT JOIN sales s ON s.customer = c.id AND s.quantity > 90 - {k}""",
    "SELECT DISTINCT customer, region FROM sales WHERE quantity > 50 + {k}",
    "SELECT id, amount FROM sales WHERE quantity > {k} ORDER BY amount DESC, id LIMIT 20",
    """SELECT id, customer, amount, place FROM (
         SELECT id, customer, amount, row_number() OVER (PARTITION BY customer ORDER BY amount DESC, id) AS place
         FROM sales WHERE quantity > {k}) WHERE place <= 3""",
    "SELECT product, min(amount) AS low, max(amount) AS high FROM sales WHERE quantity > {k} GROUP BY product",
    """SELECT c.id, c.segment FROM customers c
       WHERE EXISTS (SELECT 1 FROM sales s WHERE s.customer = c.id AND s.quantity > 95 - {k})""",
    """SELECT p.kind, c.country, count(*) AS n, sum(s.quantity * p.price) AS worth
       FROM sales s JOIN customers c ON s.customer = c.id JOIN products p ON s.product = p.id
       WHERE s.quantity > {k} GROUP BY p.kind, c.country""",
    "SELECT product, count(DISTINCT customer) AS customers FROM sales WHERE quantity > {k} GROUP BY product",
)


def measure_ticks(
    session: SparkSession,
    directory: Path,
    *,
    views: Sequence[int] = VIEWS,
    changed_ticks: int = CHANGED_TICKS,
) -> dict[str, Any]:
    """Measure in ``directory`` and return every figure, for each of ``views`` (numbers of views, rising).

    ``idle_ms_p50`` and ``idle_jobs`` (in all idle ticks); of ticks with changes ``ms_p50``, ``ms_p90``, ``jobs`` and
    ``compiled`` per tick, ``waves`` (levels of stages that had something to step) and ``jobs_per_wave``; ``steps``:
    stages stepped per tick; ``first_ms`` and ``first_jobs``: of the tick that computed the views that came in;
    ``further_view_ms``: what each view more than in the entry before adds to ``ms_p50``.
    """
    return asyncio.run(_measured(session, directory, views, changed_ticks))


def view(number: int) -> str:
    """Return the query of the view with this number; all differ.

    >>> view(3), view(13)[-17:]
    ('SELECT DISTINCT customer, region FROM sales WHERE quantity > 50 + 0', 'quantity > 50 + 1')
    """
    return KINDS[number % len(KINDS)].format(k=number // len(KINDS))


async def _measured(session: SparkSession, directory: Path, views: Sequence[int], changed: int) -> dict[str, Any]:
    sales = _Sales(Random(0))
    found: list[dict[str, Any]] = []
    async with opened(session, directory) as env:
        for name, columns in TABLES.items():
            await env.execute(f"CREATE TABLE {name} ({columns})")
        await env.commit([Edit(name, None, rows) for name, rows in sales.first().items()])
        for count, before in zip(views, (0, *views[:-1]), strict=True):
            begun = time.perf_counter()
            for number in range(before, count):
                await env.execute(f"CREATE MATERIALIZED VIEW v{number} AS {view(number)}")
            defined_ms = (time.perf_counter() - begun) * 1000
            figures = await _ticked(env, sales, changed)
            figures |= {"views": count, "define_ms_per_view": round(defined_ms / max(1, count - before), 1)}
            if found:
                further = (figures["ms_p50"] - found[-1]["ms_p50"]) / (count - before)
                figures["further_view_ms"] = round(further, 1)
            found.append(figures)
        wrong = [str(check) for n in range(views[-1]) if not (check := await verify(env.core, f"v{n}", None)).ok]
        assert not wrong, f"views are not what plain Spark says: {wrong}"
        merge_ms = round(env.merge_ms, 1)
    return {
        "runs": found,
        "sales": SALES,
        "changed_rows": CHANGED,
        "changed_ticks": changed,
        "idle_ticks": IDLE_TICKS,
        "merge_ms": merge_ms,
    }


async def _ticked(env: Measured, sales: _Sales, changed: int) -> dict[str, Any]:
    first = await _tick(env)
    for _ in range(WARM_TICKS):
        await env.commit([sales.changed()])
        await _tick(env)
    idle = [await _tick(env) for _ in range(IDLE_TICKS)]
    taken = []
    for _ in range(changed):
        await env.commit([sales.changed()])
        taken.append(await _tick(env))
    ms = [tick.ms for tick in taken]
    jobs, waves = statistics.fmean(tick.jobs for tick in taken), statistics.fmean(tick.waves for tick in taken)
    return {
        "idle_ms_p50": round(statistics.median(tick.ms for tick in idle), 2),
        "idle_jobs": sum(tick.jobs for tick in idle),
        "ms_p50": round(statistics.median(ms), 1),
        "ms_p90": round(percentile(ms, 90), 1),
        "jobs": round(jobs, 1),
        "waves": round(waves, 1),
        "jobs_per_wave": round(jobs / waves, 1),
        "compiled": round(statistics.fmean(tick.compiled for tick in taken), 1),
        "steps": round(statistics.fmean(tick.steps for tick in taken), 1),
        "first_ms": round(first.ms, 1),
        "first_jobs": first.jobs,
    }


async def _tick(env: Measured) -> Tick:
    tick = await env.tick()
    assert not tick.problems, f"the environment has problems: {tick.problems}"
    return tick


class _Sales:
    """The contents of the tables, and changes of them."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._live: list[tuple[Any, ...]] = [self._sale(n) for n in range(SALES)]
        self._next = SALES

    def first(self) -> dict[str, pa.Table]:
        """Return the tables' rows before any change."""
        customers = [(n, f"customer {n}", f"segment {n % 5}", f"country {n % 25}") for n in range(CUSTOMERS)]
        products = [(n, f"kind {n % 12}", self._money(1_000)) for n in range(PRODUCTS)]
        return {
            "sales": _rows("sales", self._live),
            "customers": _rows("customers", customers),
            "products": _rows("products", products),
        }

    def changed(self) -> Edit:
        """Return `CHANGED` changed rows of the table of sales, half of them deleted, and half inserted."""
        self._random.shuffle(self._live)
        half = CHANGED // 2
        gone, self._live = self._live[:half], self._live[half:]
        come = [self._sale(self._next + n) for n in range(half)]
        self._next += half
        self._live += come
        return Edit("sales", _rows("sales", gone), _rows("sales", come))

    def _sale(self, number: int) -> tuple[Any, ...]:
        region, quantity = f"region {self._random.randrange(4)}", self._random.randrange(100)
        customer, product = self._random.randrange(CUSTOMERS), self._random.randrange(PRODUCTS)
        return (number, customer, product, region, self._money(100_000), quantity)

    def _money(self, most: int) -> Decimal:
        return Decimal(self._random.randrange(most * 100)).scaleb(-2)


def _rows(table: str, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
    names = [column.split()[0] for column in TABLES[table].split(", ")]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in rows])
