"""Both sides of the benchmark of endpoints write the same rows, and the other figures are of rows that were there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.bench.endpoints.load import Endpoint, Load
from strandline.bench.endpoints.materialize import measure_materialize
from strandline.testing.postgres import databases

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from pyspark.sql import SparkSession

    from kafka_server import KafkaServer
    from postgres_server import PostgresServer

LOAD = Load(rows=2_000, transactions=4, rounds=2)


def require_both_sides(found: dict[str, Any], others: tuple[str, ...] = ("plain",)) -> None:
    """Check the figures of one kind of writing."""
    assert found["wrong"] == 0
    assert set(found["rows_per_s"]) == {"ours", *others}
    assert all(rate > 0 for rate in found["rows_per_s"].values())
    for name in others:
        assert found["ratios"][name] > 0
        assert len(found["ratios_of_rounds"][name]) == LOAD.rounds


@pytest.mark.parametrize("endpoint", [Endpoint.DUCKDB, Endpoint.DELTA])
def test_both_sides_write_tables(endpoint: Endpoint, tmp_path: Path) -> None:
    """Damage: the figure compares writing everything with writing a part."""
    found = measure_materialize(None, tmp_path, endpoint, LOAD)
    require_both_sides(found["upserts"])
    require_both_sides(found["appends"])


@pytest.mark.server
def test_both_sides_push_to_kafka(
    spark: SparkSession, kafka_server: KafkaServer, kafka_connector: Path, tmp_path: Path
) -> None:
    """Damage: likewise; or topics stay on a broker that others use."""
    found = measure_materialize(spark, tmp_path, Endpoint.KAFKA, LOAD, servers=kafka_server.servers)
    require_both_sides(found["pushes"])
    assert not [name for name in kafka_server.admin.list_topics(timeout=120).topics if name.startswith("strandline-b")]


@pytest.mark.server
def test_both_sides_write_postgres_and_rows_drain_and_are_followed(
    spark: SparkSession, postgres_server: PostgresServer, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """Damage: likewise; the memory or the freshness is of nothing; or a schema stays in a database that others use."""
    load = Load(rows=2_000, transactions=4, rounds=2, drain=3_000, seconds=1.0, rate=80, warm_seconds=1.0, splits=3)
    with postgres_server.database() as database:
        options, servers = database.options, kafka_server.servers
        found = measure_materialize(spark, tmp_path, Endpoint.POSTGRES, load, database=options, servers=servers)
        assert databases.run(options, "SELECT 1 FROM pg_namespace WHERE nspname LIKE 'strandline%'") == []
    for each in (found["upserts"], found["appends"]):
        require_both_sides(each, others=("plain", "3 splits"))
    drain, fresh = found["drain"], found["freshness"]
    assert drain["wrong"] == 0
    assert 50 < drain["peak_mib_before"] <= drain["peak_mib"]
    assert 0 < fresh["p50_ms"] <= fresh["p99_ms"] <= fresh["max_ms"]
    assert fresh["rows"] > 0
