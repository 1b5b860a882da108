"""`strandline bench`: one command for each benchmark, which runs it and prints its figures, one JSON document."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from strandline.bench.endpoints.load import Endpoint
from strandline.bench.tpch.spread import Spread
from strandline.cli.terminal.opening import Opener, keep_apart
from strandline.cli.terminal.output import Output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(
    help="Measure Strandline and plain Spark in one run; each prints one JSON document.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

DirectoryOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where to work, and leave what was made; default: a temporary one.")
]
RateOption = Annotated[int, typer.Option(metavar="N", min=100, help="How many rows come in each second.")]
SecondsOption = Annotated[float, typer.Option(metavar="S", min=1.0, help="For how long they come, on each side.")]
JsonOption = Annotated[bool, typer.Option("--json", help="As it does anyway.")]
KafkaOption = Annotated[str | None, typer.Option(metavar="HOST:PORT", help="A Kafka broker to make topics at.")]
KafkaJarsOption = Annotated[
    str, typer.Option(metavar="DIR", help="Where Spark's Kafka connector is: a directory, or 'maven'.")
]
PostgresOption = Annotated[
    str | None, typer.Option(metavar="USER@HOST:PORT/DATABASE", help="A PostgreSQL database to make tables in.")
]
ENVIRONMENT_TICKS_MIN: Final = 100


@app.command()
def persist(
    context: typer.Context,
    writers: Annotated[int, typer.Option(metavar="N", min=1, help="How many writers race for the load's shard.")] = 2,
    batches: Annotated[int, typer.Option(metavar="N", min=1, help="How many batches each of them appends.")] = 200,
    records: Annotated[int, typer.Option(metavar="N", min=1, help="How many records are in a batch.")] = 100,
    record_bytes: Annotated[int, typer.Option(metavar="N", min=1, help="How large a record is.")] = 64,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure what an append, staging and a scan cost."""
    from strandline.bench.appends import append_and_open
    from strandline.bench.load import Load
    from strandline.bench.persist import stage_and_scan

    load = Load(writers, batches, records, record_bytes)

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return {**append_and_open(place / "appends", load=load), **stage_and_scan(session, place / "parts")}

    _bench(context, "persist", directory, measure, json=json)


