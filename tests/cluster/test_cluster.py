"""A project on a Spark cluster whose executors share nothing with the driver: small and large, and what is killed."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake
from iceberg_lake import IcebergLake
from spark_cluster import WORKERS, SparkCluster, wait_for

import mariadb_server as mariadb
import strandline
from iceberg_server import IcebergServer
from kafka_server import KafkaServer
from postgres_server import PostgresServer
from redis_server import PASSWORD as REDIS_PASSWORD
from redis_server import RedisServer
from s3_server import ACCESS_KEY_ID, REGION, SECRET_ACCESS_KEY, S3Server
from strandline.engine.parts.aside import HELD_BYTES_MAX
from strandline.errors import DefinitionError, Unavailable
from strandline.persist.shard.batch import scratch_prefix

pytestmark = [pytest.mark.cluster, pytest.mark.time_limit(900)]

FUNCTIONS: Final = Path(__file__).parent / "functions_of_a_project.py"
WAIT_S: Final = 60
"""How long a job waits for executors here."""
ROWS: Final = 40_000
WIDE: Final = 500
"""Characters of each of so many rows: together more than is held in memory."""
assert ROWS * WIDE > HELD_BYTES_MAX
VIEWS: Final = {
    "by_k": "SELECT k, count(*) AS n, sum(id) AS total FROM t GROUP BY k",
    "joined": "SELECT t.id, names.name FROM t JOIN names ON t.k = names.k",
    "kinds": "SELECT DISTINCT k FROM t",
    "latest": "SELECT id, k FROM t QUALIFY row_number() OVER (PARTITION BY k ORDER BY id DESC) = 1",
    "wide": "SELECT id, text FROM large WHERE id >= 0",
}


@pytest.fixture(scope="module")
def env(cluster: SparkCluster, s3_server: S3Server, postgres_server: PostgresServer) -> Iterator[Any]:
    """An environment on the cluster, with S3 for bytes and PostgreSQL for order; its executors lack every library."""
    config = {
        "spark": {**cluster.settings, "spark.pyspark.python": str(cluster.python), "spark.driver.memory": "1g"},
        "storage": {"endpoint": s3_server.endpoint, "region": REGION},
        "functions": {name: f"{FUNCTIONS}:{name}" for name in ("twice", "thrice")},
        "executors_wait_s": WAIT_S,
    }
    location = f"s3://{s3_server.bucket}/on-a-cluster"
    consensus = f"{postgres_server.url}?schema=on_a_cluster"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY_ID)
        patch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_ACCESS_KEY)
        opened = strandline.open(location, consensus=consensus, config=config)
    with opened:
        _await_executors(opened)
        opened.execute("CREATE TABLE t (id BIGINT, k INT)")
        opened.execute("CREATE TABLE names (k INT, name STRING)")
        opened.execute("CREATE TABLE large (id BIGINT, text STRING)")
        opened.execute("CREATE TABLE beside (id BIGINT)")
        for name, text in VIEWS.items():
            opened.execute(f"CREATE MATERIALIZED VIEW {name} AS {text}")
        opened.insert("names", [{"k": k, "name": f"name {k}"} for k in range(3)])
        opened.insert("t", [{"id": n, "k": n % 3} for n in range(30)])
        opened.execute(
            f"INSERT INTO large SELECT id, rpad(sha2(CAST(id AS STRING), 256), {WIDE}, 'x') FROM range({ROWS})"
        )
        opened.tick()
        yield opened


def test_views_are_right_after_small_and_large_ticks(env: Any) -> None:
    """Damage: rows are lost between executors and driver, and a view is wrong where the cluster is real."""
    for n in range(3):
        env.insert("t", [{"id": 100 + n, "k": n % 3}])
        env.tick()
    env.execute("DELETE FROM t WHERE id = 100")
    env.execute("UPDATE large SET text = 'short' WHERE id = 7")
    env.tick()
    assert env.status()["problems"] == {}
    for name in VIEWS:
        assert env.verify(name).ok, name
    assert env.answer("SELECT count(*), max(text) FROM wide WHERE id IN (7, 8)")[0].num_rows == 1


def test_small_ticks_run_in_no_job(env: Any) -> None:
    """Damage: each small tick pays for several jobs on the cluster, where one machine pays for none."""
    jobs = _Jobs(env)
    for n in range(12):  # the first ones also check views whose plans are new
        env.insert("t", [{"id": 1000 + n, "k": n % 3}])
        env.tick()
    jobs.begin()
    for n in range(3):
        env.insert("t", [{"id": 2000 + n, "k": n % 3}])
        env.tick()
    assert [name for name in jobs.since() if "answers.py" not in name] == []  # of the checks between ticks


def test_partitions_follow_the_cores(env: Any, cluster: SparkCluster) -> None:
    """Damage: a session that was opened before its executors came works in two partitions for ever."""
    session = env._access.assembly.engine.session
    wait_for(lambda: len(cluster.executors()) == 2, "two executors")
    wait_for(lambda: session.conf.get("spark.sql.shuffle.partitions") == "2", "a partition for each core")


def test_an_endpoint_with_more_than_memory_holds_is_verified(
    env: Any, cluster: SparkCluster, s3_server: S3Server
) -> None:
    """Damage: `verify` puts rows into a file of the driver, finds no such file, and advises to repair the store."""
    path = cluster.shared / "wide.duckdb"
    env.execute(f"CREATE MATERIALIZATION out INTO duckdb OPTIONS (path '{path}') AS wide KEY (id)")
    env.tick()
    found = env.verify("out")
    assert found.ok, found
    assert _put_aside(env) == []


def test_a_large_snapshot_of_postgresql_arrives(env: Any, postgres_server: PostgresServer) -> None:
    """Damage: a table that does not fit into memory is never read to its end."""
    with postgres_server.database() as database:
        database.run(
            f"CREATE TABLE big AS SELECT n AS id, repeat('x', {WIDE}) AS text FROM generate_series(1, {ROWS}) n"
        )
        database.run("ALTER TABLE big ADD PRIMARY KEY (id)")
        database.run("CREATE PUBLICATION strand FOR TABLE big")
        options = ", ".join(f"{name} = '{text}'" for name, text in database.options.items())
        env.execute(f"CREATE SOURCE bank FROM postgres ({options}, publication = 'strand', slot = 'strand_cluster')")
        env.execute("CREATE TABLE big (id BIGINT, text STRING) FROM SOURCE bank (REFERENCE 'public.big')")
        env.tick(wait=True)
        env.tick(wait=True)
        assert env.status()["problems"] == {}
        assert env.answer("SELECT count(*) AS n FROM big")[0].to_pylist() == [{"n": ROWS}]
        env.execute("DROP TABLE big")
        env.execute("DROP SOURCE bank")
    assert _put_aside(env) == []


def test_files_are_read_whether_executors_have_python_or_not(env: Any, cluster: SparkCluster) -> None:
    """Damage: Avro files, and Parquet with unsigned numbers, stop their source with Java's words."""
    below = {name: cluster.shared / name for name in ("csv", "avro", "unsigned")}
    for each in below.values():
        each.mkdir()
    lines = "".join(f"{n},{'x' * WIDE}\n" for n in range(4000))
    assert len(lines) > 1 << 20, "a job reads it"
    (below["csv"] / "1.csv").write_text("id,text\n" + lines)
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": "id", "type": "long"}, {"name": "text", "type": "string"}],
    }
    with (below["avro"] / "1.avro").open("wb") as file:
        fastavro.writer(file, fastavro.parse_schema(schema), ({"id": n, "text": "y"} for n in range(1000)))
    pq.write_table(
        pa.table({"id": pa.array(range(ROWS), pa.uint64()), "text": [f"{n:0{WIDE}}" for n in range(ROWS)]}),
        below["unsigned"] / "1.parquet",
    )
    for name, form, more in (("csv", "csv", ", header = 'true'"), ("avro", "avro", ""), ("unsigned", "parquet", "")):
        options = f"path = '{below[name]}/*', format = '{form}', settle = '0'{more}"
        env.execute(f"CREATE SOURCE from_{name} (id BIGINT, text STRING) FROM files ({options})")
    env.tick(wait=True)
    env.tick(wait=True)
    assert env.status()["problems"] == {}
    counts = {name: env.answer(f"SELECT count(*) AS n FROM from_{name}")[0].to_pylist()[0]["n"] for name in below}
    assert counts == {"csv": 4000, "avro": 1000, "unsigned": ROWS}
    assert _put_aside(env) == []


