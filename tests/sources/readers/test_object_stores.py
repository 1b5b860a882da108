"""Delta and Iceberg tables in an object store are read as those of a directory are."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from iceberg_lake import IcebergLake
from table_place import TablePlace

from s3_server import S3Server
from strandline.algebra.schema import DIFF, Column, Schema
from strandline.errors import SourceError
from strandline.frontier import Offsets
from strandline.sources.reader import SourceReader
from strandline.sources.readers.delta import kind as delta
from strandline.sources.readers.iceberg import kind as iceberg
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.testing.lists.list_engine import listed

pytestmark = pytest.mark.server

SCHEMA = Schema((Column("id", "bigint"),))


def rows(*ids: int) -> pa.Table:
    """Rows with these ids."""
    return pa.table({"id": pa.array(ids, pa.int64())})


async def ids(reader: SourceReader, lower: Offsets, upper: Offsets) -> dict[int, int]:
    """Return how often each id comes in a slice, less how often it goes."""
    found: Counter[int] = Counter()
    for row in listed(await reader.read([Slice(7, lower, upper)], table="", locate=False)).rows:
        found[row["id"]] += row[DIFF]
    return {one: diff for one, diff in found.items() if diff}


@pytest.mark.parametrize("feed", ["false", "true"])
def test_a_delta_table_in_s3(s3_server: S3Server, feed: str) -> None:
    """Damage: the options of an object store are not those that its client needs, or a new commit is not seen."""
    path = f"s3://{s3_server.bucket}/delta-{feed}/a table"
    given = {f"aws_{name}": value for name, value in s3_server.storage.items() if name != "endpoint"}
    given |= {"aws_endpoint_url": s3_server.endpoint, "aws_allow_http": "true"}
    write_deltalake(path, rows(1, 2), storage_options=given, configuration={"delta.enableChangeDataFeed": feed})

    async def body() -> None:
        reader = await TablePlace(delta.KIND, {"path": path, **s3_server.storage}, SCHEMA).reader()
        first = await reader.upstream_frontier()
        assert await ids(reader, NOTHING_READ, first) == {1: 1, 2: 1}
        write_deltalake(path, rows(3), storage_options=given, mode="append")
        DeltaTable(path, storage_options=given).delete("id = 1")
        second = await reader.upstream_frontier()
        assert await ids(reader, first, second) == {1: -1, 3: 1}
        assert await ids(reader, NOTHING_READ, second) == {2: 1, 3: 1}
        assert await reader.upstream_frontier() == second
        absent = await TablePlace(delta.KIND, {"path": f"{path}/absent", **s3_server.storage}, SCHEMA).reader()
        with pytest.raises(SourceError, match="does not exist"):
            await absent.upstream_frontier()

    asyncio.run(body())


def test_an_iceberg_table_in_s3(s3_server: S3Server, tmp_path: Path) -> None:
    """Damage: the options of an object store are not those that its client needs."""
    path = f"s3://{s3_server.bucket}/iceberg"
    names = {"endpoint": "endpoint", "region": "region"}
    names |= {"access_key_id": "access-key-id", "secret_access_key": "secret-access-key"}
    given = {f"s3.{names[name]}": value for name, value in s3_server.storage.items()}
    lake = IcebergLake(tmp_path, path, given)
    lake.create(rows(1, 2))

    async def body() -> None:
        reader = await TablePlace(iceberg.KIND, {"path": path, **s3_server.storage}, SCHEMA).reader()
        first = await reader.upstream_frontier()
        assert await ids(reader, NOTHING_READ, first) == {1: 1, 2: 1}
        lake.stored().append(rows(3))
        lake.stored().delete("id = 1")
        second = await reader.upstream_frontier()
        assert await ids(reader, first, second) == {1: -1, 3: 1}
        absent = await TablePlace(iceberg.KIND, {"path": f"{path}/absent", **s3_server.storage}, SCHEMA).reader()
        with pytest.raises(SourceError, match="does not exist"):
            await absent.upstream_frontier()

    asyncio.run(body())
