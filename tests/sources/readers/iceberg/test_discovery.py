"""An Iceberg table in a directory that is looked at has the columns that a source can read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from iceberg_lake import IcebergLake

from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError, SourceError
from strandline.wiring.registry import discover


def test_a_table_in_a_directory_is_found_with_its_columns(tmp_path: Path) -> None:
    """Damage: a user writes fifty columns by hand."""
    IcebergLake(tmp_path / "sales").create(pa.table({"id": pa.array([1], pa.int64()), "name": ["a"]}))
    (found,) = asyncio.run(discover("iceberg", {"path": f"{tmp_path}/sales"}))
    assert found.columns == Schema((Column("id", "bigint"), Column("name", "string")))
    assert found.options == {"path": f"{tmp_path}/sales"}


def test_where_nothing_can_be_found_it_is_said(tmp_path: Path) -> None:
    """Damage: a traceback."""
    with pytest.raises(SourceError, match="does not exist"):
        asyncio.run(discover("iceberg", {"path": f"{tmp_path}/none"}))
    with pytest.raises(DefinitionError, match="give either path or catalog"):
        asyncio.run(discover("iceberg", {"uri": "http://127.0.0.1:1"}))
