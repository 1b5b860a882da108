"""`strandline run` on a cluster: the page that says how to deploy it, and what it does when the cluster goes."""

from __future__ import annotations

import configparser
import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import fastavro
import pytest
import yaml
from spark_cluster import SparkCluster, free_port, wait_for
from tests.docs.walk import DOCS, Reader

import strandline
from postgres_server import PostgresServer
from s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server
from strandline.cli.terminal.exits import Exit
from strandline.errors import StrandlineError, Unavailable

pytestmark = [pytest.mark.cluster, pytest.mark.time_limit(1200)]

PAGE: Final = (DOCS / "how-to" / "deploy.md").read_text()
NUMBERS: Final = itertools.count()
WAIT_S: Final = 15
END_S: Final = 30
"""As short as executors allow that a busy machine starts."""
PATIENCE_S: Final = 180


def test_the_page_about_a_cluster(
    cluster: SparkCluster, postgres_server: PostgresServer, s3_server: S3Server, tmp_path: Path
) -> None:
    """Damage: what works on a laptop does not start on the cluster that the page describes."""
    page, prefix = PAGE, f"deployed/{next(NUMBERS)}"
    port = free_port()
    for said, ours in (
        ("s3://company-data/strand/shop", f"s3://{s3_server.bucket}/{prefix}"),
        ("  region: eu-central-1", f"  region: {REGION}\n  endpoint: {s3_server.endpoint}"),
        ("spark://spark-master:7077", cluster.url),
        ("spark.executor.memory: 2g", f"spark.executor.memory: {cluster.settings['spark.executor.memory']}"),
        ("/opt/strandline/bin/python", str(cluster.full_python)),
        ("127.0.0.1:8815", f"127.0.0.1:{port}"),
    ):
        assert said in page
        page = page.replace(said, ours)
    environment = {
        "STRAND_CONSENSUS": f"{postgres_server.url}?schema=deployed_{next(NUMBERS)}",
        "STRAND_TOKEN": "a-token-of-this-test",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
    }
    done = list(Reader(tmp_path, environment).follow(page))
    written = {block.title: block.text for block in done if block.title}
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # systemd's keys have capitals
    unit.read_string(written["shop.service"])
    assert shlex.split(unit["Service"]["ExecStart"])[1:] == ["run", "--json"]
    assert unit["Service"]["RestartPreventExitStatus"] == str(Exit.FENCED.value)
    pod = yaml.safe_load(written["strandline-deployment.yml"])["spec"]
    assert (pod["replicas"], pod["strategy"]["type"]) == (1, "Recreate")


@pytest.fixture
def project(
    cluster: SparkCluster, postgres_server: PostgresServer, s3_server: S3Server, tmp_path: Path, monkeypatch: Any
) -> Path:
    """A project whose executors have the libraries of the driver, and no Strandline, which is sent to them."""
    number = next(NUMBERS)
    (cluster.shared / f"avro-{number}").mkdir()
    settings = {
        "location": f"s3://{s3_server.bucket}/run/{number}",
        "consensus": "env:STRAND_CONSENSUS",
        "storage": {"endpoint": s3_server.endpoint, "region": REGION},
        "serve_at": f"127.0.0.1:{free_port()}",
        "serve_token": "env:STRAND_TOKEN",
        "executors_wait_s": PATIENCE_S,
        "executors_end_s": 10 * PATIENCE_S,
        "functions": {"twice": "functions_of_a_project.py:twice"},
        "spark": {**cluster.settings, "spark.pyspark.python": str(cluster.full_python), "spark.driver.memory": "1g"},
    }
    (tmp_path / "strandline.yml").write_text(yaml.safe_dump(settings))
    own = Path(__file__).parent / "functions_of_a_project.py"
    (tmp_path / own.name).write_text(own.read_text())
    where = f"{cluster.shared}/avro-{number}/*.avro"
    source = f"CREATE SOURCE readings (id BIGINT) FROM files (path = '{where}', format = 'avro', settle = '0')"
    for directory, name, text in (
        ("tables", "t", "CREATE TABLE t (id BIGINT)"),
        ("sources", "readings", source),
        ("views", "doubled", "CREATE MATERIALIZED VIEW doubled AS SELECT id, twice(id) AS two FROM t"),
    ):
        (tmp_path / directory).mkdir()
        (tmp_path / directory / f"{name}.sql").write_text(text)
    with (cluster.shared / f"avro-{number}" / "1.avro").open("wb") as file:
        schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
        fastavro.writer(file, fastavro.parse_schema(schema), ({"id": n} for n in range(1000)))
    for name, text in {
        "STRAND_CONSENSUS": f"{postgres_server.url}?schema=run_{number}",
        "STRAND_TOKEN": "a-token-of-this-test",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET_ACCESS_KEY,
    }.items():
        monkeypatch.setenv(name, text)
    return tmp_path


