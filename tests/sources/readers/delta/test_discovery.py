"""A Delta table that is looked at has the columns that a source can read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from strandline.algebra.schema import Column, Schema
from strandline.errors import SourceError
from strandline.wiring.registry import discover


def test_a_table_is_found_with_its_columns(tmp_path: Path) -> None:
    """Damage: a user writes fifty columns by hand."""
    rows = {"id": pa.array([1], pa.int64()), "amount": pa.array([None], pa.decimal128(12, 2)), "name": ["a"]}
    write_deltalake(tmp_path / "sales", pa.table(rows))
    (found,) = asyncio.run(discover("delta", {"path": f"{tmp_path}/sales"}))
    assert found.columns == Schema(
        (Column("id", "bigint"), Column("amount", "decimal(12,2)"), Column("name", "string"))
    )
    assert (found.name, found.options, found.note) == ("sales", {"path": f"{tmp_path}/sales"}, "version 0")


def test_where_no_table_is_it_is_said(tmp_path: Path) -> None:
    """Damage: a traceback."""
    with pytest.raises(SourceError, match="does not exist|no Delta table"):
        asyncio.run(discover("delta", {"path": f"{tmp_path}/none"}))
