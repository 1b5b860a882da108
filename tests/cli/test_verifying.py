"""`strandline verify` finds planted rows, ends with status 3, and gets them repaired, with or without a writer."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
from tests.cli.conftest import ticked

from strandline.controller.location.catalog import CatalogStore
from strandline.controller.planning import define
from strandline.engine.sql.analysis import SparkAnalyst
from strandline.persist.handles.register import Register
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.testing.tampering import plant

PROJECT = {
    "tables/orders.sql": "CREATE TABLE orders (id INT, city STRING, amount DECIMAL(9,2))",
    "views/sales.sql": (
        "CREATE MATERIALIZED VIEW sales AS SELECT city, count(*) AS n, sum(amount) AS total FROM orders GROUP BY city"
    ),
}
ROWS = "INSERT INTO orders VALUES (1, 'Delft', 1.50), (2, 'Ghent', 2.25), (3, 'Ghent', 4.00)"


@pytest.fixture
def shop(place):
    """A project with a complete view, which no process runs."""
    place.write(PROJECT)
    assert place.run("run", "--once").status == 0
    assert place.sql(ROWS).status == 0
    assert place.run("run", "--once").status == 0
    return place


def shards(place):
    """The shards of the view ``sales`` with their schemas: the internal ones, and last its own."""

    async def read():
        consensus = SQLiteConsensus(place.root / "data" / "consensus.db")
        catalog = await CatalogStore(Register("catalog", SystemClock(), SystemIds(), consensus)).read()
        consensus.close()
        view = catalog.collection("sales")
        _, stages = define(view.name, view.sql, catalog, SparkAnalyst(place.spark))
        inner = [(view.stages[stage.name], stage.schema) for stage in stages[:-1]]
        return [*inner, (view.shard, view.schema)]

    return asyncio.run(read())


def tamper(place, shard, schema, diff=1):
    """Append one wrong row, all zero but for the city."""
    row = {column.name: "Atlantis" if column.type == "string" else 0 for column in schema}
    asyncio.run(plant(place.root / "data", place.spark, shard, schema, [row], diff))


@pytest.mark.spark
@pytest.mark.parametrize("internal", [False, True])
def test_a_planted_row_is_found_and_repaired_while_nothing_runs(shop, internal):
    """A stray write would stay for ever, and everybody downstream would read it."""
    found = shards(shop)
    assert len(found) == 2
    tamper(shop, *found[0 if internal else -1])

    said = shop.run("verify", "sales", "--json")
    assert said.status == 3
    (document,) = said.documents
    assert (document["ok"], document["missing"], document["extra"]) == (False, 0, 1)
    assert document["name"].startswith("sales/") == internal
    assert "Atlantis" in str(document["sample"])
    assert "0 missing, 1 extra" in shop.run("verify", "sales").out

    repaired = shop.run("verify", "sales", "--repair", "--json")
    assert repaired.status == 0
    assert repaired.documents[0]["repaired"]
    assert "no process is running this environment" in repaired.err
    assert shop.run("verify", "sales").status == 0


@pytest.mark.spark
@pytest.mark.parametrize("internal", [False, True])
def test_a_planted_row_is_gone_after_the_next_step(shop, internal):
    """Views would not correct themselves, and every difference would need a person."""
    tamper(shop, *shards(shop)[0 if internal else -1])
    assert shop.run("run", "--once").status == 0
    assert shop.run("verify", "sales").status == 0


@pytest.mark.spark
def test_a_view_can_be_verified_at_an_earlier_time(shop):
    """History could not be checked, only the present."""
    before = shop.run("verify", "sales", "--json").documents[0]["as_of"]
    assert shop.sql("DELETE FROM orders WHERE city = 'Delft'").status == 0
    assert shop.run("run", "--once").status == 0
    assert shop.run("verify", "sales", "--as-of", str(before)).status == 0
    rows = shop.run("query", "--json", "--as-of", str(before), "SELECT city FROM sales ORDER BY city").documents[0][
        "rows"
    ]
    assert rows == [{"city": "Delft"}, {"city": "Ghent"}]


@pytest.mark.kill
def test_a_planted_row_is_corrected_by_the_process_that_runs(shop):
    """Damage: an operator must stop a running environment to verify it."""
    process = shop.start()
    try:
        assert json.loads(process.stdout.readline())["serving"]["flight_sql"]
        ticked(process)
        for shard, schema in shards(shop):
            tamper(shop, shard, schema)
            said = shop.run("verify", "sales", "--repair")
            assert said.status == 0, said
        assert process.poll() is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.mark.spark
def test_what_is_not_a_view_is_refused_by_name(shop):
    """A misspelt name would verify nothing and look like success."""
    assert "'orders' is a table; only views are computed" in shop.run("verify", "orders").err
    assert "did you mean 'sales'?" in shop.run("verify", "sale").err
