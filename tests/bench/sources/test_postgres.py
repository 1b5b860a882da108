"""The benchmark of PostgreSQL reads what is there, with both sides."""

from __future__ import annotations

import pytest

from postgres_server import PostgresServer
from strandline.bench.sources.postgres import measure_postgres


@pytest.mark.server
@pytest.mark.spark
def test_both_sides_read_the_table(spark, postgres_server: PostgresServer, tmp_path):
    """Damage: a figure compares the reading of different rows, or leaves a slot that holds the log."""
    with postgres_server.database() as database:
        found = measure_postgres(spark, tmp_path, database.options, rows=2_000, rounds=1)
        assert found["wrong"] == 0
        assert {"rows_per_s", "peer_rows_per_s", "ratio", "changes_per_s", "floor_changes_per_s"} <= set(found)
        assert database.run("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