@app.command()
def environment(
    context: typer.Context,
    ticks: Annotated[
        int | None, typer.Option(metavar="N", min=ENVIRONMENT_TICKS_MIN, help="How often it ticks.")
    ] = None,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure what very many ticks leave behind."""
    from strandline.bench.environment import FILE_TICKS, grow
    from strandline.bench.written import CHANGED_TICKS, written

    few = {} if ticks is None else {"ticks": ticks, "file_ticks": min(ticks, FILE_TICKS), "bindings": ticks}

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        grown = grow(session, place / "location", **few)
        return {
            **grown,
            "written": written(session, place / "written", ticks=min(ticks or CHANGED_TICKS, CHANGED_TICKS)),
        }

    _bench(context, "environment", directory, measure, json=json)


@app.command()
def tick(
    context: typer.Context,
    views: Annotated[str, typer.Option(metavar="N,N", help="Under how many views, rising.")] = "1,10,50",
    ticks: Annotated[int, typer.Option(metavar="N", min=1, help="How many ticks with changes count.")] = 10,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure what a tick costs under many views, with no change and with few."""
    from strandline.bench.tick import measure_ticks

    counts = [_number(each) for each in views.split(",")]
    if not all(before < count for before, count in zip([0, *counts], counts, strict=False)):
        raise typer.BadParameter(f"{views!r} is not a list of rising numbers of views", param_hint="--views")

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_ticks(session, place / "location", views=counts, changed_ticks=ticks)

    _bench(context, "tick", directory, measure, json=json)


@app.command()
def ivm(
    context: typer.Context,
    views: Annotated[str, typer.Option(metavar="qN,qN", help="Which of the 22 views; default: all.")] = "",
    scale: Annotated[float, typer.Option(metavar="X", min=0.001, help="The scale of the data; 1 is a gigabyte.")] = 0.1,
    change: Annotated[
        float, typer.Option(metavar="X", min=0.0, max=0.5, help="The share of the orders that changes before a tick.")
    ] = 0.001,
    keys: Annotated[Spread, typer.Option(help="How the keys of a change lie.")] = Spread.UNIFORM,
    ticks: Annotated[int, typer.Option(metavar="N", min=1, help="How many ticks count.")] = 5,
    one_by_one: Annotated[bool, typer.Option(help="Measure each view alone.")] = True,
    together: Annotated[bool, typer.Option(help="Measure all of them in one environment.")] = True,
    pipeline: Annotated[
        str,
        typer.Option(
            metavar="qN,qN",
            help="Which of those measured alone Spark's declarative pipeline refreshes too; default: q3 and q6, or "
            "else the first two; 'none': none.",
        ),
    ] = "",
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure TPC-H-derived views under changes, beside plain Spark that recomputes them."""
    from strandline.bench.ivm import Load, maintain, pipelined, queries

    wanted = tuple(views.split(",")) if views else tuple(queries())
    if unknown := [name for name in wanted if name not in queries()]:
        raise typer.BadParameter(
            f"there is no view {unknown[0]!r}; there is {', '.join(queries())}", param_hint="--views"
        )
    alone = wanted if one_by_one else ()
    refreshed = pipelined(alone) if not pipeline else () if pipeline == "none" else tuple(pipeline.split(","))
    if strange := [name for name in refreshed if name not in alone]:
        raise typer.BadParameter(f"{strange[0]!r} is not among the views measured alone", param_hint="--pipeline")
    load = Load(wanted, scale, change, keys, ticks, one_by_one=one_by_one, together=together, pipeline=refreshed)

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return maintain(session, place, load, Output(json).note)

    _bench(context, "ivm", directory, measure, json=json)


@app.command()
def freshness(
    context: typer.Context,
    rate: RateOption = 1_000,
    seconds: SecondsOption = 30.0,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each side has its turn.")] = 2,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure how long rows take to be readable in a view, beside Structured Streaming."""
    from strandline.bench.freshness import measure_freshness

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_freshness(session, place, rate=rate, seconds=seconds, rounds=rounds)

    _bench(context, "freshness", directory, measure, json=json)


@app.command()
def alive(
    context: typer.Context,
    rate: RateOption = 200,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=1.0, help="For how long views are followed undisturbed.")
    ] = 30.0,
    views: Annotated[int, typer.Option(metavar="N", min=1, help="How many views follow.")] = 10,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="How many rows the large view joins.")] = 300_000,
    matches: Annotated[int, typer.Option(metavar="N", min=1, help="With how many of them each.")] = 700,
    silent: Annotated[
        float, typer.Option(metavar="S", min=1.0, help="For how long an endpoint, then a source, says nothing.")
    ] = 60.0,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure how fresh views are while another one is computed, an endpoint is silent, a source is gone."""
    from strandline.bench.alive import measure_alive

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_alive(
            session,
            place,
            rate=rate,
            seconds=seconds,
            views=views,
            rows=rows,
            matches=matches,
            silent_seconds=silent,
        )

    _bench(context, "alive", directory, measure, json=json)


@app.command()
def peek(
    context: typer.Context,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="How many rows the view has.")] = 100_000,
    rate: RateOption = 1_000,
    seconds: SecondsOption = 20.0,
    changed: Annotated[int, typer.Option(metavar="N", min=1, help="How many rows a tick changes.")] = 100,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure how long it takes to find rows of a view by key in memory, beside ticks."""
    from strandline.bench.instances.peek import measure_peeks

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_peeks(session, place / "location", rows=rows, rate=rate, seconds=seconds, changed=changed)

    _bench(context, "peek", directory, measure, json=json)


