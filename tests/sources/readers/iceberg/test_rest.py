"""An Iceberg table that a REST catalog knows is read as one in a directory is, and catalogs can be looked at."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema as Stored
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from table_place import SCHEMA, TablePlace

from iceberg_server import TOKEN, IcebergServer
from strandline.errors import DefinitionError, SourceError, Unavailable
from strandline.options import understood
from strandline.sources.readers.iceberg import table
from strandline.sources.readers.iceberg.kind import KIND
from strandline.sources.readers.iceberg.options import IcebergLooked
from strandline.sources.readers.iceberg.table import find
from strandline.testing.contracts.reader_contract import SharedReaderContract
from strandline.wiring.registry import discover

pytestmark = pytest.mark.server

STORED = Stored(NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()))
NAMESPACES = count()


class Shop(TablePlace):
    """A namespace of the catalog with a table, a location, and readers of the table there."""

    def __init__(self, server: IcebergServer, *, partitioned: bool = False) -> None:
        self.server, self.partitioned = server, partitioned
        self.catalog = load_catalog("tests", type="rest", uri=server.uri, token=TOKEN)
        self.namespace = f"shop{next(NAMESPACES)}"
        self.catalog.create_namespace(self.namespace)
        self.name = f"{self.namespace}.sales"
        super().__init__(KIND, {**server.options, "table": self.name})
        self.create()

    def create(self) -> None:
        fields = [PartitionField(2, 1000, IdentityTransform(), "kind")] if self.partitioned else []
        self.catalog.create_table(self.name, STORED, partition_spec=PartitionSpec(*fields))

    async def produce(self, *, undecodable=False):
        self.catalog.load_table(self.name).append(self.fresh())

    async def break_promise(self):
        self.catalog.drop_table(self.name)
        self.create()
        for _ in range(5):
            await self.produce()


class TestIcebergReaderOfARestCatalog(SharedReaderContract):
    @pytest.fixture(params=[False, True])
    def place(self, iceberg_server, request):
        return Shop(iceberg_server, partitioned=request.param)

    def test_locating_errors_leaves_the_good_rows_as_they_are(self):
        pytest.skip("a file of a table is read as a whole or not at all: no message of it is undecodable")


def looked(server: IcebergServer, **texts: str):
    """What is found by these options."""
    return asyncio.run(find(understood("discover iceberg", IcebergLooked, {**server.options, **texts})))


def test_the_tables_of_a_catalog_and_of_a_namespace_are_found(iceberg_server: IcebergServer, monkeypatch) -> None:
    """Damage: a user writes the columns of every table by hand."""
    shop, other = Shop(iceberg_server), Shop(iceberg_server)
    everything = {each.name: each for each in looked(iceberg_server)}
    assert {shop.name, other.name} <= set(everything)
    assert everything[shop.name].columns == SCHEMA
    assert everything[shop.name].options == {"table": shop.name}
    assert [each.name for each in looked(iceberg_server, table=shop.namespace)] == [shop.name]
    assert [each.name for each in looked(iceberg_server, table=shop.name)] == [shop.name]
    monkeypatch.setenv("CATALOG_TOKEN", TOKEN)
    by_reference = {**iceberg_server.options, "token": "env:CATALOG_TOKEN", "table": shop.name}
    (found,) = asyncio.run(discover("iceberg", by_reference))
    assert found.name == shop.name


def test_a_table_that_cannot_be_read_hides_no_other_one(iceberg_server: IcebergServer, monkeypatch) -> None:
    """Damage: one old table among a thousand keeps a user from all of them."""
    shop = Shop(iceberg_server)
    old, gone = f"{shop.namespace}.old", f"{shop.namespace}.gone"
    shop.catalog.create_table(old, STORED, properties={"format-version": "1"})
    names = table._names
    monkeypatch.setattr(table, "_names", lambda *of: [*names(*of), (shop.namespace, "gone")])  # just dropped
    found = {each.name: each for each in looked(iceberg_server, table=shop.namespace)}
    assert found[shop.name].columns == SCHEMA
    assert not found[old].columns.columns
    assert "has format version 1" in found[old].note
    assert "does not exist" in found[gone].note
    monkeypatch.undo()
    with pytest.raises(SourceError, match="has format version 1"):
        looked(iceberg_server, table=old)


def test_what_a_catalog_refuses_or_does_not_have_is_said(iceberg_server: IcebergServer) -> None:
    """Damage: a wrong token or a misspelt name ends in a traceback."""
    shop = Shop(iceberg_server)
    with pytest.raises(SourceError, match=f"Iceberg table '{shop.namespace}.none' does not exist"):
        looked(iceberg_server, table=f"{shop.namespace}.none")
    shop.catalog.drop_table(shop.name)
    with pytest.raises(DefinitionError, match=f"there is no table in namespace '{shop.namespace}'"):
        looked(iceberg_server, table=shop.namespace)
    with pytest.raises(Unavailable, match="the rest catalog at .* refuses to answer, so check the login.*no token"):
        looked(iceberg_server, token="wrong")
    with pytest.raises(Unavailable, match="does not answer"):
        looked(iceberg_server, uri="http://127.0.0.1:1")
