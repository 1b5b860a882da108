"""A webhook keeps the contract of pushes over real HTTP, and what is its own: ids, retries, dead letters, signing."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.materialize.drivers.webhook.receiving import CUT, CUT_AFTER, TAKEN, Answer, Got, Hooks, Receiver, receiving
from webhook_place import Post

from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.errors import ConfigError, DefinitionError, InvalidUsage, Unavailable
from strandline.materialize.drivers.webhook.driver import KIND
from strandline.materialize.drivers.webhook.options import WebhookEndpoint
from strandline.materialize.protocol.messages import (
    DELETE,
    EXISTS,
    Acknowledge,
    Flush,
    Open,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, KeyRange, MaterializationSpec
from strandline.options import understood
from strandline.sources.readers.webhook.server import WebhookServer
from strandline.store.secret import Secret
from strandline.testing.contracts.drivers.push_contract import PushContract, PushWorld

pytestmark = pytest.mark.server

SCHEMA = Schema((Column("k", "bigint"), Column("s", "string")))
SPEC = MaterializationSpec("m", (Binding("v", "t", ("k",), SCHEMA, delta=True, incarnation="a"),))
DIFFS = MaterializationSpec("m", (Binding("v", "t", ("k",), SCHEMA, delta=True, diffs=True, times=True),))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that takes everything."""
    with receiving() as running:
        yield running


@pytest.fixture
def make_endpoint(receiver: Receiver) -> Callable[[], Hooks]:
    """Each endpoint sees what comes from now on."""
    return lambda: Hooks(receiver)


class TestWebhook(PushContract):
    pass


def rows(*keys: int, gone: bool = False) -> pa.Table:
    """Return rows of `SPEC`."""
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "s": [f"row {key}" for key in keys],
            EXISTS: [False] * len(keys),
            DELETE: [gone] * len(keys),
        }
    )


async def push(hooks: Hooks, *tables: pa.Table, state: Any = None, spec: MaterializationSpec = SPEC, **how: Any) -> Any:
    """Take one transaction through a session of its own; return the state that the log keeps."""
    session = await hooks.driver().open()
    try:
        await session.send(Open(spec, "1", how.get("range_", WHOLE), state or {}))
        await session.send(Acknowledge())
        await session.send(Flush())
        for table in tables:
            await session.send(Store(0, table))
        await session.send(StartCommit(NOTHING))
        answers = [await session.receive() for _ in range(5)]
        (started,) = (each for each in answers if isinstance(each, StartedCommit))
        assert started.state is not None
        return started.state.updated
    finally:
        await session.close()


def test_a_request_says_what_it_is_and_what_changed(receiver: Receiver) -> None:
    """Damage: a receiver cannot read what it gets, or not tell one transaction from another."""
    hooks = Hooks(receiver)

    async def body() -> None:
        state = await push(hooks, rows(1, 2), rows(3, gone=True))
        await push(hooks, rows(4), state=state, range_=KeyRange(0, 9))

    asyncio.run(body())
    first, second, third = receiver.got
    assert (first.path, first.headers["Content-Type"]) == ("/hooks?of=shop", "application/json")
    assert first.said == {
        "task": "m",
        "resource": "t",
        "data": "t.v0-a",
        "transaction": 1,
        "ordinal": 0,
        "changes": [
            {"key": {"k": 1}, "value": {"k": 1, "s": "row 1"}},
            {"key": {"k": 2}, "value": {"k": 2, "s": "row 2"}},
        ],
    }
    assert (second.said["ordinal"], second.said["changes"]) == (2, [{"key": {"k": 3}, "value": None}])
    assert (third.said["task"], third.said["transaction"]) == ("m[00000000-00000009]", 2)
    assert len({each.id for each in receiver.got}) == 3


def test_a_transaction_that_comes_again_in_another_order_is_sent_byte_for_byte(receiver: Receiver) -> None:
    """Damage: a replayed request has the id of an earlier one and other rows: the receiver drops what it never saw."""
    hooks = Hooks(receiver, batch_rows=7)
    every = rows(*range(100))
    draw = Random(1)

    async def body() -> None:
        sent = []
        for _ in range(3):
            before = len(receiver.got)
            order = draw.sample(range(100), 100)
            cut = draw.randrange(1, 99)
            await push(hooks, every.take(order[:cut]), every.take(order[cut:]))
            sent.append([(each.id, each.body) for each in receiver.got[before:]])
        assert sent[0] == sent[1] == sent[2]
        assert len(sent[0]) == 15

    asyncio.run(body())


