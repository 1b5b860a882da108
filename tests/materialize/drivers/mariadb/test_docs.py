"""What docs/endpoints/mariadb.md shows runs as it stands."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import pytest

import mariadb_server as mariadb
import strandline
from strandline.controller.language import statements

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "endpoints" / "mariadb.md").read_text()
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
def test_the_example_runs_as_it_stands(spark, mariadb_server: mariadb.MariaDBServer, tmp_path, monkeypatch):
    """Damage: the first thing that a user of MariaDB copies is refused, or gives something else."""
    monkeypatch.setenv("MARIADB_PASSWORD", mariadb.PASSWORD)
    with mariadb_server.database() as database:
        script = SOURCE + example("sql").replace("db.example.com", "127.0.0.1").replace("'shop'", f"'{database}'")
        script = script.replace("'3306'", f"'{mariadb_server.port}'")

        def holds():
            with closing(mariadb_server.connect(database)) as connection, connection.cursor() as cursor:
                cursor.execute(example("mysql"))
                return [(key, name, str(total)) for key, name, total in cursor.fetchall()]

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
