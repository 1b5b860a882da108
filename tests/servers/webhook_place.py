"""A webhook over stores in memory, with a decoder over lists: what its tests share."""

from __future__ import annotations

import json
from itertools import count

from strandline.algebra.schema import DIFF, ERROR, TIME, Column, Schema
from strandline.persist.client import PersistClient
from strandline.sources.readers.webhook.inbox import Inbox, Request
from strandline.sources.readers.webhook.options import WebhookOptions
from strandline.sources.readers.webhook.reader import WebhookReader
from strandline.sources.readers.webhook.server import WebhookServer
from strandline.store.memory import MemoryBlob, MemoryConsensus
from strandline.testing.doubles import CountingIds, HandClock
from strandline.testing.lists.list_engine import ListEngine, updates

SCHEMA = Schema((Column("n", "bigint"),))
NOW_MS = 1_700_000_000_000


class NumberDecoder:
    """Decodes ``{"n": 1}``, in this process."""

    connector = False

    async def messages(self, raw, schema, form, *, locate):
        rows = []
        for row in raw.to_pylist():
            try:
                rows.append({"n": json.loads(row["value"])["n"], TIME: row[TIME], DIFF: 1})
            except ValueError:
                rows.append({ERROR: f"@{row['offset']}" if locate else "somewhere", TIME: row[TIME]})
        return updates(schema, rows)


class Post:
    """A location, and readers of the webhook in it; they listen on any port that is free."""

    table = ""

    def __init__(self, **options):
        self.options = WebhookOptions(listen="127.0.0.1:0", path="/numbers", **options)
        self.engine, self.blob, self.consensus = ListEngine(MemoryBlob()), MemoryBlob(), MemoryConsensus()
        self.clock, self.processes, self.numbers, self.current = HandClock(NOW_MS), count(), count(), None

    async def shard(self, epoch=1):
        ids = CountingIds(f"p{next(self.processes)}")
        return await PersistClient(self.clock, ids, self.blob, self.consensus).records("inbox", epoch)

    async def inbox(self, epoch=1, **options):
        given = {"room": self.options.max_waiting, "remember_ms": self.options.remember, **options}
        return await Inbox.open(self.clock, await self.shard(epoch), epoch, name="s", **given)

    async def reader(self, epoch=1):
        self.current = await self.inbox(epoch)
        self.server = Unheard(self.current, self.options)
        return WebhookReader(self.current, self.server, NumberDecoder(), SCHEMA, self.options)

    async def produce(self, *, undecodable=False):
        number = next(self.numbers)
        data = [b'{"n": %d}' % number, *([b"{"] if undecodable else [])]
        await (self.current or await self.inbox()).take([Request(tuple(data))])


class Unheard(WebhookServer):
    """A server that listens nowhere."""

    listening = True
