"""The webhook reader: what is sent to it over HTTP becomes a collection, each message once.

A request is acknowledged when its messages are durable in the source's own record shard (`inbox.py`).  From there they
are read by range; all messages of a request have one time.  Once they are durable in the collection, `commit` withdraws
them from the shard, so that it holds what is not ingested yet, and the keys that are remembered.

It listens from its first probe on, and so only where the source is ingested.  If another process has the address (the
environment that was taken over may still end), it tries again at each probe, and `notices` says so; what is durable is
ingested meanwhile.  Of two environments the newer owns the shard: the older one's appends are refused, it answers 503
and listens no more.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import pyarrow as pa

from strandline.algebra.schema import TIME, Schema
from strandline.connections.addresses import Address, cannot_listen
from strandline.frontier import Offsets
from strandline.persist.handles.contents import Rows
from strandline.problem import Problem, Stopped, Way
from strandline.sources.reader import MessageDecoder, Plain, ReaderKind, Records, Surroundings
from strandline.sources.readers.webhook.inbox import Inbox
from strandline.sources.readers.webhook.options import WebhookOptions, check_schema, clash
from strandline.sources.readers.webhook.server import WebhookServer
from strandline.sources.reclock import Slice

PARTITION: Final = "0"
SMALL_BYTES_MAX: Final = 1 << 20
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_RAW: Final = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("partition", pa.string()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))),
        pa.field(TIME, pa.int64()),
    ]
)


UNHEARD: Final = Problem(
    "webhook-unheard",
    "nothing can be sent to {place}: {why} (option `listen`)",
    Stopped.NOTHING,
    (Way("free that address, and the next tick listens again"),),
    "What was sent before.",
)


class WebhookReader:
    """Reads what was sent to one path.  See `SourceReader`."""

    bounded = True

    def __init__(
        self, inbox: Inbox, server: WebhookServer, decoder: MessageDecoder, schema: Schema, options: WebhookOptions
    ) -> None:
        self._inbox = inbox
        self._server = server
        self._decoder = decoder
        self._schema = schema
        self._options = options
        self._unheard = ""

    def records(self, table: str) -> Records:
        """Every message is an insertion."""
        return Plain()

    async def snapshot(self, table: str) -> Offsets | None:
        """Everything since the beginning can be read by range."""
        return None

    async def upstream_frontier(self) -> Offsets:
        """Listen, if it can; return how many messages are durable."""
        if self._server.failed is not None:
            raise self._server.failed
        await self._inbox.refresh()
        if not self._server.listening:
            try:
                await self._server.listen()
            except OSError as error:
                self._unheard = self._unheard or self._why_unheard(error)
            else:
                self._unheard = ""
        return Offsets({PARTITION: self._inbox.next})

    def _why_unheard(self, error: OSError) -> str:
        why = cannot_listen(Address(*self._options.place), error.strerror or str(error))
        return UNHEARD.said(place=f"{self._options.listen}{self._options.path}", why=why)

    async def read(self, slices: Sequence[Slice], *, table: str, locate: bool) -> Rows:
        """Return the rows of these messages; they are in this process."""
        if any(each.upper[PARTITION] > self._inbox.next for each in slices):
            await self._inbox.refresh()
        rows = [
            {
                "topic": self._options.path,
                "partition": PARTITION,
                "offset": offset,
                "timestamp": _EPOCH + timedelta(milliseconds=arrival.at_ms),
                "key": None,
                "value": message,
                "headers": [{"key": name, "value": value} for name, value in arrival.headers],
                TIME: each.time,
            }
            for each in slices
            for offset, arrival, message in self._inbox.messages(each.lower[PARTITION], each.upper[PARTITION])
        ]
        raw = pa.Table.from_pylist(rows, schema=_RAW)
        return await self._decoder.messages(raw, self._schema, self._options.decoding(), locate=locate)

    async def commit(self, resume: Offsets) -> None:
        """Forget the messages that are durable."""
        await self._inbox.forget(resume[PARTITION])

    def likely_small(self, slices: Sequence[Slice]) -> bool:
        """Whether these messages have few bytes."""
        ranges = ((each.lower[PARTITION], each.upper[PARTITION]) for each in slices)
        return sum(self._inbox.size_of(*each) for each in ranges) <= SMALL_BYTES_MAX

    def notices(self) -> tuple[str, ...]:
        """Return why nothing can be sent, if so."""
        return (self._unheard,) if self._unheard else ()

    async def close(self) -> None:
        """Stop listening."""
        self._server.close()


async def _open(options: WebhookOptions, given: Surroundings) -> WebhookReader:
    shard = await given.progress()
    inbox = await Inbox.open(
        given.clock, shard, given.epoch, room=options.max_waiting, remember_ms=options.remember, name=given.name
    )
    return WebhookReader(inbox, WebhookServer(inbox, options), given.messages, given.schema, options)


KIND: Final = ReaderKind("webhook", WebhookOptions, _open, check_schema, clash=clash, counts="messages")
