"""What docs/sources.md shows is true."""

from __future__ import annotations

import re
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

import strandline
from kafka_server import PASSWORD, KafkaServer
from strandline.controller.defining import project
from strandline.controller.language import statements
from strandline.options import understood
from strandline.wiring.registry import READERS

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "sources.md").read_text()


def section(name: str) -> str:
    """Return a section of the page."""
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, name
    return found[1]


def examples(name: str, language: str) -> list[str]:
    """Return the examples of a section."""
    return re.findall(rf"```{language}\n(.*?)```", section(name), re.DOTALL)


@pytest.mark.server
def test_the_example_of_kafka_runs_as_it_stands(
    spark: SparkSession, kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the first thing that a user of Kafka copies is refused, or gives something else."""
    endpoint = tmp_path / "shop.duckdb"
    monkeypatch.setenv("KAFKA_PASSWORD", PASSWORD)
    kafka_server.make_topic("orders", 2)
    main, guarded = examples("Kafka", "sql")
    script = main.replace("kafka-1:9092,kafka-2:9092", kafka_server.servers).replace("/data/shop.duckdb", str(endpoint))

    def holds() -> list[tuple[str, int, str]]:
        with duckdb.connect(str(endpoint), read_only=True) as connection:
            rows = connection.execute("SELECT customer, orders, total FROM customers ORDER BY customer").fetchall()
        return [(customer, orders, str(total)) for customer, orders, total in rows]

    with strandline.open(str(tmp_path / "strand"), spark=spark) as env:
        for text in statements.split(script + guarded.replace("/etc/kafka/ca.pem", str(kafka_server.certificate))):
            env.execute(text)
        kafka_server.produce("orders", ['{"customer": "Ada", "total": 12.50}'], key="7")
        kafka_server.produce("orders", ['{"customer": "Bob", "total": 1.00}'], key="8", partition=1)
        env.sync(env.tick())
        assert holds() == [("Ada", 1, "12.50"), ("Bob", 1, "1.00")]
        kafka_server.produce("orders", ['{"customer": "Ada", "total": 2.50}'], key="7")
        kafka_server.produce("orders", [None], key="8", partition=1)
        env.sync(env.tick())
        assert holds() == [("Ada", 1, "2.50")]
        assert env.verify("customers").ok


def test_the_settings_of_kafka_are_read(tmp_path: Path) -> None:
    """Damage: the first thing that an operator copies is refused."""
    (text,) = examples("Kafka", "yaml")
    (tmp_path / "strandline.yml").write_text(text)
    assert project.load(tmp_path).config["kafka_jars"] == "maven"


@pytest.mark.parametrize("name", ["Files", "Webhook", "Delta Lake", "Iceberg", "Load generators"])
def test_the_sources_of_other_sections_are_accepted_as_they_stand(name: str) -> None:
    """Damage: an option that the page names is not known."""
    for text in (text for example in examples(name, "sql") for text in statements.split(example)):
        statement = statements.parse(text)
        if isinstance(statement, statements.CreateSource):
            kind = READERS[statement.connector]
            understood(statement.name, kind.options, statement.options)
            assert kind.tables == (not statement.columns)
