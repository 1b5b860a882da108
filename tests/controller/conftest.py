"""Environments for tests: small, on the shared Spark application, each at a location of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import strandline
from strandline.algebra.schema import Schema
from strandline.client import Environment
from strandline.testing.tampering import plant


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
        asyncio.run(plant(self.root, self.spark, shard, schema, rows, diff))


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
