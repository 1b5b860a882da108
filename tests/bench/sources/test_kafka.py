"""Both sides of the benchmark of sources read the same messages, and have the same rows at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from strandline.bench.sources.kafka import measure_kafka

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from kafka_server import KafkaServer


@pytest.mark.server
def test_both_sides_have_read_the_topic(
    spark: SparkSession, kafka_server: KafkaServer, kafka_connector: Path, tmp_path: Path
) -> None:
    """Damage: the figure compares reading everything with reading a part."""
    found = measure_kafka(spark, tmp_path, kafka_server.servers, messages=20_000, rounds=1)
    assert found["wrong"] == 0
    assert found["rows_per_s"] > 0
    assert found["spark_rows_per_s"] > 0
