"""Rows put aside are the same rows whether they lie in memory or in a file, and leave nothing behind."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from strandline.algebra.schema import Column, Schema
from strandline.engine.parts.aside import Aside, InLocation, Nowhere, OfThisMachine
from strandline.engine.parts.part_store import PartStore
from strandline.engine.spark import SparkEngine
from strandline.errors import Determinate, InvalidUsage
from strandline.plane import Differences

pytestmark = pytest.mark.spark

SCHEMA: Final = Schema(
    tuple(
        Column(name, type_)
        for name, type_ in {
            "k": "bigint", "te`xt": "string", "money": "decimal(10,2)", "x": "double", "day": "date", "at": "timestamp",
            "local": "timestamp_ntz", "ok": "boolean", "list": "array<int>", "raw": "binary",
        }.items()
    )
)  # fmt: skip
TIME_: Final = 7


def _table(first: int, rows: int) -> pa.Table:
    made: list[dict[str, Any]] = [
        {
            "k": k, "te`xt": None if k % 5 == 0 else f"it's {k}", "money": Decimal(k) / 4, "x": k / 8,
            "day": date(2026, 1, 1 + k % 28), "at": datetime(2026, 1, 1, k % 24, tzinfo=UTC),
            "local": datetime(2026, 1, 1, k % 24, tzinfo=UTC).replace(tzinfo=None),
            "ok": k % 2 == 0, "list": [k, None], "raw": bytes([k % 256]),
        }
        for k in range(first, first + rows)
    ]  # fmt: skip
    kinds = {
        "k": pa.int64(), "te`xt": pa.string(), "money": pa.decimal128(10, 2), "x": pa.float64(), "day": pa.date32(),
        "at": pa.timestamp("us", "UTC"), "local": pa.timestamp("us"), "ok": pa.bool_(), "list": pa.list_(pa.int32()),
        "raw": pa.binary(),
    }  # fmt: skip
    return pa.table({name: pa.array([row[name] for row in made], kind) for name, kind in kinds.items()})


@pytest.fixture
def engine(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkEngine]:
    """An engine on the shared application; temporary files lie in the test's own directory."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = SparkEngine(spark, PartStore(tmp_path / "parts"))
    yield made
    made.close()


def _compared(engine: SparkEngine, aside: Aside, wanted: pa.Table) -> Differences:
    async def body() -> Differences:
        other = await engine.local(wanted, SCHEMA, time=TIME_, diff=1)
        both = await engine.union(SCHEMA, [aside.rows(), other], advance=TIME_, negate=[False, True])
        return await engine.differences(both, SCHEMA, significant=12)

    return asyncio.run(body())


@pytest.mark.parametrize(("held", "pattern"), [(0, "strandline-aside-*"), (0, "parts/scratch"), (1 << 30, "")])
def test_rows_put_aside_are_what_came(engine: SparkEngine, tmp_path: Path, held: int, pattern: str) -> None:
    """Damage: `verify` of a large table calls right rows wrong, or wrong ones right, or leaves its files."""
    store = PartStore(tmp_path / "parts")
    place = (lambda: InLocation(store, "scratch")) if pattern.startswith("parts") else OfThisMachine
    with Aside(engine.session, SCHEMA, TIME_, held, place) as aside:
        for first in (0, 100, 200):
            aside.add(_table(first, 100))
        assert not pattern or len(list(tmp_path.glob(pattern))) == 1
        found = _compared(engine, aside, _table(1, 300))
    assert (found.missing, found.extra) == (1, 1)
    assert [row["k"] for row in found.sample.to_pylist()] == [300, 0]
    assert not pattern or not list(tmp_path.glob(pattern))


def test_a_process_that_only_reads_puts_nothing_where_no_executor_reads_it(engine: SparkEngine) -> None:
    """Damage: executors find no file, and `verify` says that the location is damaged."""
    with Aside(engine.session, SCHEMA, TIME_, 1 << 30, Nowhere) as aside:
        aside.add(_table(0, 1))
        assert asyncio.run(engine.collect(aside.rows())).num_rows == 1
    with Aside(engine.session, SCHEMA, TIME_, 0, Nowhere) as aside, pytest.raises(Determinate, match="only reads"):
        aside.add(_table(0, 1))


def test_no_rows_are_a_frame_too(engine: SparkEngine) -> None:
    """Damage: an endpoint's empty table cannot be verified."""
    with engine.aside(SCHEMA, time=TIME_) as aside:
        assert asyncio.run(engine.collect(aside.rows())).num_rows == 0
    with engine.aside(SCHEMA, time=TIME_) as aside, pytest.raises(InvalidUsage, match="missing"):
        aside.add(pa.table({"k": [1]}))
