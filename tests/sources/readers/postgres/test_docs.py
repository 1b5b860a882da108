"""What docs/sources.md shows of PostgreSQL is true, from a table to a view to DuckDB."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest

import strandline
from postgres_server import PostgresServer
from strandline.controller.language import statements

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "sources.md").read_text()
SECTION = re.search(r"^## PostgreSQL\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)[1]


def example(language):
    """The example of the section in a language."""
    (text,) = re.findall(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)
    return text


@pytest.fixture
def database(postgres_server: PostgresServer):
    """A database of the test's own."""
    with postgres_server.database() as made:
        yield made


@pytest.mark.server
@pytest.mark.spark
def test_the_example_runs_as_it_stands(spark, database, tmp_path, monkeypatch):
    """Damage: the first thing that a user of PostgreSQL copies is refused, or gives something else."""
    endpoint = tmp_path / "bank.duckdb"
    monkeypatch.setenv("PG_PASSWORD", "not asked for")
    database.run(*filter(str.strip, example("postgresql").split(";")))
    database.run(
        "INSERT INTO owners VALUES ('Ada', 'London'), ('Bob', 'Paris')",
        "INSERT INTO accounts VALUES (1, 'Ada', 10.50), (2, 'Ada', 1), (3, 'Bob', 2)",
    )
    script = example("sql").replace("/data/bank.duckdb", str(endpoint)).replace("db.example.com", "127.0.0.1")
    script = script.replace("'5432'", f"'{database.server.port}'").replace("'shop'", f"'{database.name}'")

    def holds():
        with duckdb.connect(str(endpoint), read_only=True) as connection:
            rows = connection.execute("SELECT city, accounts, balance FROM cities ORDER BY city").fetchall()
        return [(city, accounts, str(balance)) for city, accounts, balance in rows]

    with strandline.open(str(tmp_path / "strand"), spark=spark) as env:
        for text in statements.split(script):
            env.execute(text)
        env.sync(env.tick())
        assert holds() == [("London", 2, "11.50"), ("Paris", 1, "2.00")]
        with database.session() as session:
            session.execute("UPDATE accounts SET balance = balance - 1 WHERE id = 2")
            session.execute("UPDATE accounts SET balance = balance + 1, id = 4 WHERE id = 3")
            session.execute("UPDATE owners SET city = 'Rome' WHERE name = 'Bob'")
        env.sync(env.tick())
        assert holds() == [("London", 2, "10.50"), ("Rome", 1, "3.00")]
        database.run("DELETE FROM accounts WHERE id = 1")
        env.sync(env.tick())
        assert holds() == [("London", 1, "0.00"), ("Rome", 1, "3.00")]
        assert env.verify("cities").ok
        env.execute("ALTER SOURCE bank SET (evolve 'add')")
        database.run(
            "ALTER TABLE accounts ADD COLUMN note TEXT",
            "INSERT INTO accounts VALUES (5, 'Ada', 7, 'first'), (6, 'Ada', 1, NULL)",
        )
        env.sync(env.tick())
        assert sorted(map(tuple, env.query("SELECT id, note FROM accounts").collect())) == [
            (2, None), (4, None), (5, "first"), (6, None)
        ]  # fmt: skip
        database.run("UPDATE accounts SET note = 'late' WHERE id = 4", "DELETE FROM accounts WHERE id IN (5, 6)")
        env.sync(env.tick())
        assert sorted(map(tuple, env.query("SELECT id, note FROM accounts").collect())) == [(2, None), (4, "late")]
        assert holds() == [("London", 1, "0.00"), ("Rome", 1, "3.00")]
        assert env.verify("cities").ok
        ((position, durable),) = database.run(
            "SELECT confirmed_flush_lsn, pg_current_wal_flush_lsn() FROM pg_replication_slots"
            " WHERE slot_name = 'strandline_bank'"
        )
        assert position <= durable
        for what in ("MATERIALIZATION bank_duckdb", "MATERIALIZED VIEW cities", "TABLE accounts", "TABLE owners"):
            env.execute(f"DROP {what}")
        env.execute("DROP SOURCE bank")
        assert env.status()["problems"] == {}
    assert database.run("SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'strandline_bank'") == []
