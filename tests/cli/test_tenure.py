"""One environment writes a location at a time: a second is refused or takes over, and a dead one needs no operator."""

from __future__ import annotations

import json
import os
import signal

import duckdb
import pytest
from tests.cli.conftest import ticked

pytestmark = pytest.mark.kill

PROJECT = {
    "strandline.yml": "location: data\ndeployment: shop\n",
    "tables/products.sql": "CREATE TABLE products (id INT, name STRING)",
    "views/names.sql": "CREATE MATERIALIZED VIEW names AS SELECT name, count(*) AS n FROM products GROUP BY name",
    "materializations/reports.sql": "CREATE MATERIALIZATION reports INTO duckdb OPTIONS (path 'r.duckdb') AS names",
}


@pytest.fixture
def running(place):
    """Start ``strandline run`` and return it after its first tick; whatever still runs at the end is killed."""
    started = []

    def start(*arguments):
        process = place.start(*arguments)
        started.append(process)
        served = process.stdout.readline()
        assert served, process.stderr.read()
        assert json.loads(served)["serving"]["flight_sql"]
        ticked(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def stored(place):
    """What DuckDB holds."""
    with duckdb.connect(str(place.root / "r.duckdb"), read_only=True) as connection:
        return sorted(connection.sql("SELECT * FROM names").fetchall())


def test_a_second_run_is_refused_or_takes_over_and_duckdb_never_sees_both(place, running):
    """Two writers would each believe that they are the one, and an endpoint would get the rows of both."""
    place.write(PROJECT)
    first = running()

    refused = place.run("run", "--once")
    assert refused.status == 1
    assert f"being written by deployment 'shop', process {first.pid} on host" in refused.err
    assert "--take-over" in refused.err
    assert first.poll() is None
    assert place.run("query", "--json", "SELECT * FROM names").status == 0  # a reader does not block the writer

    assert place.run("run", "--once", "--take-over").status == 0
    _, said = first.communicate(timeout=240)
    assert first.returncode == 4
    assert f"fenced: deployment 'shop', process {os.getpid()} on host" in said or "fenced: another environment" in said

    assert place.sql("INSERT INTO products VALUES (1, 'tea'), (2, 'tea')").status == 0
    assert place.run("run", "--once").status == 0
    assert stored(place) == [("tea", 2)]
    assert place.run("verify", "reports").status == 0


def test_a_killed_run_is_succeeded_by_the_next_and_a_terminated_one_lets_go(place, running):
    """Damage: after a crash at night nothing goes on until an operator comes."""
    place.write(PROJECT)
    killed = running()
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    (found,) = place.run("status", "--json").documents
    assert found["holder"] is not None  # it could not release the location
    assert found["holder_lives"] is False
    assert f"process {killed.pid} on host" in (said := place.run("status").out), said
    assert "which has ended" in said
    assert place.sql("INSERT INTO products VALUES (1, 'tea')").status == 0

    second = running()
    assert stored(place) == [("tea", 1)]
    os.killpg(second.pid, signal.SIGTERM)
    _, said = second.communicate(timeout=240)
    assert (second.returncode, "refused" in said) == (0, False), said
    assert place.run("status", "--json").documents[0]["holder"] is None
