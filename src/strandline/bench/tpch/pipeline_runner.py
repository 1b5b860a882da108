"""The process that runs Spark's declarative pipelines, one after the other, in one JVM that stays warm.

``python -m strandline.bench.tpch.pipeline_runner DIRECTORY CORES`` serves Spark Connect, which pipelines are run by, to
itself alone.  What pipelines write is in DIRECTORY (see `written`).  It answers once when it is ready, and then each
`Request` that comes as a line on its standard input.  What Spark prints goes to standard error.

What a run does is what ``spark-pipelines run`` does, by the same functions of PySpark: a new graph, the text of its
SQL file, a run of the graph.  It is a process of its own because a session of Spark Connect and a session of the other
kind do not get on in one: PySpark's functions are of one kind only.

Source: Spark's programming guide of declarative pipelines.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from strandline.bench.tpch.contents import CONF
from strandline.errors import ConfigError, Unavailable, reason
from strandline.store.clock import SystemIds

COMPLETED: Final = "has COMPLETED."
"""How the event ends that says of a flow that what it wrote is there."""
_TOKEN: Final = "SPARK_CONNECT_AUTHENTICATE_TOKEN"  # noqa: S105 - where PySpark looks for it, not what it is


class Request(msgspec.Struct, frozen=True):
    """Run the pipeline that holds the materialized view ``view``: ``query`` over tables in Parquet ``files``."""

    view: str
    query: str
    files: dict[str, str]


class Answer(msgspec.Struct, frozen=True):
    """A run is over (or the process is ready): see `Runs.run`.  ``error``: what failed, in a sentence."""

    ms: float = 0.0
    run_ms: float = 0.0
    error: str = ""


def warehouse(directory: Path) -> Path:
    """Return where Spark keeps its tables."""
    return directory / "warehouse"


def written(directory: Path, view: str) -> Path:
    """Return where the files of a materialized view are."""
    return warehouse(directory) / view


class Runs:
    """Runs of pipelines in a session of Spark Connect."""

    def __init__(self, connected: Any, directory: Path) -> None:
        self._spark = connected
        self._storage = (directory / "storage").as_uri()
        self._files: dict[str, str] = {}

    def run(self, request: Request) -> Answer:
        """Run a pipeline, and return how many milliseconds passed from the call until its view was written.

        ``run_ms`` goes on until the run itself is over.  Spark looks only once a second whether it is.
        """
        from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
        from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, start_run

        graph = create_dataflow_graph(self._spark, default_catalog=None, default_database=None, sql_conf={})
        text = f"CREATE MATERIALIZED VIEW {request.view} AS\n{request.query}"
        SparkConnectGraphElementRegistry(self._spark, graph).register_sql(text, Path(f"{request.view}.sql"))
        self._follow(request.files)
        begun = time.perf_counter()
        at = None
        for result in start_run(
            self._spark,
            graph,
            full_refresh=None,
            full_refresh_all=False,
            refresh=None,
            dry=False,
            storage=self._storage,
        ):
            if at is None and _message(result).startswith("Flow ") and _message(result).endswith(COMPLETED):
                at = time.perf_counter()
        if at is None:
            raise Unavailable(f"the pipeline's run is over, and no event said that {request.view} {COMPLETED}")
        return Answer(ms=(at - begun) * 1000, run_ms=(time.perf_counter() - begun) * 1000)

    def _follow(self, files: Mapping[str, str]) -> None:
        """Let each table be what its file holds now."""
        for table, place in files.items():
            if self._files.get(table) != place:
                self._spark.sql(f"DROP TABLE IF EXISTS {table}")
                self._spark.sql(f"CREATE TABLE {table} USING parquet LOCATION '{place}'")
                self._files[table] = place
            self._spark.catalog.refreshTable(table)  # the file of this name is another one since the last run


def _message(result: Mapping[str, Any]) -> str:
    """Return what an event of a run says; empty if it is no event."""
    return result["pipeline_event_result"].event.message if "pipeline_event_result" in result else ""


def require_connect() -> None:
    """Return if Spark Connect can be used; else raise `ConfigError`, which names the package that is missing."""
    try:
        import pyspark.sql.connect.session  # noqa: F401 - it asks for each package that it needs
    except ImportError as error:
        raise ConfigError(
            f"Spark's declarative pipelines need packages that are missing (pip install 'strandline[bench]'): {error}"
        ) from error


@contextmanager
def runs(directory: Path, cores: int) -> Iterator[Runs]:
    """Serve Spark Connect in a JVM, and give the runs of a session there."""
    require_connect()
    from pyspark.sql.connect.session import SparkSession as Connected

    from strandline.engine.session.start import build

    os.environ[_TOKEN] = SystemIds().fresh("runner")  # no other user of the machine gets in
    served = build(
        {
            **CONF,
            "spark.master": f"local[{cores}]",
            "spark.sql.shuffle.partitions": str(cores),
            "spark.sql.warehouse.dir": warehouse(directory).as_uri(),
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "localhost",
            "spark.connect.grpc.binding.port": "0",
        }
    )
    try:
        jvm: Any = served._jvm  # noqa: SLF001 - there is no other way to learn which port it has
        service = getattr(jvm.org.apache.spark.sql.connect.service, "SparkConnectService$")
        port = getattr(service, "MODULE$").localPort()
        connected = Connected.builder.remote(f"sc://localhost:{port}").create()
        yield Runs(connected, directory)
    finally:
        served.stop()


def main(arguments: Sequence[str]) -> int:
    """Serve until standard input ends; the arguments are those of the module."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    directory, cores = arguments
    try:
        with runs(Path(directory), int(cores)) as pipelines:
            _say(answers, Answer())
            for line in sys.stdin:
                _say(answers, _served(pipelines, msgspec.json.decode(line, type=Request)))
    except Exception as error:  # noqa: BLE001 - the other side says what stands in the way, and measures the rest
        _say(answers, Answer(error=reason(error)))
        return 1
    return 0


def _served(pipelines: Runs, request: Request) -> Answer:
    try:
        return pipelines.run(request)
    except Exception as error:  # noqa: BLE001 - it is the outcome of this run
        return Answer(error=reason(error))


def _say(answers: TextIO, answer: Answer) -> None:
    answers.write(msgspec.json.encode(answer).decode() + "\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