def test_tables_of_lakes_are_read_small_and_large_by_driver_and_executors(env: Any, cluster: SparkCluster) -> None:
    """Damage: a lake's rows lie in a file of the driver on their way, where no executor finds them."""
    texts = [hashlib.shake_128(str(n).encode()).hexdigest(WIDE // 2) for n in range(ROWS)]
    plain = pa.table({"id": pa.array(range(ROWS), pa.int64()), "text": texts})
    other = pa.table({"id": pa.array(range(ROWS), pa.int32()), "text": texts})  # not as it is declared: read as Arrow
    assert other.nbytes > HELD_BYTES_MAX
    for name, rows in (("plain", plain), ("other", other)):
        path = cluster.shared / f"delta-{name}"
        write_deltalake(str(path), rows)
        env.execute(f"CREATE SOURCE delta_{name} (id BIGINT, text STRING) FROM delta (path = '{path}')")
        path = cluster.shared / f"iceberg-{name}"
        IcebergLake(path).create(rows)
        env.execute(f"CREATE SOURCE iceberg_{name} (id BIGINT, text STRING) FROM iceberg (path = '{path}')")
    env.tick(wait=True)
    env.tick(wait=True)
    assert env.status()["problems"] == {}
    for name in ("delta_plain", "delta_other", "iceberg_plain", "iceberg_other"):
        found = env.answer(f"SELECT count(*) AS n, sum(id) AS ids, min(length(text)) AS least FROM {name}")[0]
        assert found.to_pylist() == [{"n": ROWS, "ids": ROWS * (ROWS - 1) // 2, "least": WIDE}], name
        env.execute(f"DROP SOURCE {name}")
    assert _put_aside(env) == []


def test_endpoints_of_files_and_servers_follow_and_are_verified(
    env: Any, cluster: SparkCluster, postgres_server: PostgresServer
) -> None:
    """Damage: an endpoint gets its rows on one machine, and none where executors have computed them."""
    with postgres_server.database() as database:
        options = ", ".join(f"{name} '{text}'" for name, text in database.options.items())
        _follow(
            env,
            {
                "sqlite": f"path '{cluster.shared / 'rows.sqlite'}'",
                "files": f"path '{cluster.shared / 'files'}'",
                "delta": f"path '{cluster.shared / 'tables'}'",
                "postgres": options,
            },
        )


@pytest.mark.slow
def test_endpoints_of_other_servers_follow_and_are_verified(
    env: Any,
    iceberg_server: IcebergServer,
    kafka_server: KafkaServer,
    mariadb_server: mariadb.MariaDBServer,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Damage: an endpoint gets its rows on one machine, and none where executors have computed them."""
    monkeypatch.setenv("CATALOG_TOKEN", iceberg_server.options["token"])
    monkeypatch.setenv("MARIADB_PASSWORD", mariadb.PASSWORD)
    monkeypatch.setenv("REDIS_PASSWORD", REDIS_PASSWORD)
    with mariadb_server.database() as database:
        _follow(
            env,
            {
                "iceberg": f"catalog 'rest', uri '{iceberg_server.uri}', token 'env:CATALOG_TOKEN', namespace 'shop'",
                "mariadb": f"host '127.0.0.1', port '{mariadb_server.port}', database '{database}', "
                f"user '{mariadb.USER}', password 'env:MARIADB_PASSWORD'",
                "redis": f"server '{redis_server.place}', password 'env:REDIS_PASSWORD'",
            },
        )
    kafka_server.make_topic("latest", 1)
    env.execute(
        f"CREATE MATERIALIZATION in_kafka INTO kafka OPTIONS (servers '{kafka_server.servers}', delta 'true') "
        "AS latest KEY (k)"
    )
    env.tick()
    assert env.status()["problems"] == {}
    env.execute("DROP MATERIALIZATION in_kafka")


def test_an_index_answers_what_the_view_holds(env: Any) -> None:
    """Damage: a peek reads an arrangement that was built from parts that no executor could read."""
    env.execute("CREATE INDEX of_large ON wide (id)")
    env.tick()
    (row,) = env.peek("wide", {"id": 11}).to_pylist()
    assert row == {"id": 11, "text": row["text"]}
    assert len(row["text"]) == WIDE
    assert env.peek("wide", {"id": 10 * ROWS}).num_rows == 0
    env.execute("DROP INDEX of_large")


def test_a_function_that_executors_cannot_run_is_refused_at_create(env: Any) -> None:
    """Damage: a view is accepted, and stands still for ever with a sentence about awaitResult."""
    with pytest.raises(DefinitionError, match=r"'thrice' runs in the Python of executors.*pyarrow.*spark.pyspark.py"):
        env.execute("CREATE MATERIALIZED VIEW trebled AS SELECT id, thrice(id) AS three FROM t")
    env.execute("CREATE MATERIALIZED VIEW doubled AS SELECT id, twice(id) AS two FROM t")  # Spark brings all it needs
    env.tick()
    assert env.status()["problems"] == {}
    assert env.verify("doubled").ok
    env.execute("DROP MATERIALIZED VIEW doubled")


def test_work_goes_on_after_an_executor_and_a_worker_are_killed(env: Any, cluster: SparkCluster) -> None:
    """Damage: rows are lost or doubled where an executor dies in the middle of a job."""
    before = env.answer("SELECT count(*) AS n FROM large")[0].to_pylist()[0]["n"]
    victim, more = cluster.executors()[0], 5 * ROWS
    with ThreadPoolExecutor(1) as beside:
        inserted = beside.submit(env.execute, f"INSERT INTO large SELECT id + {ROWS}, 'after' FROM range({more})")
        wait_for(lambda: inserted.done() or _runs_a_job(env), "its job")
        victim.kill()
        assert inserted.result()
    cluster.kill_worker(0)
    env.tick()
    assert env.verify("wide").ok
    assert env.answer("SELECT count(*) AS n FROM large")[0].to_pylist() == [{"n": before + more}]
    cluster.start_worker(0)
    _await_executors(env)


@pytest.mark.slow
def test_a_call_whose_executors_all_die_holds_no_other_call_and_is_made_anew(env: Any, cluster: SparkCluster) -> None:
    """Damage: all callers wait until a call whose executors died has others; or its rows are there twice."""
    before = env.answer("SELECT count(*) AS n FROM large")[0].to_pylist()[0]["n"]
    victims, more = cluster.executors(), 10 * ROWS
    with ThreadPoolExecutor(1) as beside:
        inserted = beside.submit(env.execute, f"INSERT INTO large SELECT id - {more}, 'twice?' FROM range({more})")
        wait_for(lambda: _runs_a_job(env), "its job")
        for victim in victims:
            victim.kill()
        lost = time.monotonic()
        env.insert("beside", [{"id": 0}])
        assert time.monotonic() - lost < WAIT_S, "it waited until the other one has an executor"
        assert inserted.result()
    assert env.answer("SELECT count(*) AS n FROM large")[0].to_pylist() == [{"n": before + more}]


@pytest.mark.slow
def test_without_an_executor_jobs_end_with_a_sentence_and_all_else_goes_on(env: Any, cluster: SparkCluster) -> None:
    """Damage: one INSERT waits for a job for ever, and holds up ticks, questions and the end of the process."""
    for number in list(cluster.workers):
        cluster.kill_worker(number)
    with ThreadPoolExecutor(1) as beside:
        begun = time.monotonic()
        refused = beside.submit(env.execute, "INSERT INTO large SELECT id, 'never' FROM range(1000000)")
        time_passes(1)
        asked = time.monotonic()
        env.insert("beside", [{"id": 1}])  # in no job
        env.status()
        assert time.monotonic() - asked < WAIT_S, "they waited until the other one was refused"
        with pytest.raises(Unavailable, match="Spark has had no executor since"):
            refused.result()
        assert time.monotonic() - begun < 4 * WAIT_S
    env.tick(timeout=1.0)
    first = env.status()["problems"]
    time_passes(2)
    env.tick(timeout=1.0)
    assert {name: env.status()["problems"].get(name) for name in first} == first, "a problem's text tells no time"
    for number in range(2):
        cluster.start_worker(number)
    _await_executors(env)
    assert env.answer("SELECT count(*) AS n FROM beside WHERE id = 1")[0].to_pylist() == [{"n": 1}]
    _until(env, lambda: env.status()["problems"] == {})
    assert env.verify("by_k").ok


class _Jobs:
    """The jobs of the environment's application, by the lines of ours that began them."""

    def __init__(self, env: Any) -> None:
        self._tracker = env._access.assembly.engine.session.sparkContext.statusTracker()
        self._seen: set[int] = set()

    def begin(self) -> None:
        """Forget those that there were."""
        self.since()

    def since(self) -> list[str]:
        """Return those that were begun since."""
        found = sorted(set(self._tracker.getJobIdsForGroup(None)) - self._seen)
        self._seen.update(found)
        infos = [self._tracker.getJobInfo(job) for job in found]
        stages = [self._tracker.getStageInfo(info.stageIds[0]) if info and info.stageIds else None for info in infos]
        return [stage.name if stage is not None else "" for stage in stages]


def _follow(env: Any, endpoints: Mapping[str, str]) -> None:
    """Have endpoints follow a view through a snapshot and a change, and verify each."""
    for kind, options in endpoints.items():
        env.execute(f"CREATE MATERIALIZATION in_{kind} INTO {kind} OPTIONS ({options}) AS latest KEY (k)")
    env.tick()
    env.insert("t", [{"id": 5000, "k": 1}, {"id": 5001, "k": 7}])
    env.tick()
    assert env.status()["problems"] == {}
    for kind in endpoints:
        assert env.verify(f"in_{kind}").ok, kind
        env.execute(f"DROP MATERIALIZATION in_{kind}")
    env.execute("DELETE FROM t WHERE id >= 5000")


def _await_executors(env: Any) -> None:
    """Return when each worker's executor has registered, and not only begun."""
    application = env._access.assembly.engine.session.sparkContext._jsc.sc()
    wait_for(lambda: application.getExecutorIds().size() == WORKERS, "an executor of each worker")


def _runs_a_job(env: Any) -> bool:
    tracker = env._access.assembly.engine.session.sparkContext.statusTracker()
    return bool(tracker.getActiveJobsIds())


def _put_aside(env: Any) -> list[str]:
    """Return the objects that are put aside."""
    found: list[str] = env._access.wait(env._access.assembly.blob.list(scratch_prefix()))
    return found


def _until(env: Any, holds: Callable[[], bool]) -> None:
    """Tick until it holds."""

    def ticked() -> bool:
        env.tick()
        return holds()

    wait_for(ticked, "problems are mended")


def time_passes(seconds: float) -> None:
    """Wait."""
    threading.Event().wait(seconds)
