"""`strandline bench materialize`: rows into an endpoint, beside the plain way to bring the same rows there.

Each side has its turns in one run (`turns`).  For PostgreSQL there is more: how fresh its rows are, from Kafka by a
view, and the memory that a first sync takes (`drain`), which comes first: the kernel keeps one peak for a process.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strandline.bench.endpoints import kafka, postgres, tables
from strandline.bench.endpoints.drain import measure_drain
from strandline.bench.endpoints.load import Endpoint, Load
from strandline.bench.sources import kafka as upstream
from strandline.bench.sources.endpoint import into_database, measure_endpoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def measure_materialize(
    session: SparkSession | None,
    directory: Path,
    endpoint: Endpoint,
    load: Load,
    *,
    database: Mapping[str, str] | None = None,
    servers: str | None = None,
) -> dict[str, Any]:
    """Return every figure.

    ``database`` and ``servers``: where PostgreSQL and Kafka are; these and a Spark application, if they are needed.
    """
    much = {"rows": load.rows, "transactions": load.transactions, "rounds": load.rounds}
    found: dict[str, Any] = {"endpoint": endpoint.value, **much}
    match endpoint:
        case Endpoint.DUCKDB:
            return found | tables.measure_duckdb(directory, **much)
        case Endpoint.DELTA:
            return found | tables.measure_delta(directory, **much)
        case Endpoint.KAFKA:
            assert session is not None
            assert servers is not None, "the command asks for it"
            return found | kafka.measure_kafka(session, directory, servers, **much)
        case Endpoint.POSTGRES:
            assert session is not None
            assert database is not None, "the command asks for it"
            if load.drain:
                found["drain"] = measure_drain(session, directory / "drain", database, rows=load.drain)
            found |= postgres.measure_postgres(directory, database, **much, splits=load.splits)
            if load.seconds and servers is not None:
                with upstream.followed(servers) as rows, postgres.schema(database) as there:
                    found["freshness"] = measure_endpoint(
                        session,
                        directory / "freshness",
                        rows,
                        into_database(there),
                        rate=load.rate,
                        seconds=load.seconds,
                        warm_seconds=load.warm_seconds,
                    )
            return found
