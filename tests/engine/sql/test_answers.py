"""Plain queries, net changes, differences and distinct times, on Spark and without it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.engine.frames import compare
from strandline.engine.parts.part_store import PartStore
from strandline.engine.spark import SparkEngine
from strandline.engine.sql import fragments
from strandline.errors import DefinitionError, InvalidUsage
from strandline.persist.handles.contents import Half, Rows
from strandline.testing.contracts.engine_contract import SCHEMA, WAYS, contents, errors, request, table

pytestmark = pytest.mark.spark

FLOATS = Schema((Column("k", "int"), Column("x", "double")))


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> Iterator[SparkEngine]:
    """An engine on the shared application, with parts of its own."""
    made = SparkEngine(spark, PartStore(tmp_path))
    yield made
    made.close()


def floats(engine: SparkEngine, updates: list[tuple[int, float | None, int]], *, distributed: bool) -> Rows:
    """Return updates ``(k, x, diff)`` at time 0, in Arrow or behind Spark."""
    k, x, diff = zip(*updates, strict=True)
    columns = {"k": pa.array(k, pa.int32()), "x": pa.array(x, pa.float64()), DIFF: pa.array(diff, pa.int64())}
    rows = engine.from_arrow(pa.table(columns | {TIME: pa.array([0] * len(k), pa.int64())}), FLOATS)
    return engine.from_dataframe(engine.spark_frame(rows)) if distributed else rows


@pytest.mark.parametrize("distributed", [False, True], ids=["arrow", "spark"])
def test_differences_count_rows_too_few_and_too_many(engine: SparkEngine, distributed: bool) -> None:
    """Damage: verify calls a wrong view right, or a right one wrong."""
    updates = [(1, 1.0, 1), (1, 1.0, -1), (2, None, -2), (3, math.nan, 1), (3, math.nan, 1), (4, -0.0, 1), (4, 0.0, -1)]
    found = asyncio.run(engine.differences(floats(engine, updates, distributed=distributed), FLOATS))
    assert (found.missing, found.extra) == (2, 2)
    assert found.sample[DIFF].to_pylist() == [-2, 2]


def test_many_differences_are_counted_and_not_brought_here(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a view that lost all its rows fills the memory of the process that checks it, or seems to lack few."""
    monkeypatch.setattr(compare, "PAIRED_ROWS_MAX", 2)
    updates = [(1, 1.0, -3), (2, 2.0, 1), (3, 3.0, -1), (4, 4.0, 1), (4, 4.0, -1)]
    found = asyncio.run(engine.differences(floats(engine, updates, distributed=True), FLOATS))
    assert (found.missing, found.extra) == (4, 1)
    assert found.sample[DIFF].to_pylist() == [-3, -1, 1]


@pytest.mark.parametrize("distributed", [False, True], ids=["arrow", "spark"])
@pytest.mark.parametrize(
    ("one", "other", "differ"),
    [
        (0.1 + 0.2, 0.3, False),
        (1e300, 1e300 * (1 + 1e-14), False),
        (0.5, math.nextafter(0.5, 0), False),
        (1.0, 1.000001, True),
        (0.0, 1e-300, True),
        (math.inf, 1e308, True),
        (math.inf, math.inf, False),
        (math.nan, 0.0, True),
    ],
)
def test_floats_are_equal_to_so_many_significant_digits(
    engine: SparkEngine, one: float, other: float, differ: bool, distributed: bool
) -> None:
    """Damage: the order in which plain Spark adds doubles is reported as a wrong view; or a wrong value passes."""
    rows = floats(engine, [(1, one, 1), (1, other, -1)], distributed=distributed)
    found = asyncio.run(engine.differences(rows, FLOATS, significant=12))
    assert (found.missing, found.extra) == ((1, 1) if differ else (0, 0))


@pytest.mark.parametrize("distributed", [False, True], ids=["arrow", "spark"])
def test_a_row_that_is_there_very_often_is_not_laid_out_at_once(engine: SparkEngine, distributed: bool) -> None:
    """Damage: one row with a count of millions takes all memory of its reader, or a count beyond an int fails."""
    often = 2**33
    assert often > 2**31 > fragments.BLOCK

    async def body() -> None:
        rows = floats(engine, [(1, 1.0, often), (2, 2.0, 3), (3, 3.0, 1), (3, 3.0, -1)], distributed=distributed)
        frame = engine.spark_frame(await engine.multiset(rows))
        assert frame.where("k = 1").limit(5).count() == 5
        assert frame.where("k <> 1").toArrow().to_pylist() == [{"k": 2, "x": 2.0}] * 3

    asyncio.run(body())


