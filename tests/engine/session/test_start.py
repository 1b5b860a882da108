"""Spark sessions: Java is found or asked for in one sentence, and a caller's session stays as it was."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyspark
import pytest
from lost_bridge import refused, refused_by_the_jvm
from py4j import java_gateway
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from strandline.engine.parts.part_store import PartStore
from strandline.engine.session.reach import BARRED, KEPT
from strandline.engine.session.start import adopt, java_path, require_java, require_running, sibling, spark_is_gone
from strandline.engine.spark import SparkEngine
from strandline.errors import ConfigError
from strandline.testing.contracts.engine_contract import SCHEMA, request, table


def java(directory: Path, version: str, modules: str = "java.base@17\njdk.incubator.vector@17") -> str:
    """Return a stand-in for Java that gives these answers."""
    path = directory / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(
        f"#!/bin/sh\ncase $1 in\n-version) echo '{version}' >&2;;\n--list-modules) printf '{modules}\\n';;\nesac\n"
    )
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    "version", ['openjdk version "17.0.9" 2023', 'java version "21" 2023', 'openjdk version "25-ea" 2025']
)
def test_a_recent_java_will_do(tmp_path: Path, version: str) -> None:
    """Damage: a machine that could run Spark is refused."""
    require_java(java(tmp_path, version))


@pytest.mark.parametrize(
    ("version", "modules", "reason"),
    [
        ('openjdk version "11.0.2" 2019', "jdk.incubator.vector@11", "is Java 11"),
        ('java version "1.8.0_202"', "", "is Java 8"),
        ("gibberish", "", "does not say its version"),
        ('openjdk version "17.0.9" 2023', "java.base@17", "lacks the module jdk.incubator.vector"),
    ],
)
def test_an_unfit_java_is_refused_in_one_sentence(tmp_path: Path, version: str, modules: str, reason: str) -> None:
    """Damage: forty lines of class loader instead of what to install."""
    with pytest.raises(ConfigError, match=reason) as refused:
        require_java(java(tmp_path, version, modules))
    assert "install a JDK of version 17" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_no_java_at_all_is_refused_in_one_sentence(tmp_path: Path) -> None:
    """Damage: likewise."""
    assert java_path({"PATH": str(tmp_path)}) is None
    assert java_path({"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]}) is None
    with pytest.raises(ConfigError, match="none is found: install a JDK"):
        require_java(None)


def test_java_home_goes_before_the_path(tmp_path: Path) -> None:
    """Damage: the Java that is checked is not the one that Spark starts."""
    found = java(tmp_path / "home", "")
    other = java(tmp_path / "other", "")
    environment = {"JAVA_HOME": str(tmp_path / "home"), "PATH": str(Path(other).parent)}
    assert java_path(environment) == found
    assert java_path({"PATH": environment["PATH"]}) == other


@pytest.mark.spark
def test_a_session_that_has_ended_is_refused_in_one_sentence() -> None:
    """Damage: after a lost JVM a notebook gets a traceback of sockets."""
    with pytest.raises(ConfigError, match="has ended"):
        adopt(cast("SparkSession", SimpleNamespace(newSession=refused)))


@pytest.mark.parametrize(
    "stopped", [None, lambda: True, refused_by_the_jvm], ids=["by its program", "by itself", "with its JVM"]
)
def test_an_application_that_has_ended_is_known_for_it(stopped: Callable[[], bool] | None) -> None:
    """Damage: a run whose JVM is dead tries every view at every tick, for ever, and nothing starts it again."""

    def session(stopped: Callable[[], bool] | None) -> SparkSession:
        java = stopped and SimpleNamespace(sc=lambda: SimpleNamespace(isStopped=stopped))
        return cast("SparkSession", SimpleNamespace(sparkContext=SimpleNamespace(_jsc=java)))

    require_running(session(lambda: False))
    with pytest.raises(ConfigError, match="start it again") as ended:
        require_running(session(stopped))
    assert spark_is_gone(ended.value) is (stopped is refused_by_the_jvm)


def test_a_connection_that_another_library_lost_is_not_taken_for_sparks() -> None:
    """Damage: `run` waits for a signal, and hides that an endpoint refused the connection."""
    with pytest.raises(ConnectionRefusedError) as other:
        refused()
    assert not spark_is_gone(other.value)
    with pytest.raises(RuntimeError) as told:
        try:
            refused_by_the_jvm()
        except ConnectionRefusedError:
            raise RuntimeError("it was handled") from None
    assert not spark_is_gone(told.value)


def test_the_tests_jvm_has_the_class_path_of_the_class_archive(spark: SparkSession) -> None:
    """Damage: every JVM of the tests takes twice the time to start; nothing says so."""
    jvm = spark._jvm
    assert jvm is not None
    first = str(jvm.java.lang.System.getProperty("java.class.path")).split(":")[0]
    assert Path(first).resolve() == Path(pyspark.__file__).parent / "conf"


def test_a_lost_jvm_is_not_logged_beside_our_error(spark: SparkSession, caplog: pytest.LogCaptureFixture) -> None:
    """Damage: an operator that ends a service of ours finds a traceback of sockets in its log."""
    adopt(spark)
    gateway = Path(java_gateway.__file__)
    logging.getLogger().handle(logging.LogRecord("root", logging.ERROR, str(gateway), 1, "lost", (), None))
    logging.getLogger().handle(logging.LogRecord("root", logging.ERROR, __file__, 1, "of the caller", (), None))
    assert caplog.messages == ["of the caller"]


def test_a_callers_session_is_not_changed(spark: SparkSession) -> None:
    """Damage: opening an environment in a notebook changes what the notebook's own queries mean."""
    caller = spark.newSession()
    caller.conf.set("spark.sql.ansi.enabled", "false")
    caller.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    before = caller.conf.getAll
    own = adopt(caller, {"spark.sql.shuffle.partitions": "3"})
    assert caller.conf.getAll == before
    assert own.conf.get("spark.sql.ansi.enabled") == "true"
    assert own.conf.get("spark.sql.session.timeZone") == "UTC"
    assert own.conf.get("spark.sql.shuffle.partitions") == "3"


