"""What docs/sources.md shows is true."""

from __future__ import annotations

import re
from decimal import Decimal
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

import strandline
from iceberg_server import TOKEN, IcebergServer
from kafka_server import PASSWORD, KafkaServer
from strandline.controller.defining.project.files import load
from strandline.controller.language import statements
from strandline.options import understood
from strandline.wiring.registry import CONNECTIONS, READERS

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
        env.sync(env.tick(wait=True))
        assert holds() == [("Ada", 1, "12.50"), ("Bob", 1, "1.00")]
        kafka_server.produce("orders", ['{"customer": "Ada", "total": 2.50}'], key="7")
        kafka_server.produce("orders", [None], key="8", partition=1)
        env.sync(env.tick(wait=True))
        assert holds() == [("Ada", 1, "2.50")]
        assert env.verify("customers").ok


def test_the_settings_of_kafka_are_read(tmp_path: Path) -> None:
    """Damage: the first thing that an operator copies is refused."""
    (text,) = examples("Kafka", "yaml")
    (tmp_path / "strandline.yml").write_text(text)
    assert load(tmp_path).config["kafka_jars"] == "maven"


@pytest.mark.server
def test_the_example_of_iceberg_runs_as_it_stands(
    spark: SparkSession, iceberg_server: IcebergServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: the first thing that a user of Iceberg copies is refused, or shows the token."""
    catalog = load_catalog("tests", type="rest", uri=iceberg_server.uri, token=TOKEN)
    catalog.create_namespace("shop")
    amounts = pa.array([Decimal("12.50"), Decimal("0.25")], pa.decimal128(12, 2))
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "region": ["north", None], "amount": amounts})
    catalog.create_table("shop.sales", rows.schema).append(rows)
    monkeypatch.setenv("CATALOG_TOKEN", TOKEN)
    (script,) = examples("Iceberg", "sql")
    with strandline.open(str(tmp_path / "strand"), spark=spark) as env:
        for text in statements.split(script.replace("https://catalog", iceberg_server.uri)):
            env.execute(text)
        env.tick(wait=True)
        assert not env.status()["problems"]
        found, _ = env.answer("SELECT * FROM sales ORDER BY id")
        assert found.to_pylist() == rows.to_pylist()
        catalog.load_table("shop.sales").delete("id = 1")
        env.tick(wait=True)
        found, _ = env.answer("SELECT id FROM sales")
        assert found["id"].to_pylist() == [2]
        assert TOKEN not in repr(env.status())


@pytest.mark.spark
def test_the_example_of_columns_runs_as_it_stands(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: a column that upstream gets is lost, or what the page says to do about it is refused."""
    defined, altered = (
        statements.split(
            text.replace("/data/readings", str(tmp_path)).replace("evolve = 'add'", "evolve 'add', settle 0")
        )
        for text in examples("When upstream gets a column", "sql")
    )
    with strandline.open("memory://", spark=spark) as env:
        for text in defined:
            env.execute(text)
        (tmp_path / "1.json").write_text('{"id": 1, "sensor": "a"}\n')
        env.tick(wait=True)
        (tmp_path / "2.json").write_text('{"id": 2, "sensor": "b", "value": 1.5}\n')
        env.tick(wait=True)
        assert [tuple(row) for row in env.query("SELECT * FROM readings ORDER BY id").collect()] == [
            (1, "a", None),
            (2, "b", 1.5),
        ]
        assert len(env.query("SELECT * FROM seen").columns) == 2
        for text in altered:
            env.execute(text)
        env.tick(wait=True)
        assert env.collection("readings").schema.names == ("id", "sensor", "value", "unit", "taken_at")
        assert env.status()["problems"] == {}


@pytest.mark.parametrize("name", ["Files", "Webhook", "Delta Lake", "Iceberg", "Load generators"])
def test_the_sources_of_other_sections_are_accepted_as_they_stand(name: str) -> None:
    """Damage: an option that the page names is not known."""
    connections: dict[str, dict[str, str]] = {}
    for text in (text for example in examples(name, "sql") for text in statements.split(example)):
        statement = statements.parse(text)
        if isinstance(statement, statements.CreateConnection):
            understood(statement.name, CONNECTIONS[statement.system].options, statement.options)
            connections[statement.name] = statement.options
        if isinstance(statement, statements.CreateSource):
            kind, options = READERS[statement.connector], dict(statement.options)
            shared = connections[options.pop("connection")] if "connection" in options else {}
            understood(statement.name, kind.options, {**shared, **options})
            assert kind.tables == (not statement.columns)