def test_changes_come_by_time_and_what_goes_before_what_comes(receiver: Receiver) -> None:
    """Damage: a receiver that applies changes one by one deletes the new row instead of the old one."""
    changes = [(1, "new", 5, 1), (2, "x", 4, 1), (1, "old", 5, -1), (1, "old", 3, 1)]
    table = pa.table(
        {
            "k": pa.array([k for k, _, _, _ in changes], pa.int64()),
            "s": [s for _, s, _, _ in changes],
            TIME: [time for _, _, time, _ in changes],
            DIFF: [diff for _, _, _, diff in changes],
            EXISTS: [False] * 4,
            DELETE: [False] * 4,
        }
    )
    asyncio.run(push(Hooks(receiver, batch_rows=9), table, spec=DIFFS))
    (request,) = receiver.got
    assert [tuple(each["value"].values()) for each in request.said["changes"]] == [
        (1, "old", 3, 1),
        (2, "x", 4, 1),
        (1, "old", 5, -1),
        (1, "new", 5, 1),
    ]


def test_other_options_give_requests_other_ids(receiver: Receiver) -> None:
    """Damage: after an option was changed in an outage, a receiver drops rows that it never saw."""

    async def body() -> None:
        for batch_rows in (2, 3):
            await push(Hooks(receiver, batch_rows=batch_rows), rows(1, 2, 3))

    asyncio.run(body())
    bodies: dict[str, bytes] = {}
    for request in receiver.got:
        assert bodies.setdefault(request.id, request.body) == request.body


def test_a_request_has_no_more_bytes_than_it_may(receiver: Receiver) -> None:
    """Damage: a receiver refuses a transaction for ever, because its requests are too large."""
    table = rows(*range(20)).set_column(1, "s", pa.array(["x" * (37 * k) for k in range(20)]))
    asyncio.run(push(Hooks(receiver, batch_rows=100, max_request_size=2_000), table))
    assert len(receiver.got) > 2
    assert max(len(each.body) for each in receiver.got) <= 2_000
    assert sorted(change["key"]["k"] for each in receiver.got for change in each.said["changes"]) == list(range(20))


@pytest.mark.parametrize("answer", [Answer(503, taken=False), Answer(429, taken=False), CUT, CUT_AFTER], ids=str)
def test_a_request_that_was_not_answered_is_sent_again_later(answer: Answer, receiver: Receiver) -> None:
    """Damage: an outage of a second stops the task; or a request is lost in it."""
    hooks = Hooks(receiver)
    receiver.answer = lambda count: answer if count in {1, 2, 3} else TAKEN
    before = hooks.clock.now
    asyncio.run(push(hooks, rows(*range(6))))
    assert [each.id for each in receiver.got[1:4]] == [receiver.got[4].id] * 3
    assert hooks.clock.now - before == 100 + 200 + 400
    assert {each.id for each in receiver.taken} == {each.id for each in receiver.got}


def test_a_receiver_is_left_alone_for_as_long_as_it_says(receiver: Receiver) -> None:
    """Damage: a receiver that asks for rest is asked more often than it can bear."""
    hooks = Hooks(receiver)
    receiver.answer = lambda count: TAKEN if count else Answer(429, {"Retry-After": "20"}, taken=False)
    before = hooks.clock.now
    asyncio.run(push(hooks, rows(1)))
    assert hooks.clock.now - before == 20_000


def test_a_receiver_that_stays_away_is_unavailable_and_the_transaction_begins_anew(receiver: Receiver) -> None:
    """Damage: the task stops for good; or goes on without what was never taken."""
    hooks = Hooks(receiver, max_retries=2)
    receiver.answer = lambda _: Answer(502, text="bad gateway", taken=False)
    with pytest.raises(
        Unavailable, match=r"localhost:\d+ answers 502: bad gateway; changes 0 to 1 .* were sent 3 times"
    ):
        asyncio.run(push(hooks, rows(1, 2)))
    receiver.answer = lambda _: TAKEN
    asyncio.run(push(hooks, rows(1, 2)))
    assert len({each.id for each in receiver.got}) == 1


