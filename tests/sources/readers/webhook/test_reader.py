"""The webhook reader reads each acknowledged message once, by range."""

from __future__ import annotations

import asyncio

import pytest
from webhook_place import NOW_MS, SCHEMA, NumberDecoder, Post

from strandline.errors import FencedError
from strandline.frontier import Offsets
from strandline.sources.readers.webhook.inbox import Request
from strandline.sources.readers.webhook.reader import PARTITION, WebhookReader
from strandline.sources.readers.webhook.server import WebhookServer
from strandline.sources.reclock import NOTHING_READ, Slice
from strandline.testing.contracts.reader_contract import ReaderContract
from strandline.testing.lists.list_engine import listed


class TestWebhookReader(ReaderContract):
    @pytest.fixture
    def place(self):
        return Post()

    def test_a_broken_promise_is_an_error_and_never_other_rows(self):
        pytest.skip("upstream is the source's own shard, and its seals tell a change")


class Keeping(NumberDecoder):
    """Keeps the messages that it is given."""

    async def messages(self, raw, schema, form, *, locate):
        self.raw, self.form = raw, form
        return await super().messages(raw, schema, form, locate=locate)


def test_a_message_has_its_place_its_time_and_its_headers():
    """Damage: metadata columns hold something else."""

    async def body():
        post = Post(include_offset="o", include_timestamp="at", headers="X-Event")
        inbox, decoder = await post.inbox(), Keeping()
        await inbox.take([Request((b'{"n":1}',)), Request((b'{"n":2}',), "key", (("x-event", b"push"),))])
        reader = WebhookReader(inbox, WebhookServer(inbox, post.options), decoder, SCHEMA, post.options)
        await reader.read([Slice(7, NOTHING_READ, Offsets({PARTITION: 2}))], table="", locate=False)
        first, second = decoder.raw.to_pylist()
        assert (first["topic"], first["partition"], first["offset"]) == ("/numbers", "0", 0)
        assert (first["key"], first["headers"], first["value"]) == (None, [], b'{"n":1}')
        assert second["timestamp"].timestamp() * 1000 == NOW_MS
        assert second["headers"] == [{"key": "x-event", "value": b"push"}]
        assert {name: kind.value for name, kind in decoder.form.included.items()} == {"o": "offset", "at": "timestamp"}

    asyncio.run(body())


def test_it_listens_from_the_first_probe_on_and_until_it_is_closed():
    """Damage: a process that only reads the environment takes the address; or it is never free again."""

    async def body():
        post = Post()
        inbox = await post.inbox()
        server = WebhookServer(inbox, post.options)
        reader = WebhookReader(inbox, server, NumberDecoder(), SCHEMA, post.options)
        assert not server.listening
        await reader.upstream_frontier()
        assert server.listening
        for _ in range(2):
            await reader.close()
            assert not server.listening

    asyncio.run(body())


def test_an_address_that_is_taken_is_a_notice_and_tried_again():
    """Damage: a source whose predecessor still ends never listens; or what is durable is not ingested meanwhile."""

    async def body():
        post = Post()
        inbox = await post.inbox()
        await inbox.take([Request((b'{"n":1}',))])
        other = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        vars_of = {each: getattr(post.options, each) for each in ("path", "format")}
        options = type(post.options)(listen=f"127.0.0.1:{other.sockets[0].getsockname()[1]}", **vars_of)
        server = WebhookServer(inbox, options)
        reader = WebhookReader(inbox, server, NumberDecoder(), SCHEMA, options)
        assert await reader.upstream_frontier() == Offsets({PARTITION: 1})
        assert f"nothing can be sent to {options.listen}{options.path}: " in reader.notices()[0]
        assert "the port is taken by process" in reader.notices()[0]
        assert "choose another port (option `listen`)" in reader.notices()[0]
        rows = listed(await reader.read([Slice(7, NOTHING_READ, Offsets({PARTITION: 1}))], table="", locate=False)).rows
        assert [row["n"] for row in rows] == [1]
        other.close()
        await reader.upstream_frontier()
        assert server.listening
        assert reader.notices() == ()
        await reader.close()

    asyncio.run(body())


def test_of_two_environments_the_newer_goes_on():
    """Damage: two processes number messages, or the older one acknowledges what no process ingests."""

    async def body():
        post = Post()
        older = await post.reader(epoch=1)
        server = post.server
        newer = await post.reader(epoch=2)
        with pytest.raises(FencedError):
            await server._batches.offer(Request((b'{"n":1}',)))
        server.failed = FencedError("fenced")
        with pytest.raises(FencedError):
            await older.upstream_frontier()
        assert await newer.upstream_frontier() == NOTHING_READ

    asyncio.run(body())
