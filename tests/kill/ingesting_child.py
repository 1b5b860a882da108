"""A process that ingests two tables of PostgreSQL until it is killed, and says what it did.

    python ingesting_child.py ROOT OPTIONS-AS-JSON

Started by `test_postgres_source.py`.  A line of its output is a JSON object: the upper of each table and
what upstream may forget, or the problem.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from strandline.algebra.schema import Column, Schema
from strandline.errors import SourceError, Unavailable
from strandline.frontier import as_time
from strandline.options import understood
from strandline.persist.client import PersistClient
from strandline.sources.ingest import Ingestion
from strandline.sources.readers.postgres.kind import opened
from strandline.sources.readers.postgres.ledger import Ledger
from strandline.sources.readers.postgres.options import PostgresOptions
from strandline.sources.readers.postgres.psycopg_server import PsycopgServer
from strandline.sources.readers.postgres.reader import PARTITION
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard, Stalled
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.testing.lists.list_engine import ListEngine

EPOCH = 1
SLOT = "strandline_killed"
TABLES = ("public.near", "public.far")
SCHEMA = Schema((Column("id", "int"), Column("balance", "int")))


def open_client(root: Path) -> tuple[PersistClient, FileBlob, SQLiteConsensus]:
    """Open the location."""
    blob, consensus = FileBlob(root / "blob"), SQLiteConsensus(root / "consensus.db")
    return PersistClient(SystemClock(), SystemIds(), blob, consensus), blob, consensus


async def open_ingestion(root: Path, options: dict[str, str]) -> Ingestion:
    """Open the source as a fresh process does."""
    client, blob, _ = open_client(root)
    given, engine = understood("bank", PostgresOptions, options), ListEngine(blob)
    ledger = await Ledger.open(await client.records("ledger", EPOCH), EPOCH)
    server = PsycopgServer(given, given.publication, SLOT)
    reader = await opened(server, engine, ledger, dict.fromkeys(TABLES, SCHEMA), given, SLOT, item="s")
    remap = await RemapShard.open(await client.records("remap", EPOCH), EPOCH)
    outputs = [
        OutputShard(table, SCHEMA, await client.writer(table.rpartition(".")[2], EPOCH, schema=SCHEMA.ddl))
        for table in TABLES
    ]
    return await Ingestion.open(SystemClock(), engine, reader, remap, outputs, name="s")


async def ingest_for_ever(root: Path, options: dict[str, str]) -> None:
    """Tick and step until killed."""
    clock, ingestion = SystemClock(), None
    while True:
        try:
            ingestion = ingestion or await open_ingestion(root, options)
            said = await once(ingestion, clock.now_ms())
        except (SourceError, Unavailable) as error:
            said = {"problem": str(error)}
        print(json.dumps(said), flush=True)  # noqa: T201 - its parent reads it
        await clock.sleep(0.02)


async def once(ingestion: Ingestion, now: int) -> dict[str, object]:
    """Do one tick, and all that is due then."""
    outcomes = [await ingestion.tick(max(now, as_time(ingestion.bound)))]
    outcomes += [await ingestion.catch_up(table) for table in TABLES]
    problems = [str(outcome.error) for outcome in outcomes if isinstance(outcome, Stalled)]
    uppers = {table: as_time(ingestion.upper_of(table)) for table in TABLES}
    return {"problem": problems[0]} if problems else {**uppers, "resume": ingestion.status.resume[PARTITION]}


if __name__ == "__main__":
    asyncio.run(ingest_for_ever(Path(sys.argv[1]), json.loads(sys.argv[2])))