@app.command()
def serving(
    context: typer.Context,
    seconds: SecondsOption = 300.0,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure clients of a running environment; two of them are killed, one stalls and one sends garbage."""
    from strandline.bench.served.serving import measure_serving

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_serving(session, place / "location", seconds=seconds, others={})

    _bench(context, "serving", directory, measure, json=json)


@app.command()
def create(
    context: typer.Context,
    clauses: Annotated[
        list[int] | None, typer.Option(metavar="N", min=29, help="With so many WITH clauses; once for each view.")
    ] = None,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure CREATE of a view of many WITH clauses beside plain Spark's planning, and who waits meanwhile."""
    from strandline.bench.served.creating import CLAUSES, measure_creating

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_creating(session, place, clauses=clauses or CLAUSES)

    _bench(context, "create", directory, measure, json=json)


@app.command()
def keys(
    context: typer.Context,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="How many short keys a tick brings.")] = 100_000,
    ticks: Annotated[int, typer.Option(metavar="N", min=1, help="How many ticks with and without, in turn.")] = 3,
    length: Annotated[
        list[int] | None, typer.Option(metavar="BYTES", min=1, help="Of the long key; once for each (default: five).")
    ] = None,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure a tick over many short keys beside one with a long key more."""
    from strandline.bench.served.keys import LENGTHS, measure_keys

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_keys(session, place / "location", rows=rows, ticks=ticks, lengths=length or LENGTHS)

    _bench(context, "keys", directory, measure, json=json)


@app.command()
def queries(
    context: typer.Context,
    asks: Annotated[int, typer.Option(metavar="N", min=20, help="How often the small query is asked each time.")] = 100,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Of the runaway query; once for each (default: all).")
    ] = None,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure small queries alone and beside a runaway one of each shape, and how soon it has gone once cancelled."""
    from strandline.bench.served.runaway import SMALL_ANSWERS, measure_queries

    for each in shape or ():
        if each not in SMALL_ANSWERS:
            raise typer.BadParameter(f"there is no shape {each!r}: choose among {', '.join(SMALL_ANSWERS)}")

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_queries(session, place / "location", asks=asks, shapes=shape or SMALL_ANSWERS)

    _bench(context, "queries", directory, measure, json=json)


@app.command()
def failover(
    context: typer.Context,
    rate: RateOption = 200,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=1.0, help="For how long views are followed undisturbed.")
    ] = 60.0,
    views: Annotated[int, typer.Option(metavar="N", min=1, help="How many views follow.")] = 10,
    controller_kills: Annotated[int, typer.Option(metavar="N", min=1, help="How often the controller is killed.")] = 20,
    replica_kills: Annotated[int, typer.Option(metavar="N", min=1, help="How often a replica is killed.")] = 8,
    every: Annotated[float, typer.Option(metavar="S", min=1.0, help="After how many seconds each time.")] = 30.0,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure how views go on while the controller of their instance, and its replicas, are killed."""
    from strandline.bench.instances.failover import Load, measure_failover

    load = Load(
        rate=rate,
        seconds=seconds,
        views=views,
        controller_kills=controller_kills,
        replica_kills=replica_kills,
        every_seconds=every,
    )

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_failover(session, place, load)

    _bench(context, "failover", directory, measure, json=json)


@app.command()
def idle(
    context: typer.Context,
    views: Annotated[int, typer.Option(metavar="N", min=1, help="How many views there are.")] = 50,
    seconds: SecondsOption = 60.0,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure what an environment costs while nothing changes."""
    from strandline.bench.instances.idle import measure_idle

    def measure(_: SparkSession, place: Path) -> dict[str, Any]:
        return measure_idle(place, views=views, seconds=seconds)

    _bench(context, "idle", directory, measure, json=json)


