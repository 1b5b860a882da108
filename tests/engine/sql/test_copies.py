"""A row that is there n times counts n times in every plan, and is laid out in no plan at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from strandline.algebra.nodes import NOTHING, Aggregate, Get, Node, Opaque, Reduce, Regroup
from strandline.algebra.scalar import columns, scalar
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.parts.part_store import PartStore
from strandline.engine.spark import SparkEngine
from strandline.engine.sql import fragments
from strandline.engine.sql.rendering import render

pytestmark = pytest.mark.spark

SCHEMA: Final = Schema((Column("k", "int"), Column("n", "int"), Column("x", "double"), Column("p", "decimal(30,2)")))
ROWS: Final = Get("t", tuple((name, name) for name in SCHEMA.names))
MILLIONS: Final = 10_000_000
BILLIONS: Final = 2**33
assert fragments.BLOCK < MILLIONS < 2**31 < BILLIONS


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> Iterator[SparkEngine]:
    """An engine on the shared application, with parts of its own."""
    made = SparkEngine(spark, PartStore(tmp_path))
    yield made
    made.close()


def _aggregate(function: str, argument: str = "", type_: str = "bigint", of: str = "int") -> Aggregate:
    name = f"{function}_{argument}"
    return Aggregate(name, function, scalar(f"`{argument}`") if argument else None, False, type_, of)


WEIGHED: Final = (
    _aggregate("count"),
    _aggregate("count", "n"),
    _aggregate("sum", "n"),
    _aggregate("avg", "n", "double"),
    _aggregate("sum", "x", "double", "double"),
    _aggregate("avg", "x", "double", "double"),
    _aggregate("max", "n", "int"),
)
"""Aggregates that a count is put into as a number."""
REPEATED: Final = _aggregate("sum", "p", "decimal(38,2)", "decimal(30,2)")
"""One that Spark has no exact product for."""


def _evaluated(engine: SparkEngine, node: Node, updates: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Return the rows of ``node`` over updates ``(k, n, x, p, diff)`` at time 0, in the order of ``k``."""

    async def body() -> pa.Table:
        *values, diffs = zip(*updates, strict=True)
        names = zip(SCHEMA.names, values, (pa.int32(), pa.int32(), pa.float64(), pa.decimal128(30, 2)), strict=True)
        given = {name: pa.array(own, kind) for name, own, kind in names}
        times = pa.array([0] * len(updates), pa.int64())
        rows = engine.from_arrow(pa.table(given | {TIME: times, DIFF: pa.array(diffs, pa.int64())}), SCHEMA)
        return await engine.collect(await engine.evaluate(node, {"t": rows}, origin=0))

    found = asyncio.run(body()).drop_columns([TIME, DIFF]).to_pylist()
    return sorted(found, key=lambda row: str(row.get("k")))


UPDATES: Final = [
    (1, 2, 0.5, Decimal(1), BILLIONS),
    (1, None, None, None, 3),
    (1, 5, 1.5, Decimal(2), 1),
    (2, 7, 2.5, Decimal(3), 2),
]
ONE: Final = {
    "k": 1,
    "count_": BILLIONS + 4,
    "count_n": BILLIONS + 1,
    "sum_n": 2 * BILLIONS + 5,
    "avg_n": (2 * BILLIONS + 5) / (BILLIONS + 1),
    "sum_x": 0.5 * BILLIONS + 1.5,
    "avg_x": (0.5 * BILLIONS + 1.5) / (BILLIONS + 1),
    "max_n": 5,
}
TWO: Final = {"k": 2, "count_": 2, "count_n": 2, "sum_n": 14, "avg_n": 7.0, "sum_x": 5.0, "avg_x": 2.5, "max_n": 7}


def _regroup(*aggregates: Aggregate, keys: tuple[str, ...] = ("k",)) -> Regroup:
    return Regroup(ROWS, ROWS, NOTHING, columns(keys), aggregates, (0,), None if keys else 0)


@pytest.mark.parametrize("node", [Reduce(ROWS, columns(("k",)), WEIGHED), _regroup(*WEIGHED)], ids=["whole", "touched"])
def test_a_count_goes_into_an_aggregate_as_a_number(engine: SparkEngine, node: Node) -> None:
    """Damage: a group with one row that is there billions of times takes hours, or all memory, at each step."""
    assert _evaluated(engine, node, UPDATES) == [ONE, TWO]
    assert "explode(array_repeat" not in render(node, {"t": "t"})


def test_an_aggregate_without_keys_counts_as_often_and_has_a_row_without_members(engine: SparkEngine) -> None:
    """Damage: a global count is NULL where it is 0, or counts each distinct row once."""
    node = _regroup(*WEIGHED, keys=())
    (row,) = _evaluated(engine, node, UPDATES[:1])
    assert (row["count_"], row["count_n"], row["sum_n"]) == (BILLIONS, BILLIONS, 2 * BILLIONS)
    (row,) = _evaluated(engine, node, [(1, 2, 0.5, Decimal(1), 3), (1, 2, 0.5, Decimal(1), -3)])
    none = {"sum_n": None, "avg_n": None, "sum_x": None, "avg_x": None, "max_n": None}
    assert row == {"count_": 0, "count_n": 0, **none}


def test_what_has_no_exact_product_sees_each_copy_block_by_block(engine: SparkEngine) -> None:
    """Damage: a sum that has to be added up row by row counts a block once, or needs an array of all copies."""
    node = _regroup(REPEATED, *WEIGHED[:3])
    often = 3 * fragments.BLOCK + 1
    (row,) = _evaluated(engine, node, [(1, 2, 0.5, Decimal("1.25"), often)])
    assert (row["sum_p"], row["count_"], row["count_n"], row["sum_n"]) == (
        Decimal("1.25") * often, often, often, 2 * often,
    )  # fmt: skip


def test_a_recomputed_query_sees_ten_million_copies_and_no_array_of_them(engine: SparkEngine) -> None:
    """Damage: one row with a count of millions makes a recomputed view fail for want of memory."""
    node = Opaque((ROWS,), ("t",), "SELECT k, count(*) AS c FROM t GROUP BY k", ("k", "c"), "by hand")
    found = _evaluated(engine, node, [(1, 2, 0.5, Decimal(1), MILLIONS), (2, 7, 2.5, Decimal(3), 2)])
    assert found == [{"k": 1, "c": MILLIONS}, {"k": 2, "c": 2}]
    assert f"{fragments.BLOCK}L" in render(node, {"t": "t"})