def test_run_ends_when_the_master_has_forgotten_it_or_no_executor_comes_and_goes_on_after_a_start(
    cluster: SparkCluster, project: Path
) -> None:
    """Damage: a process waits for ever for a cluster that has forgotten it, reports nothing, and ignores SIGTERM."""
    with running(project) as (process, env):
        env.insert("t", [{"id": 1}])
        env.execute("INSERT INTO t SELECT id FROM range(10, 20000)")
        wait_for(lambda: asked(env, "SELECT max(two) AS two FROM doubled") == [{"two": 39_998}], "the view")
        wait_for(lambda: asked(env, "SELECT count(*) AS n FROM readings") == [{"n": 1000}], "the source")
        cluster.kill_master()
        cluster.start_master()  # it knows of no application, and the workers end what it does not know of
        assert process.wait(PATIENCE_S) == Exit.NO_EXECUTORS
    said = (project / "log").read_text()
    assert "no longer knows the application" in said
    assert "this process ends" in said
    cluster.wait_for_workers(4)
    settings = yaml.safe_load((project / "strandline.yml").read_text())
    short = {"executors_wait_s": WAIT_S, "executors_end_s": END_S}
    (project / "strandline.yml").write_text(yaml.safe_dump({**settings, **short}))
    with running(project) as (process, env):
        wait_for(lambda: asked(env, "SELECT count(*) AS n FROM doubled") == [{"n": 19_991}], "the view")
        for number in list(cluster.workers):
            cluster.kill_worker(number)
        with pytest.raises(Unavailable, match="no executor since .* no worker of the master"):
            env.execute("INSERT INTO t SELECT id FROM range(20000, 40000)")
        env.insert("t", [{"id": 2}])  # needs no job
        assert process.wait(PATIENCE_S) == Exit.NO_EXECUTORS
    (project / "strandline.yml").write_text(yaml.safe_dump({**settings, **short, "executors_end_s": 0}))
    with running(project) as (process, env), ThreadPoolExecutor(1) as beside:
        waiting = beside.submit(env.execute, "INSERT INTO t SELECT id FROM range(20000, 40000)")
        env.insert("t", [{"id": 3}])
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == Exit.OK
        with pytest.raises(StrandlineError):
            waiting.result()
    for number in range(2):
        cluster.start_worker(number)


def asked(env: Any, query: str) -> list[Any] | None:
    """Return the answer to a query; None while executors are awaited."""
    with suppress(Unavailable):
        found: list[Any] = env.query(query).collect()
        return found
    return None


@contextmanager
def running(project: Path) -> Iterator[tuple[subprocess.Popen[bytes], Any]]:
    """Give `strandline run` and a connection to it."""
    settings = yaml.safe_load((project / "strandline.yml").read_text())
    with (project / "log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "strandline", "run"], cwd=project, env=os.environ, stdout=log, stderr=log
        )
    try:
        log_file, before = project / "log", (project / "log").read_text().count("event=serving")

        def serves() -> bool:
            assert process.poll() is None, log_file.read_text()
            return log_file.read_text().count("event=serving") > before

        wait_for(serves, "it serves")
        with strandline.connect(f"grpc+tcp://{settings['serve_at']}", token="env:STRAND_TOKEN") as env:
            yield process, env
    finally:
        process.kill()
        process.wait()
