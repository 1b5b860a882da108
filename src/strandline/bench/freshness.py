"""`strandline bench freshness`: how long a row that is durable upstream takes to be readable in a view.

Files of rows come into a folder at a steady rate (`feed.Feed`), complete when they have their names: both sides take
what they see.  The view joins them to customers and groups them.  A row is durable once its file has its name (after
fsync), and readable once a commit of the view holds it: for us, the tick that read it has ended; for the peer, the
batch that read it has published its result.

The peer is a Structured Streaming query over a folder of its own: the same text, customers as a static Parquet table
(ours may change, theirs may not), aggregation in ``complete`` mode with as many partitions as there are cores, no
pause between batches, and a ``foreachBatch`` that writes the groups as Parquet into a new folder and then names that as
the current one.  Both sides run in turn, `ROUNDS` times, for equally long; the first seconds of each do not count.

The same question is asked of every streaming system.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from strandline.bench.feed import FILE_ROWS, Feed
from strandline.bench.measured import Edit, opened, percentile, spread

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATE: Final = 1_000
"""Rows per second."""
SECONDS: Final = 30.0
WARM_SECONDS: Final = 15.0
ROUNDS: Final = 2
CUSTOMERS: Final = 2_000
SEGMENTS: Final = 5
KINDS: Final = 7
POLL_S: Final = 1
EVENTS: Final = "n BIGINT, customer INT, kind STRING, amount BIGINT"
QUERY: Final = """SELECT c.segment, e.kind, count(*) AS n, sum(e.amount) AS amount
FROM events e JOIN customers c ON e.customer = c.id GROUP BY c.segment, e.kind"""


def measure_freshness(
    session: SparkSession,
    directory: Path,
    *,
    rate: int = RATE,
    seconds: float = SECONDS,
    warm_seconds: float = WARM_SECONDS,
    rounds: int = ROUNDS,
) -> dict[str, Any]:
    """Measure both sides in ``directory`` and return every figure.

    ``ours`` and ``peer``: ``p50_ms``, ``p99_ms`` and ``max_ms`` over rows, and how many commits held them;
    ``p50_ratio`` and ``p99_ratio``: ours ÷ the peer's.
    """
    directory.mkdir(exist_ok=True)
    pq.write_table(_customers(), directory / "customers.parquet")
    ours, peer = _Waits(), _Waits()
    with ThreadPoolExecutor(1) as pool:
        for number in range(rounds):
            seen = _Seen(_feed(directory / f"ours{number}", rate, seconds + warm_seconds))
            asyncio.run(_ours(session, directory / f"location{number}", seen, pool))
            ours.take(seen, warm_seconds)
            seen = _Seen(_feed(directory / f"peer{number}", rate, seconds + warm_seconds))
            _peer(session, directory, number, seen, pool)
            peer.take(seen, warm_seconds)
    return {
        "ours": ours.figures(),
        "peer": peer.figures(),
        "p50_ratio": round(percentile(ours.ms, 50) / percentile(peer.ms, 50), 3),
        "p99_ratio": round(percentile(ours.ms, 99) / percentile(peer.ms, 99), 3),
        "rows_per_s": rate,
        "seconds": seconds * rounds,
    }


@dataclass
class _Seen:
    """When the rows of each file of a feed were ``readable``, and in how many ``commits``."""

    feed: Feed
    readable: list[float] = field(default_factory=list)
    commits: int = 0

    @property
    def done(self) -> bool:
        """Whether every row is readable."""
        return len(self.readable) == self.feed.files

    def committed(self, rows: int, at: float) -> None:
        """Note that so many rows are readable, since ``at``."""
        assert rows % FILE_ROWS == 0, f"{rows} rows are not whole files"
        if (more := rows // FILE_ROWS - len(self.readable)) > 0:
            self.commits += 1
            self.readable += [at] * more


@dataclass
class _Waits:
    """How long rows have waited, in milliseconds, a figure for each file (all have equally many rows)."""

    ms: list[float] = field(default_factory=list)
    commits: int = 0

    def take(self, seen: _Seen, warm_seconds: float) -> None:
        """Take what was seen of a feed after its first seconds."""
        counted = seen.feed.durable[0] + warm_seconds
        pairs = zip(seen.feed.durable, seen.readable, strict=True)
        self.ms += [(readable - durable) * 1000 for durable, readable in pairs if durable >= counted]
        self.commits += seen.commits

    def figures(self) -> dict[str, Any]:
        """Return what the document says of them."""
        return {**spread(self.ms), "commits": self.commits}


async def _ours(session: SparkSession, location: Path, seen: _Seen, pool: Executor) -> None:
    async with opened(session, location) as env:
        await env.execute("CREATE TABLE customers (id INT, segment STRING)")
        await env.commit([Edit("customers", None, _customers())])
        await env.execute(
            f"CREATE SOURCE events ({EVENTS}) USING files "
            f"OPTIONS (path '{seen.feed.folder}/*.csv', header 'true', settle '0')"
        )
        await env.execute(f"CREATE MATERIALIZED VIEW totals AS {QUERY}")
        await env.tick()
        writing = pool.submit(seen.feed.run)
        while not seen.done:
            tick = await env.tick()
            assert not tick.problems, f"the environment has problems: {tick.problems}"
            readable = time.perf_counter()
            source = env.core.require_writing().instance.report().sources["events"]
            assert not source.error_records, f"{source.error_records} rows could not be decoded"
            seen.committed(source.durable_records, readable)
        writing.result()
        rows = await env.rows("totals")
        assert pc.sum(rows["n"]).as_py() == seen.feed.rows, f"the view holds other rows: {rows}"


def _peer(session: SparkSession, directory: Path, number: int, seen: _Seen, pool: Executor) -> None:
    spark = session.newSession()
    spark.conf.set("spark.sql.shuffle.partitions", str(session.sparkContext.defaultParallelism))
    spark.read.parquet((directory / "customers.parquet").as_uri()).createOrReplaceTempView("customers")
    spark.readStream.schema(EVENTS).option("header", "true").csv(seen.feed.folder.as_uri()).createOrReplaceTempView(
        "events"
    )
    results = _made(directory / f"results{number}")

    def publish(groups: DataFrame, batch: int) -> None:
        folder = results / str(batch)
        groups.write.parquet(folder.as_uri())
        named = results / "next"
        named.write_text(folder.name)
        named.rename(results / "current")
        readable = time.perf_counter()
        seen.committed(pc.sum(pq.read_table(folder)["n"]).as_py() or 0, readable)

    writer = spark.sql(QUERY).writeStream.outputMode("complete").foreachBatch(publish)
    query = writer.option("checkpointLocation", (directory / f"checkpoint{number}").as_uri()).start()
    try:
        query.processAllAvailable()
        writing = pool.submit(seen.feed.run)
        while not seen.done:
            assert not query.awaitTermination(POLL_S), "the peer's query has ended"
        writing.result()
    finally:
        query.stop()


def _feed(folder: Path, rate: int, seconds: float) -> Feed:
    def text(n: int) -> str:
        return f"{n},{n * 7919 % CUSTOMERS},kind {n % KINDS},{n % 1000}"

    return Feed(_made(folder), "n,customer,kind,amount", text, rate, seconds)


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory


def _customers() -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(CUSTOMERS), pa.int32()),
            "segment": [f"segment {n % SEGMENTS}" for n in range(CUSTOMERS)],
        }
    )
