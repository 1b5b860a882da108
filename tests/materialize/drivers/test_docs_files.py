"""What the pages of the endpoints that are files show runs as it stands."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import duckdb
import pytest

import strandline
from strandline.controller.language import statements

PAGES = Path(__file__).resolve().parents[3] / "docs" / "endpoints"
SOURCE = """
CREATE TABLE facts (id INT, name STRING, total DECIMAL(10, 2));
INSERT INTO facts VALUES (1, 'Ada', 1.50), (2, 'Bob', 2);
CREATE MATERIALIZED VIEW customers AS SELECT id, max(name) AS name, sum(total) AS total FROM facts GROUP BY id;
"""


@pytest.mark.spark
@pytest.mark.parametrize(("name", "connect"), [("duckdb", duckdb.connect), ("sqlite", sqlite3.connect)])
def test_the_example_runs_as_it_stands(name, connect, spark, tmp_path):
    """Damage: the first thing that a user copies is refused, or gives something else."""
    (example,) = re.findall(r"```sql\n(.*?)```", (PAGES / f"{name}.md").read_text(), re.DOTALL)
    (path,) = re.findall(r"path '([^']+)'", example)
    file = tmp_path / Path(path).name

    def holds():
        connection = connect(str(file))
        try:
            rows = connection.execute("SELECT id, name, total FROM customers ORDER BY id").fetchall()
        finally:
            connection.close()
        return [(key, who, str(total)) for key, who, total in rows]

    with strandline.open(str(tmp_path / "strand"), spark=spark) as env:
        for text in statements.split(SOURCE + example.replace(path, str(file))):
            env.execute(text)
        env.sync(env.tick())
        assert holds() == [(1, "Ada", "1.50"), (2, "Bob", "2.00")]
        env.execute("INSERT INTO facts VALUES (1, 'Ada', 1), (3, 'Eve', 3)")
        env.execute("DELETE FROM facts WHERE id = 2")
        env.sync(env.tick())
        assert holds() == [(1, "Ada", "2.50"), (3, "Eve", "3.00")]
        assert env.verify("reports").ok