ON_A_CLUSTER = """
import asyncio, json, sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast
from strandline.engine.parts.part_store import PartStore
from strandline.engine.session.start import build
from strandline.engine.spark import SparkEngine
from strandline.testing.contracts.engine_contract import SCHEMA, contents, request, table
import pyarrow as pa

memory = {"spark.driver.memory": "1g", "spark.executor.memory": "768m"}
session = build({"spark.master": "local-cluster[2,1,1024]", **memory})
engine = SparkEngine(session, PartStore(Path(sys.argv[1])))

async def body():
    rows = engine.from_arrow(table([(i, f"v{i % 7}", i % 10, 1 + i % 2) for i in range(1000)]), SCHEMA)
    spread = engine.from_dataframe(engine.spark_frame(rows).repartition(4))
    staged = await engine.stage(spread, request("bulk"))
    found = await engine.collect(await engine.read(contents(staged)))
    executors = session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
    return {
        "digest": [staged.digest.low, staged.digest.high],
        "rows": found.num_rows,
        "diffs": pa.compute.sum(found["__diff"]).as_py(),
        "parts": len(staged.parts),
        "executors": executors,
    }

print(json.dumps(asyncio.run(body())))
engine.close()
session.stop()
"""


@pytest.mark.spark
def test_executors_in_other_processes_stage_the_same_batch(spark: SparkSession, tmp_path: Path) -> None:
    """Damage: what works on a laptop fails on a cluster, or stages other rows there."""
    done = subprocess.run(
        [sys.executable, "-c", ON_A_CLUSTER, str(tmp_path / "cluster")],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    there = json.loads(done.stdout.splitlines()[-1])
    engine = SparkEngine(spark, PartStore(tmp_path / "local"))
    rows = engine.from_arrow(table([(i, f"v{i % 7}", i % 10, 1 + i % 2) for i in range(1000)]), SCHEMA)
    here = asyncio.run(engine.stage(rows, request("bulk")))
    engine.close()
    assert there["executors"] == 2
    assert there["parts"] >= 2
    assert (there["rows"], there["diffs"]) == (here.rows, here.diffs) == (1000, 1500)
    assert there["digest"] == [here.digest.low, here.digest.high]


def test_a_jvm_that_is_about_to_end_has_no_classes_left() -> None:
    """Damage: a service whose supervisor ends the JVM first has failed, though nothing went wrong."""
    assert spark_is_gone(Py4JError("org.apache.spark.sql.classic.SparkSession does not exist in the JVM"))
    assert not spark_is_gone(Py4JError("An error occurred while calling o1.sql"))


@pytest.fixture
def application(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """A call that configures the application itself, from which each new session takes what it begins with."""
    conf = spark._jsparkSession.sharedState().conf()
    before: dict[str, str | None] = {}

    def configure(key: str, value: str) -> None:
        before[key] = conf.get(key, None)
        conf.set(key, value)

    yield configure
    for key, value in before.items():
        conf.remove(key) if value is None else conf.set(key, value)


def test_no_setting_of_the_application_changes_what_a_text_means(
    spark: SparkSession, application: Callable[[str, str], None]
) -> None:
    """Damage: a view has other rows in a company's application than elsewhere, since literals are read otherwise there.

    Each switch that this Spark documents is thrown, and one that it does not.
    """
    plain = adopt(spark)
    known = {row.key: row.value for row in plain.sql("SET -v").collect()}
    known["spark.sql.parser.escapedStringLiterals"] = "false"
    switches = {
        key: "false" if value == "true" else "true"
        for key, value in known.items()
        if value in {"true", "false"} and plain.conf.isModifiable(key) and not key.startswith(KEPT)
    }
    assert len(switches) > 50
    wanted = {key: plain.conf.get(key) for key in switches}
    for key, value in switches.items():
        application(key, value)
    own = adopt(spark)
    assert {key: own.conf.get(key) for key in switches} == wanted
    like = sibling(own, {})
    assert {key: like.conf.get(key) for key in switches} == wanted


def test_a_configuration_that_opens_the_server_to_texts_is_refused(spark: SparkSession) -> None:
    """Damage: one line in a file of settings, and every client reads the passwords in the environment."""
    for key in ("spark.sql.variable.substitute", "spark.sql.runSQLOnFiles"):
        with pytest.raises(ConfigError, match="environment or files"):
            adopt(spark, {key: "true"})
        assert adopt(spark, {key: "false"}).conf.get(key) == "false"


def test_what_is_taken_out_of_our_sessions_stays_in_the_callers(spark: SparkSession) -> None:
    """Damage: a notebook that opens an environment can no longer call a function of Spark's."""
    caller = spark.newSession()
    own = adopt(caller)
    for session in (own, sibling(own, {})):
        assert not any(session.catalog.functionExists(name) for name in BARRED)
        assert session.sql("SELECT '${env:HOME}'").first()[0] == "${env:HOME}"
    assert all(caller.catalog.functionExists(name) for name in BARRED)
    assert caller.conf.get("spark.sql.variable.substitute") == "true"
