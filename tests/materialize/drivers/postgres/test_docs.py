"""What docs/endpoints/postgres.md shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import strandline
from postgres_server import PostgresServer
from strandline.controller.language import statements

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "endpoints" / "postgres.md").read_text()
SOURCE = """
CREATE TABLE facts (id INT, name STRING, total DECIMAL(10, 2));
INSERT INTO facts VALUES (1, 'Ada', 1.50), (2, 'Bob', 2);
CREATE MATERIALIZED VIEW customers AS SELECT id, max(name) AS name, sum(total) AS total FROM facts GROUP BY id;
"""


def example(language):
    """The page's example in a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return text


@pytest.mark.server
@pytest.mark.spark
def test_the_example_runs_as_it_stands(spark, postgres_server: PostgresServer, tmp_path, monkeypatch):
    """Damage: the first thing that a user of PostgreSQL copies is refused, or gives something else."""
    monkeypatch.setenv("PG_PASSWORD", "not asked for")
    with postgres_server.database() as database:
        database.run("CREATE SCHEMA reports")
        script = SOURCE + example("sql").replace("db.example.com", "127.0.0.1").replace("'shop'", f"'{database.name}'")
        script = script.replace("'5432'", f"'{postgres_server.port}'")

        def holds():
            return [(key, name, str(total)) for key, name, total in database.run(example("postgresql"))]

        with strandline.open(str(tmp_path / "strand"), spark=spark) as env:
            for text in statements.split(script):
                env.execute(text)
            env.sync(env.tick())
            assert holds() == [(1, "Ada", "1.50"), (2, "Bob", "2.00")]
            env.execute("INSERT INTO facts VALUES (1, 'Ada', 1), (3, 'Eve', 3)")
            env.execute("DELETE FROM facts WHERE id = 2")
            env.sync(env.tick())
            assert holds() == [(1, "Ada", "2.50"), (3, "Eve", "3.00")]
            assert env.verify("reports").ok