@pytest.mark.parametrize("count", [1, fragments.BLOCK - 1, fragments.BLOCK, fragments.BLOCK + 1, 3 * fragments.BLOCK])
def test_copies_are_as_many_as_the_count_says(engine: SparkEngine, count: int) -> None:
    """Damage: at the edge of a block a row is there once too often, or not."""

    async def body() -> None:
        rows = floats(engine, [(1, 1.0, count)], distributed=True)
        assert engine.spark_frame(await engine.multiset(rows)).count() == count

    asyncio.run(body())


def test_a_table_without_rows_hides_none_that_come_after_it(engine: SparkEngine) -> None:
    """Damage: Spark reads nothing behind an empty table, so an endpoint that lost all its rows is called right."""

    async def body() -> int:
        two, three = (floats(engine, [(1, 1.0, 1)] * rows, distributed=False) for rows in (2, 3))
        columns = pa.table({"k": pa.array([], pa.int32()), "x": pa.array([], pa.float64())})
        none = await engine.local(columns, FLOATS, time=0, diff=1)
        frames = [none, none, two, none, none, three]
        return engine.spark_frame(await engine.union(FLOATS, frames, advance=0, negate=[False] * len(frames))).count()

    assert asyncio.run(body()) == 5


@pytest.mark.parametrize("way", WAYS)
def test_times_are_those_of_the_half_and_the_window(engine: SparkEngine, way: str) -> None:
    """Damage: a step misses a time that has updates, or recomputes at times that have none."""

    async def body() -> None:
        mixed = pa.concat_tables(
            [table([(1, "a", 3, 1), (2, "b", 7, 1)]), errors([("bad", 5, 1)])], promote_options="default"
        )
        several = contents(await engine.stage(engine.from_arrow(mixed, SCHEMA), request(way)))
        once = await engine.stage(engine.from_arrow(table([(1, "a", 4, 1)]), SCHEMA), request(way))
        single = contents(once, shard="shard-2")
        from msgspec.structs import replace

        assert await engine.times(several) == {3: 1, 7: 1}
        assert await engine.times(replace(several, half=Half.ERR)) == {5: 1}
        assert await engine.times(replace(several, upper=7, advance=4)) == {4: 1}
        assert await engine.times(single) == {4: 1}
        assert await engine.times(replace(single, half=Half.ERR)) == {}

    asyncio.run(body())


def test_a_query_sees_multisets_under_its_own_names(engine: SparkEngine, spark: SparkSession) -> None:
    """Damage: a read counts updates instead of rows, or leaves a view that shadows another query's."""

    async def body() -> None:
        rows = engine.from_arrow(table([(1, "a", 1, 2), (2, "b", 1, 1), (2, "b", 2, -1)]), SCHEMA)
        schema, answer = await engine.query(
            "SELECT v, count(*) AS n FROM `odd name` GROUP BY v -- all", {"odd name": (SCHEMA, rows)}, time=9
        )
        assert [(c.name, c.type) for c in schema] == [("v", "string"), ("n", "bigint")]
        assert (await engine.collect(answer)).to_pylist() == [{"v": "a", "n": 2, TIME: 9, DIFF: 1}]
        assert not engine.session.catalog.tableExists("`odd name`")  # others are those of plans prepared beside it

    asyncio.run(body())


@pytest.mark.parametrize(
    "sql", ["DROP VIEW IF EXISTS t", "SET a = b", "SELECT * FROM parquet.`/etc`", "SELECT 1; SELECT 2"]
)
def test_only_one_query_over_named_relations_runs(engine: SparkEngine, sql: str) -> None:
    """Damage: a read of a collection changes the session, or opens any file of the machine."""
    with pytest.raises(DefinitionError):
        asyncio.run(engine.query(sql, {"t": (SCHEMA, engine.from_arrow(table([(1, "a", 1, 1)]), SCHEMA))}, time=0))


def test_rows_from_python_are_cast_and_their_columns_checked(engine: SparkEngine) -> None:
    """Damage: an insert with a misspelt column stores NULLs."""

    async def body() -> None:
        rows = await engine.local(pa.table({"V": ["a"], "k": pa.array([1], pa.int64())}), SCHEMA, time=4, diff=-1)
        assert (await engine.collect(rows)).to_pylist() == [{"k": 1, "v": "a", TIME: 4, DIFF: -1}]
        for wrong, named in (
            ({"k": [1]}, "v"),
            ({"k": [1], "v": ["a"], "w": [1]}, "w"),
            ({"k": ["x"], "v": ["a"]}, "'k'"),
        ):
            with pytest.raises(InvalidUsage, match=named):
                await engine.local(pa.table(wrong), SCHEMA, time=4, diff=1)
        with pytest.raises(InvalidUsage, match="'k'"):
            await engine.local(pa.table({"k": [2**40], "v": ["a"]}), SCHEMA, time=4, diff=1)

    asyncio.run(body())