def test_a_refused_request_stops_the_task_and_is_named(receiver: Receiver) -> None:
    """Damage: changes that a receiver refuses vanish, and no one is asked."""
    receiver.answer = lambda count: Answer(422, text="no such customer", taken=False) if count == 1 else TAKEN
    said = (
        r"localhost:\d+ answers 422: no such customer: it refuses changes 2 to 3 of transaction 1 into 't' "
        r"\(Idempotency-Key \w+-1-2-3\); mend the receiver.*'dead_letters'"
    )
    with pytest.raises(DefinitionError, match=said):
        asyncio.run(push(Hooks(receiver), rows(*range(6))))
    assert len(receiver.got) == 2


def test_refused_requests_are_kept_where_an_option_says(receiver: Receiver, tmp_path: Path) -> None:
    """Damage: one bad row keeps all others from a receiver; or is gone, and can be sent by no one."""
    receiver.answer = lambda count: Answer(400, text="what?", taken=False) if count == 1 else TAKEN
    asyncio.run(push(Hooks(receiver, dead_letters=str(tmp_path / "dead")), rows(*range(6))))
    assert len(receiver.taken) == 2
    (kept,) = (tmp_path / "dead").glob("*.json")
    assert (kept.stem, kept.read_bytes()) == (receiver.got[1].id, receiver.got[1].body)
    assert kept.with_suffix(".reason").read_text() == "answers 400: what?\n"


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 410])
def test_an_address_that_takes_nothing_is_no_dead_letter(status: int, receiver: Receiver, tmp_path: Path) -> None:
    """Damage: a wrong token buries a whole view among the dead letters."""
    receiver.answer = lambda _: Answer(status, {"Location": "http://localhost:1/"}, taken=False)
    with pytest.raises(
        ConfigError, match=rf"answers {status}: the URL or the token is not right; mend what listens there"
    ):
        asyncio.run(push(Hooks(receiver, dead_letters=str(tmp_path)), rows(1)))
    assert (len(receiver.got), list(tmp_path.iterdir())) == (1, [])


def test_a_directory_that_takes_no_dead_letters_is_named(receiver: Receiver, tmp_path: Path) -> None:
    """Damage: a refused request is lost because a disk is full."""
    (tmp_path / "file").write_text("")
    receiver.answer = lambda _: Answer(400, taken=False)
    with pytest.raises(ConfigError, match="dead letters cannot be kept in"):
        asyncio.run(push(Hooks(receiver, dead_letters=str(tmp_path / "file")), rows(1)))


def test_a_receiver_can_check_who_sent_a_request(receiver: Receiver) -> None:
    """Damage: anyone who knows the address can make up changes."""
    secret = base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
    hooks = Hooks(receiver, signing_secret=Secret(f"whsec_{secret}"), token=Secret("t0ken"))
    asyncio.run(push(hooks, rows(1)))
    (got,) = receiver.got
    signed = f"{got.headers['webhook-id']}.{got.headers['webhook-timestamp']}.".encode() + got.body
    wanted = hmac.new(b"0123456789abcdef0123456789abcdef", signed, hashlib.sha256).digest()
    assert got.headers["webhook-signature"] == f"v1,{base64.b64encode(wanted).decode()}"
    assert got.headers["Authorization"] == "Bearer t0ken"
    assert int(got.headers["webhook-timestamp"]) == 1_700_000_000


def test_secrets_are_in_no_message(receiver: Receiver) -> None:
    """Damage: a token, or a URL that is one, is in a log or a status."""
    secret = {"token": Secret("hunter2"), "signing_secret": Secret("hunter2")}
    hooks = Hooks(receiver, **secret, url=receiver.url.replace("hooks", "hunter2"), max_retries=0)
    texts = [repr(hooks.options), str(hooks.options)]
    for status in (422, 403, 500):
        receiver.answer = lambda _, status=status: Answer(status, taken=False)
        with pytest.raises((DefinitionError, ConfigError, Unavailable)) as raised:
            asyncio.run(push(hooks, rows(1)))
        texts += [str(raised.value), repr(raised.value), repr(raised.value.__cause__)]
    assert not [text for text in texts if "hunter2" in text]


