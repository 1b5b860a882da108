"""A location is opened with the consensus that it was made with, or not at all."""

from __future__ import annotations

import itertools

import pytest

import strandline
from postgres_server import PostgresServer
from strandline.errors import ConfigError

pytestmark = pytest.mark.spark
NUMBERS = itertools.count()


def tables(spark, location, **wanted):
    """The collections that are found there."""
    with strandline.open(location, spark=spark, **wanted) as env:
        return list(env.status()["collections"])


def made(spark, location, consensus):
    """Make a location with a table."""
    with strandline.open(location, spark=spark, consensus=consensus) as env:
        env.execute("CREATE TABLE orders (id INT)")
        env.insert("orders", [{"id": 1}])


@pytest.mark.parametrize("mode", ["full", "read", "independent"])
def test_a_location_without_the_consensus_that_it_was_made_with_is_refused(spark, tmp_path, mode):
    """Damage: one forgotten argument, and the project is empty, and goes on so."""
    location, consensus = str(tmp_path / "data"), f"sqlite://{tmp_path}/states.db"
    made(spark, location, consensus)
    before = sorted(path.name for path in (tmp_path / "data").iterdir())
    with pytest.raises(ConfigError) as raised:
        tables(spark, location, mode=mode)
    assert f"location {location} was made with consensus {consensus}" in str(raised.value)
    assert "consensus.db (SQLite, inside the location)" in str(raised.value)
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == before
    assert tables(spark, location, consensus=consensus, mode=mode) == ["orders"]


def test_a_consensus_beside_another_location_is_refused(spark, tmp_path):
    """Damage: a location that was mistyped is made, with states that name what is not in it."""
    consensus = f"sqlite://{tmp_path}/states.db"
    made(spark, str(tmp_path / "data"), consensus)
    with pytest.raises(ConfigError, match="belongs to another location"):
        tables(spark, str(tmp_path / "dada"), consensus=consensus)


def test_a_location_may_move_with_all_that_is_in_it(spark, tmp_path):
    """Damage: an operator that copies a location to a larger disk has lost it."""
    made(spark, str(tmp_path / "data"), None)
    (tmp_path / "data").rename(tmp_path / "moved")
    assert tables(spark, str(tmp_path / "moved")) == ["orders"]


@pytest.mark.server
def test_a_database_may_get_another_name_and_an_empty_schema_is_refused(
    spark, postgres_server: PostgresServer, tmp_path
):
    """Damage: a host is renamed and the location is closed; or a letter is missing and an empty twin is made."""
    location, schema = str(tmp_path / "data"), f"twin_{next(NUMBERS)}"
    made(spark, location, f"{postgres_server.url}?schema={schema}")
    other_name = f"{postgres_server.url}?schema={schema}&application_name=moved"
    assert tables(spark, location, consensus=other_name) == ["orders"]
    with pytest.raises(ConfigError, match=f"PostgreSQL .*schema {schema}.*") as raised:
        tables(spark, location, consensus=f"{postgres_server.url}?schema={schema}_typo")
    assert postgres_server.url not in str(raised.value)
    with pytest.raises(ConfigError, match=f"was made with consensus PostgreSQL .*schema {schema}"):
        tables(spark, location)