@app.command()
def pipelining(
    context: typer.Context,
    seconds: SecondsOption = 60.0,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure how closely transactions follow each other where each commit takes two seconds."""
    from strandline.bench.endpoints.pipelining import measure_pipelining

    def measure(_: SparkSession, __: Path) -> dict[str, Any]:
        return measure_pipelining(seconds=seconds)

    _bench(context, "pipelining", directory, measure, json=json)


@app.command()
def splits(
    context: typer.Context,
    rows: Annotated[int, typer.Option(metavar="N", min=100, help="How many rows are written in a turn.")] = 1_000_000,
    transactions: Annotated[int, typer.Option(metavar="N", min=1, help="In how many transactions.")] = 10,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each side has its turn.")] = 3,
    sessions: Annotated[int, typer.Option(metavar="N", min=2, max=64, help="By how many splits.")] = 4,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure by how much several sessions are faster than one, at an endpoint that is elsewhere."""
    from strandline.bench.endpoints.parallel import measure_splits

    def measure(_: SparkSession, there: Path) -> dict[str, Any]:
        return measure_splits(there, rows=rows, transactions=transactions, rounds=rounds, splits=sessions)

    _bench(context, "splits", directory, measure, json=json)


@app.command()
def materialize(
    context: typer.Context,
    endpoint: Annotated[Endpoint, typer.Option(help="Into which endpoint.")],
    rows: Annotated[int, typer.Option(metavar="N", min=100, help="How many rows are written in a turn.")] = 1_000_000,
    transactions: Annotated[int, typer.Option(metavar="N", min=1, help="In how many transactions.")] = 10,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each side has its turn.")] = 3,
    postgres: PostgresOption = None,
    drain: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many rows a first sync into PostgreSQL has; 0: there is none.")
    ] = 5_000_000,
    kafka: KafkaOption = None,
    kafka_jars: KafkaJarsOption = "maven",
    freshness_seconds: Annotated[
        float, typer.Option(metavar="S", min=0, help="For how long rows go from Kafka into PostgreSQL; 0: none go.")
    ] = 60.0,
    rate: RateOption = 200,
    splits: Annotated[int, typer.Option(metavar="N", min=1, help="PostgreSQL: also by so many splits.")] = 1,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure rows into an endpoint beside the plain way, and for PostgreSQL a first sync, and rows from Kafka."""
    from strandline.bench.endpoints.load import Load
    from strandline.bench.endpoints.materialize import measure_materialize
    from strandline.engine.session.kafka_jars import jars

    if endpoint is Endpoint.POSTGRES and postgres is None:
        raise typer.BadParameter("say where PostgreSQL is", param_hint="--postgres")
    if endpoint is Endpoint.KAFKA and kafka is None:
        raise typer.BadParameter("say where Kafka is", param_hint="--kafka")
    if endpoint is Endpoint.POSTGRES and freshness_seconds and kafka is None:
        raise typer.BadParameter("rows go from Kafka: say where it is, or --freshness-seconds 0", param_hint="--kafka")
    load = Load(rows, transactions, rounds, drain, freshness_seconds, rate, splits=splits)
    database = None if postgres is None else _database(postgres)

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_materialize(session, place, endpoint, load, database=database, servers=kafka)

    settings = jars({}, kafka_jars) if kafka is not None else {}
    _bench(context, "materialize", directory, measure, json=json, settings=settings)


@app.command()
def consistency(
    context: typer.Context,
    rate: RateOption = 500,
    seconds: SecondsOption = 120.0,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Observe a total of bank transfers, which is 0, beside a chain of Structured Streaming queries."""
    from strandline.bench.consistency import measure_consistency

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        return measure_consistency(session, place, rate=rate, seconds=seconds)

    _bench(context, "consistency", directory, measure, json=json)


@app.command()
def sources(
    context: typer.Context,
    kafka: KafkaOption = None,
    kafka_jars: KafkaJarsOption = "maven",
    messages: Annotated[int, typer.Option(metavar="N", min=1, help="How many messages are read.")] = 1_000_000,
    postgres: PostgresOption = None,
    rows: Annotated[int, typer.Option(metavar="N", min=1, help="How many rows the table has.")] = 500_000,
    rate: Annotated[int, typer.Option(metavar="N", min=1, help="How many rows a second go to an endpoint.")] = 200,
    seconds: Annotated[
        float, typer.Option(metavar="S", min=0, help="For how long they go, after the first ones; 0: none go.")
    ] = 60.0,
    file_rows: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many rows the files have; 0: no files are read.")
    ] = 1_000_000,
    keyed_rows: Annotated[
        int, typer.Option(metavar="N", min=0, help="How many rows keys are upserted into; 0: none are.")
    ] = 5_000_000,
    keys: Annotated[int, typer.Option(metavar="N", min=1, help="How many keys are upserted at a time.")] = 10_000,
    rounds: Annotated[int, typer.Option(metavar="N", min=1, help="How often each side has its turn.")] = 3,
    directory: DirectoryOption = None,
    json: JsonOption = True,
) -> None:
    """Measure reading files, topics and tables beside plain Spark, upserts beside appends, and rows to an endpoint."""
    from strandline.bench.sources import files, upserts
    from strandline.bench.sources import kafka as of_kafka
    from strandline.bench.sources import postgres as of_postgres
    from strandline.bench.sources.endpoint import measure_endpoint
    from strandline.engine.session.kafka_jars import jars

    if keys > keyed_rows > 0:
        raise typer.BadParameter(f"{keys} keys are not among {keyed_rows} rows", param_hint="--keys")
    database = None if postgres is None else _database(postgres)

    def measure(session: SparkSession, place: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if file_rows:
            found["files"] = files.measure_files(session, place / "files", rows=file_rows, rounds=rounds)
        if keyed_rows:
            found["upserts"] = upserts.measure_upserts(session, place / "upserts", rows=keyed_rows, keys=keys)
        if kafka is not None:
            found["kafka"] = of_kafka.measure_kafka(session, place / "kafka", kafka, messages=messages, rounds=rounds)
            if seconds:
                with of_kafka.followed(kafka) as upstream:
                    found["kafka_to_endpoint"] = measure_endpoint(
                        session, place / "kafka-to-endpoint", upstream, rate=rate, seconds=seconds
                    )
        if database is not None:
            found["postgres"] = of_postgres.measure_postgres(
                session, place / "postgres", database, rows=rows, rounds=rounds
            )
            if seconds:
                with of_postgres.followed(database) as upstream:
                    found["postgres_to_endpoint"] = measure_endpoint(
                        session, place / "postgres-to-endpoint", upstream, rate=rate, seconds=seconds
                    )
        return found

    if kafka is None and database is None and not file_rows and not keyed_rows:
        raise typer.BadParameter("nothing is left to measure: give --kafka, --postgres, --file-rows or --keyed-rows")
    settings = jars({}, kafka_jars) if kafka is not None else {}
    _bench(context, "sources", directory, measure, json=json, settings=settings)


def _database(text: str) -> dict[str, str]:
    """Return the options of a source that a user, a host, a port and a database make; a password by PGPASSWORD.

    >>> _database("me@db:5432/shop")
    {'user': 'me', 'host': 'db', 'port': '5432', 'database': 'shop'}
    """
    user, _, rest = text.rpartition("@")
    address, _, database = rest.partition("/")
    host, _, port = address.rpartition(":")
    if not (user and host and port and database):
        raise typer.BadParameter(f"{text!r} is not USER@HOST:PORT/DATABASE", param_hint="--postgres")
    return {"user": user, "host": host, "port": port, "database": database}


def _number(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a number", param_hint="--views") from None


def _bench(
    context: typer.Context,
    name: str,
    directory: Path | None,
    measure: Callable[[SparkSession, Path], dict[str, Any]],
    *,
    json: bool,
    settings: Mapping[str, str] | None = None,
) -> None:
    """Run a benchmark in ``directory`` or a temporary one, and print its document."""
    from strandline.engine.session.start import build

    opener = context.obj
    assert isinstance(opener, Opener), "main passes the opener to every command"
    with ExitStack() as ending:
        session = opener.spark
        if session is None:
            keep_apart()
            session = build(settings or {})
            ending.callback(session.stop)
        if directory is None:
            made = tempfile.TemporaryDirectory(prefix="strandline-bench-", ignore_cleanup_errors=True)
            directory = Path(ending.enter_context(made))
        document = measure(session, directory.absolute())
    Output(json).result({"bench": name, **document}, "")
