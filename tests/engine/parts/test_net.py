"""Net changes: bounded batches, in which the rows of a key stand together, on Spark and without it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from contextlib import aclosing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from msgspec.structs import replace
from pyspark.sql import SparkSession

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.parts import merge
from strandline.engine.parts.part_store import PartStore
from strandline.engine.spark import SparkEngine
from strandline.errors import CollectionError
from strandline.persist.handles.contents import Contents
from strandline.testing.contracts.engine_contract import SCHEMA, WAYS, contents, request, table

pytestmark = pytest.mark.spark

KEYED = Schema((Column("f", "double"), Column("s", "string"), Column("x", "int"), Column("a", "array<int>")))
FEW = 7
"""Rows of a batch, for tests of what spans batches."""


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> Iterator[SparkEngine]:
    """An engine on the shared application, with parts of its own."""
    made = SparkEngine(spark, PartStore(tmp_path))
    yield made
    made.close()


async def batches(engine: SparkEngine, wanted: Contents, **how: Any) -> list[pa.RecordBatch]:
    """Return all batches."""
    return [batch async for batch in engine.net(wanted, **how)]


async def staged(engine: SparkEngine, updates: pa.Table, schema: Schema, way: str, upper: int = 10) -> Contents:
    """Return the contents of one batch that holds ``updates``."""
    asked = replace(request(way), schema=schema, upper=upper)
    return replace(contents(await engine.stage(engine.from_arrow(updates, schema), asked)), schema=schema)


@pytest.mark.parametrize("way", WAYS)
def test_net_changes_are_added_up_over_times(engine: SparkEngine, way: str) -> None:
    """Damage: an endpoint is sent a row and its withdrawal in no particular order."""

    async def body() -> None:
        written = [(1, "a", 1, 1), (1, "a", 2, -1), (2, "b", 2, 1), (2, "b", 3, 1)]
        (found,) = await batches(engine, await staged(engine, table(written), SCHEMA, way))
        assert found.to_pylist() == [{"k": 2, "v": "b", DIFF: 2}]

    asyncio.run(body())


@pytest.mark.parametrize("way", WAYS)
def test_times_are_kept_apart_where_they_are_asked_for(engine: SparkEngine, way: str) -> None:
    """Damage: an endpoint of deltas gets a later change before an earlier one, or never learns of a row that went."""

    async def body() -> None:
        written = [(2, "b", 7, 1), (1, "a", 5, -1), (1, "a", 3, 1), (2, "b", 3, 2), (2, "b", 3, -1)]
        found = await batches(engine, await staged(engine, table(written), SCHEMA, way), times=True)
        rows = [tuple(row.values()) for batch in found for row in batch.to_pylist()]
        assert found[0].schema.names == ["k", "v", TIME, DIFF]
        assert [row[2] for row in rows] == [3, 3, 5, 7]
        assert sorted(rows) == [(1, "a", 3, 1), (1, "a", 5, -1), (2, "b", 3, 1), (2, "b", 7, 1)]

    asyncio.run(body())


@pytest.mark.parametrize("way", WAYS)
def test_of_each_key_earlier_times_come_first_and_equal_ones_in_one_order(engine: SparkEngine, way: str) -> None:
    """Damage: which of two values is the last one depends on where rows were, and a replay gives another."""

    async def body() -> None:
        written = [(2, "b", 7, 1), (1, "z", 5, 1), (1, None, 5, 1), (1, "y", 5, 1), (2, "a", 3, 1), (1, "x", 9, 1)]
        found = await batches(engine, await staged(engine, table(written), SCHEMA, way), key=("k",), times=True)
        rows = [tuple(row.values())[:3] for batch in found for row in batch.to_pylist()]
        assert sorted(rows, key=lambda row: row[0]) == rows or sorted(rows, key=lambda row: -row[0]) == rows
        assert [row for row in rows if row[0] == 1] == [(1, None, 5), (1, "y", 5), (1, "z", 5), (1, "x", 9)]
        assert [row for row in rows if row[0] == 2] == [(2, "a", 3), (2, "b", 7)]

    asyncio.run(body())


@pytest.mark.parametrize("nested", [False, True], ids=["flat", "nested"])
@pytest.mark.parametrize("way", WAYS)
def test_rows_of_a_key_stand_together_across_batches(
    engine: SparkEngine, way: str, nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: two rows of one key are not noticed, and which of them the endpoint keeps depends on the day."""
    monkeypatch.setattr(merge, "NET_BATCH_ROWS", FEW)
    monkeypatch.setattr(merge, "PARTITION_ROWS", 20)
    keys = [(f, s) for f in (None, math.nan, 0.0, -0.0, 1.5) for s in (None, "", "b")]
    updates = [(*key, x, [x] if nested else None) for x in range(5) for key in keys]

    async def body() -> None:
        columns = [list(values) for values in zip(*updates, strict=True)]
        types = [pa.float64(), pa.string(), pa.int32(), pa.list_(pa.int32())]
        arrays = {n: pa.array(v, t) for n, v, t in zip(KEYED.names, columns, types, strict=True)}
        ours = {TIME: pa.array([1] * len(updates), pa.int64()), DIFF: pa.array([1] * len(updates), pa.int64())}
        schema = KEYED if nested else Schema(KEYED.columns[:3])
        wanted = await staged(engine, pa.table({n: arrays[n] for n in schema.names} | ours), schema, way)
        found = await batches(engine, wanted, key=("f", "s"))
        assert max(batch.num_rows for batch in found) <= FEW
        assert len(found) >= len(updates) // FEW / 2
        seen = [repr((row["f"], row["s"])) for batch in found for row in batch.to_pylist()]
        runs = 1 + sum(one != other for one, other in pairwise(seen))
        distinct = 4 * 3  # 0.0 and -0.0 are one
        assert (runs, len(set(seen))) == (distinct, distinct)
        assert sum(count for batch in found for count in batch[DIFF].to_pylist()) == len(updates)

    asyncio.run(body())


def test_a_reader_that_stops_leaves_nothing_behind(engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: a task that was cancelled in the middle of a first sync keeps a worker, and after eight no step runs."""
    monkeypatch.setattr(merge, "NET_BATCH_ROWS", FEW)

    async def body() -> None:
        wanted = await staged(engine, table([(k, "v", 1, 1) for k in range(100)]), SCHEMA, "bulk")
        for _ in range(12):
            async with aclosing(engine.net(wanted, key=("k",))) as some:
                assert (await anext(some)).num_rows == FEW
        assert sum(batch.num_rows for batch in await batches(engine, wanted)) == 100

    asyncio.run(body())


def test_errors_of_spark_are_raised_as_ours(engine: SparkEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Damage: an endpoint's problem is a page of a JVM's stack, or the task takes a failed job for the end."""

    async def body() -> None:
        wanted = await staged(engine, table([(1, "a", 1, 1)]), SCHEMA, "bulk")
        frame = engine.spark_frame(await engine.read(wanted)).selectExpr("1 / (k - 1) AS k", "v", TIME, DIFF)

        async def read(_: Contents) -> Any:
            return engine.from_dataframe(frame)

        monkeypatch.setattr(engine, "read", read)
        with pytest.raises(CollectionError, match="DIVIDE_BY_ZERO"):
            await batches(engine, wanted)

    asyncio.run(body())
