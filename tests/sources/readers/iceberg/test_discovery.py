"""An Iceberg table in a directory that is looked at has the columns that a source can read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from iceberg_lake import IcebergLake

from strandline.algebra.schema import Column, Schema
from strandline.errors import DefinitionError, SourceError, Unavailable
from strandline.options import understood
from strandline.sources.readers.iceberg import table
from strandline.sources.readers.iceberg import table as stored
from strandline.sources.readers.iceberg.options import IcebergOptions
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


class ThriftError(Exception):
    """As Thrift's own, which need not be installed."""


ThriftError.__module__ = "thrift.transport.TTransport"


@pytest.mark.parametrize(
    ("kind", "raised", "said"),
    [
        (
            "glue",
            ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "GetDatabases"),
            " refuses to answer, so check the login and its rights: .*AccessDeniedException.*no",
        ),
        ("glue", EndpointConnectionError(endpoint_url="https://x"), " does not answer: .*https://x"),
        ("hive", ThriftError("Could not connect"), " does not answer: Could not connect"),
    ],
)
def test_what_a_catalog_of_another_kind_fails_with_is_said(
    kind: str, raised: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: an error of the catalog's own client ends in a traceback, and in a reader's problem that ends it."""

    def fail(_: object) -> None:
        raise raised

    for module in (table, stored):
        monkeypatch.setattr(module, "catalog_of", fail)
    place = {"catalog": kind, **({"uri": "thrift://h:1"} if kind == "hive" else {})}
    where = "glue catalog" if kind == "glue" else "hive catalog at thrift://h:1"
    with pytest.raises(Unavailable, match=f"the {where}{said}"):
        asyncio.run(discover("iceberg", place))
    options = understood("source 's'", IcebergOptions, {**place, "table": "shop.sales"})
    with pytest.raises(Unavailable, match=f"'shop.sales'{said}"):
        stored.StoredTable(options, item="s").load()
