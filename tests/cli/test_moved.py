"""A project's directory is moved: the command line goes on where it is now."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.spark

SETTINGS = "location: data\nendpoints: {out: {driver: duckdb, path: out.duckdb}}"
ORDERS = """
    CREATE SOURCE orders (id INT, name STRING) FROM files
    (path = 'in/*.csv', settle = '0', format = 'csv')
"""
COUNTS = "CREATE MATERIALIZED VIEW counts AS SELECT name, count(*) AS n FROM orders GROUP BY name"


def test_a_project_that_is_moved_runs_as_before(place, tmp_path, monkeypatch):
    """Damage: a directory that is renamed once can never be run again; or rows go to where the shell stands."""
    place.write({"strandline.yml": SETTINGS, "sources/orders.sql": ORDERS, "views/counts.sql": COUNTS})
    place.write(
        {"materializations/m.sql": "CREATE MATERIALIZATION m INTO out AS counts", "in/a.csv": "id,name\n1,tea\n"}
    )
    monkeypatch.chdir(tmp_path)
    assert place.run("run", "--once").status == 0
    place.root = place.root.rename(tmp_path / "elsewhere")
    place.write({"in/b.csv": "id,name\n2,tea\n"})
    assert place.run("verify", "m").status == 0, "before it has run at the new place"
    said = place.run("run", "--once")
    assert said.status == 0, said.err
    assert place.run("verify", "m").status == 0
    (answer,) = place.run("query", "--json", "SELECT n FROM counts").documents
    assert answer["rows"] == [{"n": 2}]
    assert [path.name for path in tmp_path.iterdir()] == ["elsewhere"]
