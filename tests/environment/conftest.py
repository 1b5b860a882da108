"""Environments for tests: small, on the shared Spark application, each at a location of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.algebra.schema import Schema
from strandline.client import Environment
from strandline.engine.parts import PartStore
from strandline.engine.session import adopt
from strandline.engine.spark import SparkEngine
from strandline.frontier.antichain import Frontier
from strandline.persist.client import PersistClient
from strandline.persist.plane import StageRequest
from strandline.persist.state import Appended
from strandline.store.file import FileBlob
from strandline.store.sqlite import SQLiteConsensus
from strandline.store.system import SystemClock, SystemIds


@dataclass(frozen=True)
class Place:
    """A location, and ways to open it and to tamper with it."""

    root: Path
    spark: SparkSession

    def open(self, **options: Any) -> Environment:
        """Open the location as `strandline.open` does."""
        return strandline.open(f"file://{self.root}", spark=self.spark, **options)

    def tamper(self, shard: str, schema: Schema, rows: Sequence[Mapping[str, Any]], diff: int = 1) -> None:
        """Append wrong rows to a shard through the legal API, as another process with the same epoch could."""
        asyncio.run(self._tamper(shard, schema, rows, diff))

    async def _tamper(self, shard: str, schema: Schema, rows: Sequence[Mapping[str, Any]], diff: int) -> None:
        blob = self.root / "blob"
        consensus = SQLiteConsensus(self.root / "consensus.db")
        engine = SparkEngine(adopt(self.spark), PartStore(blob))
        client = PersistClient(SystemClock(), SystemIds(), FileBlob(blob), consensus)
        reader = await client.reader(shard, schema, "tampered")
        assert reader is not None
        writer = await client.writer(shard, reader.state.epoch, schema=reader.state.schema, owner=reader.state.owner)
        upper = writer.state.upper
        assert upper.at is not None
        frame = await engine.local(pa.Table.from_pylist([dict(r) for r in rows]), schema, time=upper.at, diff=diff)
        request = StageRequest(
            shard, schema, upper.at, upper.at + 1, writer.stage_prefix(), small=True, inline_bytes_max=1 << 14
        )
        staged = await engine.stage(frame, request)
        assert isinstance(await writer.compare_and_append([staged], upper, Frontier(upper.at + 1)), Appended)
        engine.close()
        consensus.close()


@pytest.fixture
def place(tmp_path: Path, spark: SparkSession) -> Place:
    """A fresh location on disk."""
    return Place(tmp_path / "location", spark)


@pytest.fixture
def rows() -> Callable[[Environment, str], list[dict[str, Any]]]:
    """Return the rows of a query as sorted plain data."""

    def ask(env: Environment, sql: str, as_of: int | None = None) -> list[dict[str, Any]]:
        return sorted((row.asDict() for row in env.query(sql, as_of=as_of).collect()), key=str)

    return ask
