"""Rows are followed from their upstream to a reader of the endpoint, who is another process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import duckdb
import pytest

from strandline.bench.sources import kafka, postgres
from strandline.bench.sources.endpoint import COMMITS_PER_S, LANES, Followed, Upstream, measure_endpoint
from strandline.bench.sources.watcher import file as file_of
from strandline.bench.sources.watcher import rows_of, watch

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from pyspark.sql import SparkSession

    from kafka_server import KafkaServer
    from postgres_server import PostgresServer


def test_a_commit_waits_until_all_its_rows_were_seen() -> None:
    """Damage: a commit of which a part is readable looks fresh."""
    followed = Followed(4, [1.0, 2.0, 3.0], [(2.5, 3), (4.0, 8), (9.0, 12)])
    assert followed.waits_ms(0.0) == [3_000.0, 2_000.0, 6_000.0]
    assert followed.waits_ms(1.5) == [6_000.0]


def test_a_reader_counts_the_rows_that_all_lanes_have(tmp_path: Path) -> None:
    """Damage: rows of a lane that is ahead hide that those of another one are not there."""
    file, log = tmp_path / "it.duckdb", tmp_path / "seen"
    assert rows_of(file) is None
    with duckdb.connect(str(file)) as connection:
        connection.execute("CREATE TABLE totals (lane INT, n BIGINT)")
        connection.execute(f"INSERT INTO totals SELECT lane, 5 + lane FROM range({LANES - 1}) AS lanes(lane)")
    assert rows_of(file) == 0
    with duckdb.connect(str(file)) as connection:
        connection.execute(f"INSERT INTO totals VALUES ({LANES - 1}, 7)")
    assert rows_of(file) == 5 * LANES
    watch(file_of(file), 5 * LANES, log)
    ((at, rows),) = (line.split() for line in log.read_text().splitlines())
    assert float(at) > 0
    assert int(rows) == 5 * LANES


def followed(spark: SparkSession, place: Path, upstream: Upstream) -> None:
    """Follow rows for a moment."""
    found: dict[str, Any] = measure_endpoint(spark, place, upstream, rate=80, seconds=1.0, warm_seconds=1.0)
    assert 0 < found["p50_ms"] <= found["p99_ms"] <= found["max_ms"]
    assert 0 < found["rows"] <= COMMITS_PER_S * found["rows_per_s"]


@pytest.mark.server
def test_records_of_kafka_are_followed(spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path) -> None:
    """Damage: the figure is of rows that never came, or of nothing."""
    with kafka.followed(kafka_server.servers) as upstream:
        followed(spark, tmp_path / "kafka", upstream)


@pytest.mark.server
def test_transactions_of_postgres_are_followed(
    spark: SparkSession, postgres_server: PostgresServer, tmp_path: Path
) -> None:
    """Damage: likewise; or a slot stays that holds the log."""
    with postgres_server.database() as database:
        with postgres.followed(database.options) as upstream:
            followed(spark, tmp_path / "postgres", upstream)
        assert database.run("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()") == [(0,)]
