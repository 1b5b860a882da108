"""A process that ingests a webhook until it is killed: a real socket, real stores, rows over lists.

    python webhook_child.py ROOT PORT EPOCH

Started by `test_webhook.py`.  It writes a line when it listens.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from webhook_place import SCHEMA, NumberDecoder

from strandline.persist.client import PersistClient
from strandline.sources.ingest import Ingestion
from strandline.sources.readers.webhook.inbox import Inbox
from strandline.sources.readers.webhook.options import WebhookOptions
from strandline.sources.readers.webhook.reader import WebhookReader
from strandline.sources.readers.webhook.server import WebhookServer
from strandline.sources.remap import RemapShard
from strandline.sources.steps import OutputShard
from strandline.store.blob_kinds.file import FileBlob
from strandline.store.clock import SystemClock, SystemIds
from strandline.store.consensus_kinds.sqlite import SQLiteConsensus
from strandline.testing.lists.list_engine import ListEngine

DATA = "data"
TICK_S = 0.02


def open_client(root: Path) -> PersistClient:
    """Open the stores below ``root``."""
    blob = FileBlob(root / "blob")
    return PersistClient(SystemClock(), SystemIds(), blob, SQLiteConsensus(root / "consensus.db"), grace_ms=0)


async def start(client: PersistClient, port: int, epoch: int) -> tuple[Ingestion, WebhookServer]:
    """Open the source under ``epoch``."""
    options = WebhookOptions(listen=f"127.0.0.1:{port}", path="/numbers")
    shard = await client.records("inbox", epoch)
    room, remember_ms = options.max_waiting, options.remember
    inbox = await Inbox.open(client.clock, shard, epoch, room=room, remember_ms=remember_ms, name="s")
    server = WebhookServer(inbox, options)
    reader = WebhookReader(inbox, server, NumberDecoder(), SCHEMA, options)
    remap = await RemapShard.open(await client.records("remap", epoch), epoch)
    outputs = [OutputShard("", SCHEMA, await client.writer(DATA, epoch, schema=SCHEMA.ddl))]
    return await Ingestion.open(client.clock, ListEngine(client.blob), reader, remap, outputs, name="s"), server


async def main(root: Path, port: int, epoch: int) -> None:
    """Tick and step until killed."""
    client = open_client(root)
    ingestion, server = await start(client, port, epoch)
    told = False
    while True:
        await ingestion.tick(client.clock.now_ms())
        await ingestion.catch_up()
        if server.listening and not told:
            told = True
            sys.stdout.write("listening\n")
            sys.stdout.flush()
        await client.clock.sleep(TICK_S)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
