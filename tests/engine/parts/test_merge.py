"""Parts are rewritten and read under the newest schema as what they were: every type, few of them and many."""

from __future__ import annotations

import asyncio
import decimal
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
from strandline.errors import CorruptionError
from strandline.frontier import TIME_MAX
from strandline.persist.shard.batch import BlobPart, Staged
from strandline.testing.contracts.engine_contract import SCHEMA, WAYS, contents, request, table, updates

pytestmark = pytest.mark.spark

OLD = Schema((Column("gone", "string"), Column("n", "tinyint"), Column("f", "float"), Column("d", "decimal(10,2)")))
NEW = Schema(
    (Column("new", "array<string>"), Column("n", "bigint"), Column("d", "decimal(20,2)"), Column("f", "double"))
)


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path) -> SparkEngine:
    """An engine with its parts in a fresh directory."""
    return SparkEngine(spark.newSession(), PartStore(tmp_path))


@pytest.mark.parametrize("way", WAYS)
def test_widened_columns_hold_the_values_they_held(engine: SparkEngine, way: str) -> None:
    """Damage: a column that was widened is read as other numbers, or not at all."""
    rows = pa.table(
        {
            "gone": ["x", "y", None],
            "n": pa.array([-128, None, 127], pa.int8()),
            "f": pa.array([0.1, -2.5, None], pa.float32()),
            "d": pa.array([decimal.Decimal("-12345678.90"), None, decimal.Decimal("0.01")], pa.decimal128(10, 2)),
            TIME: pa.array([1, 2, 3], pa.int64()),
            DIFF: pa.array([1, 2, -1], pa.int64()),
        }
    )
    tenth = float(pa.scalar(0.1, pa.float32()).as_py())
    expected = [
        {"new": None, "n": -128, "d": decimal.Decimal("-12345678.90"), "f": tenth},
        {"new": None, "n": None, "d": None, "f": -2.5},
        {"new": None, "n": 127, "d": decimal.Decimal("0.01"), "f": None},
    ]

    async def body() -> None:
        staged = await engine.stage(engine.from_arrow(rows, OLD), request(way, schema=OLD))
        old = contents(staged, schema=NEW)
        found = (await engine.collect(await engine.read(old))).sort_by(TIME)
        assert found.select(list(NEW.names)).to_pylist() == expected
        merged = await engine.merge(old, request(way, schema=NEW))
        assert merged.digest == staged.digest
        again = (await engine.collect(await engine.read(contents(merged, schema=NEW)))).sort_by(TIME)
        assert again.select(list(NEW.names)).to_pylist() == expected
        assert again[DIFF].to_pylist() == [1, 2, -1]

    asyncio.run(body())


def test_a_large_merge_gives_each_part_a_range_of_keys_of_its_own(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a reader that looks for few keys must open every part."""
    monkeypatch.setattr(merge, "HERE_ROWS_MAX", 0)
    engine.session.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    engine.session.conf.set("spark.sql.shuffle.partitions", "4")
    rows = [(n, f"v{n % 5}" if n % 100 else None, n % 4, 1) for n in range(1_000)]

    async def merged(*sort: str) -> Staged:
        staged = await engine.stage(engine.from_arrow(table(rows), SCHEMA), request("bulk"))
        found = await engine.merge(contents(staged), replace(request("bulk"), sort=sort))
        assert updates(await engine.collect(await engine.read(contents(found)))) == updates(table(rows))
        return found

    by_number = sorted(_ranges(asyncio.run(merged("k"))))
    assert len(by_number) > 1
    assert (by_number[0][0], by_number[-1][1]) == (0, 999)
    assert all(before[1] < after[0] for before, after in pairwise(by_number))
    by_text = _ranges(asyncio.run(merged("v", "k")))
    assert {least for least, _ in by_text} >= {None}  # NULL is before all texts
    assert max(greatest for _, greatest in by_text) == "v4"


def _ranges(staged: Staged) -> list[tuple[Any, Any]]:
    keys = [part.keys for part in staged.parts if isinstance(part, BlobPart)]
    assert None not in keys
    return [(each.least, each.greatest) for each in keys if each is not None]


def test_many_updates_are_merged_by_a_job_and_few_here_alike(
    engine: SparkEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a large shard is compacted to something else than a small one."""
    first = [(n % 7, f"v{n % 5}", n % 4, 1) for n in range(200)]
    second = [(n % 7, f"v{n % 5}", 4 + n % 4, -1 if n % 3 else 1) for n in range(150)]

    async def body() -> None:
        apart = [
            await engine.stage(engine.from_arrow(table(first), SCHEMA), request("bulk", upper=4)),
            await engine.stage(engine.from_arrow(table(second), SCHEMA), request("inline", lower=4)),
        ]
        inputs = replace(contents(*apart), upper=TIME_MAX, advance=5)
        here = await engine.merge(inputs, request("small"))
        monkeypatch.setattr(merge, "HERE_ROWS_MAX", 0)
        by_job = await engine.merge(inputs, request("small"))
        sums = [(m.lower, m.upper, m.since, m.rows, m.diffs, m.digest, m.plain, m.errors) for m in (here, by_job)]
        assert sums[0] == sums[1]
        rows = [
            updates(await engine.collect(await engine.read(replace(contents(m), upper=TIME_MAX))))
            for m in (here, by_job)
        ]
        assert rows[0] == rows[1]
        assert min(time for _, _, time in rows[0]) == 5

    asyncio.run(body())


@pytest.mark.parametrize("way", ["small", "bulk"])
def test_a_damaged_page_is_no_input_of_a_merge(engine: SparkEngine, tmp_path: Path, way: str) -> None:
    """Damage: compaction makes wrong rows permanent, and deletes the part that could have been restored."""
    written = [(n, f"value {n}", 1, 1) for n in range(500)]

    async def body() -> None:
        staged = await engine.stage(engine.from_arrow(table(written), SCHEMA), request(way))
        for part in staged.parts:
            path = tmp_path / part.key
            data = bytearray(path.read_bytes())
            data[len(data) // 3] ^= 0x10
            path.write_bytes(data)
        with pytest.raises(CorruptionError, match="part"):
            await engine.merge(replace(contents(staged), upper=TIME_MAX), request(way))
        with pytest.raises(CorruptionError, match="part"):
            await engine.verify(contents(staged))

    asyncio.run(body())
