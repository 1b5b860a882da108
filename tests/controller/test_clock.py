"""Rows enter and leave a view as time passes, and at every moment it is what plain Spark says."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from strandline.bench.measured import Edit, opened
from strandline.controller.asking.verification import verify
from strandline.controller.defining.explaining import explain_view
from strandline.store.clock import SystemClock

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

RECENT = """CREATE MATERIALIZED VIEW recent AS SELECT id FROM visits
    WHERE seen > (SELECT max(at) FROM clock) - INTERVAL 3 SECONDS"""


def test_a_row_leaves_when_it_is_too_old_though_no_row_changes(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: what was seen an hour ago is recent until the next row comes."""

    async def body() -> list[list[int]]:
        found: list[list[int]] = []
        async with opened(spark, tmp_path) as env:
            await env.execute("CREATE SOURCE clock (at TIMESTAMP) USING clock OPTIONS (every '100ms')")
            await env.execute("CREATE TABLE visits (id INT, seen TIMESTAMP)")
            await env.execute(RECENT)
            told = explain_view(env.core, "recent", {})
            assert told.incremental
            assert "visits by seen, between two values" in str(told)
            assert not (await env.tick()).problems
            now = datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)
            ages = {1: 3600, 2: -4, 3: -3600}
            seen = pa.array([now - timedelta(seconds=age) for age in ages.values()], pa.timestamp("us", "UTC"))
            await env.commit([Edit("visits", None, pa.table({"id": pa.array(list(ages), pa.int32()), "seen": seen}))])
            while not found or found[-1] != [3]:
                assert not (await env.tick()).problems
                check = await verify(env.core, "recent", None)
                assert check.ok, str(check)
                there = sorted((await env.rows("recent"))["id"].to_pylist())
                found += [there] if not found or there != found[-1] else []
        return found

    assert asyncio.run(body()) == [[2, 3], [3]]
