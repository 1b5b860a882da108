"""Fixtures that every room's tests share."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import spark_cluster
from hypothesis import HealthCheck, settings
from interpreted import JAVA_OPTIONS
from pyspark.sql import SparkSession

import iceberg_server as iceberg
import kafka_server as kafka
import mariadb_server as mariadb
import postgres_server as postgres
import redis_server as redis
import s3_server as s3
from strandline.controller import core
from strandline.engine.session import kafka_jars, start
from strandline.engine.session.start import build
from strandline.sources.question import Patience

pytest_plugins = ("time_limits",)

# A process under test inherits it; what compiles as in production says so (`compiled.py`).
os.environ["SPARK_SUBMIT_OPTS"] = JAVA_OPTIONS

# The assertions of the contracts show their values, as those of a test module do.  Several rooms import them.
pytest.register_assert_rewrite("strandline.testing.contracts")

# What an example takes says something of the machine's other work, and nothing of the code.
settings.register_profile("noisy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("noisy")


ANSWERS_S = 60.0
"""How long a tick waits here for what a source asks a real upstream, which a busy machine holds up."""
REAL = {"server", "spark", "views", "cluster"}
"""The markers of tests whose upstreams are real, and so is the clock."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Have environments in this process wait for upstreams that are late; `hasty` tests wait for an interval."""
    marked = {marker.name for marker in item.iter_markers()}
    with pytest.MonkeyPatch.context() as patch:
        if marked & REAL and "hasty" not in marked:
            patch.setattr(core, "Patience", lambda beside, interval_s: Patience(beside, max(ANSWERS_S, interval_s)))
        return (yield)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark application for the whole run, since starting one takes seconds: two cores, UTC, no UI."""
    settings = {"spark.master": "local[2]", "spark.driver.memory": "2g", "spark.sql.shuffle.partitions": "2"}
    connector = kafka.jars("kafka-connector")
    session = build(kafka_jars.jars(settings, connector and str(connector)))
    yield session
    session.stop()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[postgres.PostgresServer]:
    """A PostgreSQL that the tests share; each makes a schema of its own."""
    programs = postgres.binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed (as root, `tools/setup --servers` installs it)")
    directory = Path(tempfile.mkdtemp(prefix="strandline-pg-"))  # pytest's own are closed to the server's user
    server = postgres.make(directory, programs)
    server.start()
    yield server
    server.stop("immediate")
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.S3Server]:
    """An S3 that the tests share; each takes a prefix of its own."""
    server = s3.start("strandline")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def kafka_server() -> Iterator[kafka.KafkaServer]:
    """A Kafka broker that the tests share; each makes topics of its own."""
    jars = kafka.jars("kafka-broker")
    if jars is None:
        pytest.skip("the jars of Kafka are not here (`tools/setup --servers` fetches them)")
    directory = Path(tempfile.mkdtemp(prefix="strandline-kafka-"))
    server = kafka.make(directory, jars)
    server.start()
    yield server
    server.kill()
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def iceberg_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[iceberg.IcebergServer]:
    """An Iceberg REST catalog that the tests share; each makes a namespace of its own."""
    jars = kafka.jars("iceberg-catalog")
    if jars is None:
        pytest.skip("the jars of an Iceberg catalog are not here (`tools/setup --servers` fetches them)")
    with iceberg.running(tmp_path_factory.mktemp("iceberg"), jars) as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_server() -> Iterator[mariadb.MariaDBServer]:
    """A MariaDB that the tests share; each makes a database of its own."""
    if not mariadb.programs():
        pytest.skip("MariaDB is not installed (as root, `tools/setup --servers` installs it)")
    directory = Path(tempfile.mkdtemp(prefix="strandline-mariadb-"))  # pytest's own are closed to the server's user
    server = mariadb.make(directory)
    server.start()
    yield server
    server.stop()
    shutil.rmtree(directory)


@pytest.fixture(scope="session")
def cluster() -> Iterator[spark_cluster.SparkCluster]:
    """A Spark cluster whose executors share nothing with the driver's machine."""
    lack = spark_cluster.lacking()
    if lack is not None:
        pytest.skip(f"no cluster can be started here: {lack}")
    java = start.java_path(os.environ)
    assert java is not None, "the tests have a JDK"
    with spark_cluster.running(java) as made:
        yield made


@pytest.fixture
def kafka_broker(kafka_server: kafka.KafkaServer) -> Iterator[kafka.KafkaServer]:
    """The same broker, for tests that stop it: it runs again for the next one."""
    kafka_server.revive()
    yield kafka_server
    kafka_server.thaw()
    kafka_server.revive()


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.RedisServer]:
    """A Redis that the tests share; each takes a database of its own."""
    server = redis.make(tmp_path_factory.mktemp("redis"))
    if server is None:
        pytest.skip("Redis is not installed (as root, `tools/setup --servers` installs it)")
    server.start()
    yield server
    server.kill()


@pytest.fixture
def kafka_connector() -> Path:
    """The jars of Spark's Kafka connector, which the fixture `spark` has, if they are here."""
    jars = kafka.jars("kafka-connector")
    if jars is None:
        pytest.skip("the jars of Spark's Kafka connector are not here (`tools/setup --servers` fetches them)")
    return jars
