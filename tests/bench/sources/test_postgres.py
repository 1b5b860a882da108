"""The benchmark of PostgreSQL reads what is there, with both sides."""

from __future__ import annotations

import pytest

from postgres_server import PostgresServer
from strandline.bench.sources.postgres import followed, measure_postgres

SLOTS = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"


@pytest.mark.server
@pytest.mark.spark
def test_both_sides_read_the_table(spark, postgres_server: PostgresServer, tmp_path):
    """Damage: a figure compares the reading of different rows, or leaves a slot that holds the log."""
    with postgres_server.database() as database:
        database.run("SELECT pg_create_logical_replication_slot('strandline_bench_0', 'pgoutput')")  # of a killed run
        found = measure_postgres(spark, tmp_path, database.options, rows=2_000, rounds=1)
        assert found["wrong"] == 0
        assert {"rows_per_s", "peer_rows_per_s", "ratio", "changes_per_s", "floor_changes_per_s"} <= set(found)
        assert database.run(SLOTS) == [(0,)]


@pytest.mark.server
def test_a_run_that_was_killed_keeps_no_later_one_from_following(postgres_server: PostgresServer):
    """Damage: every later run stops at a slot that is there already, and the server keeps its log meanwhile."""
    with postgres_server.database() as database:
        database.run("SELECT pg_create_logical_replication_slot('strandline_followed', 'pgoutput')")
        with followed(database.options):
            assert database.run(SLOTS) == [(0,)]
