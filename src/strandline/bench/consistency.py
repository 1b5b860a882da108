"""`strandline bench consistency`: bank transfers, whose total is 0 in every version that anyone can observe.

Transfers between accounts come in as files.  *Credits* and *debits* are the sums of what each account got and gave,
*balances* joins them, and *total* adds up all balances: each transfer takes from one account what it gives to another,
so the total is 0 after any number of whole transfers.  It is anything else as soon as a version of *total* is made of
credits and debits that have read different transfers.

Strandline keeps the four as views over a source; every tick is a version.  The peer keeps them as it is often done: a
chain of three Structured Streaming queries over the same kind of folder, each with its own checkpoint.  One publishes
credits and one debits (groups in ``complete`` mode, in ``foreachBatch``, as Parquet under a new name each time), and
the third, at each of its batches, joins what the two have published last and publishes the total.  None of the three
does anything wrong by itself.

Source: J. Brandon, "Internal consistency in streaming systems" (2021), whose queries these are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from strandline.bench.feed import FILE_ROWS, Feed
from strandline.bench.measured import opened

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RATE: Final = 500
SECONDS: Final = 120.0
TRANSFERS: Final = "id BIGINT, giver INT, taker INT, amount BIGINT"
ACCOUNTS: Final = FILE_ROWS
"""In the first file each account gives to the next: from then on all of them have credits and debits."""
QUERIES: Final = {
    "credits": "SELECT taker AS account, sum(amount) AS credits FROM transfers GROUP BY taker",
    "debits": "SELECT giver AS account, sum(amount) AS debits FROM transfers GROUP BY giver",
    "balances": "SELECT c.account, credits - debits AS balance FROM credits c JOIN debits d ON c.account = d.account",
    "total": "SELECT sum(balance) AS total FROM balances",
}


def measure_consistency(
    session: SparkSession, directory: Path, *, rate: int = RATE, seconds: float = SECONDS
) -> dict[str, Any]:
    """Observe both sides in ``directory`` and return every figure.

    ``ours`` and ``peer``: how many ``versions`` of the total there were, and how many of them were not 0
    (``violations``, and their ``share``); of the peer also the largest amount that was missing or too much.
    """
    with ThreadPoolExecutor(1) as pool:
        ours = asyncio.run(_ours(session, directory / "location", _feed(directory / "ours", rate, seconds), pool))
        peer = _peer(session, directory / "published", _feed(directory / "peer", rate, seconds), pool)
    return {"ours": share_of(ours), "peer": share_of(peer), "rows_per_s": rate, "seconds": seconds}


def share_of(totals: list[int]) -> dict[str, Any]:
    """Return how many of the totals that were observed are not 0."""
    wrong = [total for total in totals if total]
    share = round(len(wrong) / max(1, len(totals)), 3)
    return {
        "versions": len(totals),
        "violations": len(wrong),
        "share": share,
        "off_by": max(map(abs, wrong), default=0),
    }


async def _ours(session: SparkSession, location: Path, feed: Feed, pool: Executor) -> list[int]:
    """Return the total at the time of every tick that read something; balances add up to it then."""
    async with opened(session, location) as env:
        options = f"path '{feed.folder}/*.csv', header 'true'"
        await env.execute(f"CREATE SOURCE transfers ({TRANSFERS}) USING files OPTIONS ({options})")
        for name, query in QUERIES.items():
            await env.execute(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        await env.tick()
        writing, times, rows = pool.submit(feed.run), list[int](), 0
        while rows < feed.rows:
            tick = await env.tick()
            assert not tick.problems, f"the environment has problems: {tick.problems}"
            read = env.core.require_writing().instance.report().sources["transfers"].durable_records
            if read > rows:
                rows = read
                times.append(tick.time)
        writing.result()
        totals = []
        for time in times:
            totals.append(_only(await env.rows("total", time)))
            balances = await env.rows("balances", time)
            assert sum(balances["balance"].to_pylist()) == totals[-1], f"balances and total differ at {time}"
        return totals


def _peer(session: SparkSession, published: Path, feed: Feed, pool: Executor) -> list[int]:
    """Return every total that the chain published."""
    spark = session.newSession()
    spark.conf.set("spark.sql.shuffle.partitions", str(session.sparkContext.defaultParallelism))
    transfers = spark.readStream.schema(TRANSFERS).option("header", "true").csv(feed.folder.as_uri())
    transfers.createOrReplaceTempView("transfers")
    totals: list[int] = []

    def add_up(_rows: DataFrame, _batch: int) -> None:
        named = {name: published / name / "current" for name in ("credits", "debits")}
        if all(path.exists() for path in named.values()):
            for name, path in named.items():
                spark.read.parquet((path.parent / path.read_text()).as_uri()).createOrReplaceTempView(name)
            spark.sql(QUERIES["balances"]).createOrReplaceTempView("balances")
            totals.append(_only(spark.sql(QUERIES["total"]).toArrow()))

    queries = []
    try:
        for name in ("credits", "debits"):
            writer = spark.sql(QUERIES[name]).writeStream.outputMode("complete")
            queries.append(_started(writer.foreachBatch(_publisher(published / name)), published / f"{name}-progress"))
        queries.append(_started(transfers.writeStream.foreachBatch(add_up), published / "total-progress"))
        pool.submit(feed.run).result()
        for query in queries:
            query.processAllAvailable()
        add_up(transfers, -1)  # what it shows in the end, also if it had taken all before the others published
    finally:
        for query in queries:
            query.stop()
    return totals


def _started(writer: Any, progress: Path) -> Any:
    return writer.option("checkpointLocation", progress.as_uri()).start()


def _publisher(folder: Path) -> Callable[[DataFrame, int], None]:
    """Return what publishes the groups of a batch: in a folder of their own, which then is named as the current one."""
    folder.mkdir(parents=True)

    def publish(groups: DataFrame, batch: int) -> None:
        groups.write.parquet((folder / str(batch)).as_uri())
        named = folder / "next"
        named.write_text(str(batch))
        named.rename(folder / "current")

    return publish


def _only(rows: pa.Table) -> int:
    """Return the one value of a total, in which there are transfers."""
    (row,) = rows.to_pylist()
    return int(row["total"])


def _feed(folder: Path, rate: int, seconds: float) -> Feed:
    folder.mkdir(parents=True)
    random = Random(0)

    def text(n: int) -> str:
        if n < ACCOUNTS:
            return f"{n},{n},{(n + 1) % ACCOUNTS},1"
        return f"{n},{random.randrange(ACCOUNTS)},{random.randrange(ACCOUNTS)},{random.randrange(1, 100)}"

    return Feed(folder, "id,giver,taker,amount", text, rate, seconds)