def test_only_a_receiver_that_is_trusted_gets_anything(tmp_path: Path) -> None:
    """Damage: changes and tokens go to whatever answers under the name."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-keyout", str(key), "-out", str(certificate), "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*command, "-addext", "subjectAltName=DNS:localhost"], check=True, capture_output=True)
    both = tmp_path / "both.pem"
    both.write_text(key.read_text() + certificate.read_text())
    with receiving(both) as receiver:
        with pytest.raises(Unavailable, match="certificate verify failed"):
            asyncio.run(push(Hooks(receiver, max_retries=0), rows(1)))
        assert receiver.got == []
        asyncio.run(push(Hooks(receiver, tls_ca=certificate.read_text()), rows(1)))
        assert len(receiver.got) == 1
        with pytest.raises(ConfigError, match="'tls_ca' holds no certificates"):
            asyncio.run(push(Hooks(receiver, tls_ca="no certificate"), rows(1)))


def test_an_outage_at_any_request_loses_nothing_and_repeats_the_same(receiver: Receiver) -> None:
    """Damage: a receiver that goes away and comes back misses a change, or gets another one under an old id."""

    async def body() -> None:
        hooks = Hooks(receiver, max_retries=0)
        world = PushWorld(hooks)
        for number in range(12):
            start = len(receiver.got)
            receiver.answer = lambda count, at=start + number // 2, late=number % 2: (
                (CUT_AFTER if late else CUT) if count == at else TAKEN
            )
            world.write_round()
            with suppress(Unavailable):
                await world.runtime().advance()
            runtime = world.runtime()
            while await runtime.advance():
                pass
            world.check(world.upper)

    asyncio.run(body())
    bodies: dict[str, Got] = {}
    for request in receiver.got:
        assert bodies.setdefault(request.id, request).body == request.body


def test_a_webhook_source_takes_what_an_endpoint_sends_and_nothing_twice() -> None:
    """Damage: two environments cannot feed each other; or a replay has other content under a key that was used."""

    async def body() -> None:
        post = Post(token="t0ken")
        server = WebhookServer(await post.inbox(), post.options)
        await server.listen()
        try:
            here = Receiver(server.port)
            hooks = Hooks(here, url=f"http://127.0.0.1:{server.port}/numbers", token=Secret("t0ken"), batch_rows=3)
            for order in (range(9), reversed(range(9))):
                await push(hooks, *(rows(k) for k in order))
            with pytest.raises(DefinitionError, match="answers 422.*came before with other content"):
                await push(hooks, *(rows(k) for k in (1, 2, 9)))
        finally:
            server.close()

    asyncio.run(body())


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"url": "example.org/x"}, "'url' must be a URL"),
        ({"url": "ftp://example.org/x"}, "'url' must be a URL"),
        ({"url": "http://h/x", "tls_ca": "PEM"}, "'tls_ca' needs a url that begins with https"),
        ({"url": "http://h/x", "batch_rows": "0"}, "must be more than 0"),
        ({"url": "http://h/x", "max_request_size": "10"}, "must be 1000 at least"),
    ],
)
def test_options_that_do_not_go_together_are_refused(texts: dict[str, str], said: str) -> None:
    """Damage: a materialization is made that can never reach its receiver."""
    with pytest.raises(DefinitionError, match=said):
        understood("endpoint webhook", WebhookEndpoint, texts)


def test_what_a_receiver_made_of_changes_cannot_be_read(receiver: Receiver) -> None:
    """Damage: a verification compares a view with nothing."""
    hooks = Hooks(receiver)
    with pytest.raises(InvalidUsage, match="cannot be asked which rows of 't' it has"):
        asyncio.run(hooks.driver().contents("m", SPEC.bindings[0]))
    with pytest.raises(ConfigError, match="begins with whsec_, and no base64 follows"):
        KIND.open(WebhookEndpoint(url="http://h", signing_secret=Secret("whsec_%")), hooks.clock)
