"""What a user of Kafka finds: messages, fences by range, topics that fit, and errors that say what to do."""

from __future__ import annotations

import asyncio
import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from tests.materialize.drivers.kafka.conversations import SPEC, commit, keys, opened, rows, store
from tests.materialize.drivers.kafka.topics_under_test import Topics

from kafka_server import PASSWORD, USER, KafkaServer
from strandline.algebra.schema import DIFF, TIME, Column, Schema
from strandline.connections.kafka import Sasl
from strandline.errors import ConfigError, DefinitionError, FencedError, InvalidUsage, ProtocolViolation, Unavailable
from strandline.materialize.drivers.kafka import client
from strandline.materialize.drivers.kafka.options import Compression, KafkaEndpoint
from strandline.materialize.protocol.messages import DELETE, EXISTS, Load, StartCommit, Store
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, Checkpoint, KeyRange, MaterializationSpec
from strandline.options import understood
from strandline.store.clock import SystemClock
from strandline.store.secret import Secret

pytestmark = pytest.mark.server

HALF, REST, STRADDLING = KeyRange(0, 2**31 - 1), KeyRange(2**31, 2**32 - 1), KeyRange(2**30, 2**31 + 2**30)


@pytest.fixture
def topics(kafka_broker: KafkaServer) -> Iterator[Topics]:
    """A cluster without topics."""
    seen = Topics(kafka_broker)
    yield seen
    seen.drop()


def test_a_message_has_the_key_the_row_and_what_consumers_tell_it_by(topics: Topics) -> None:
    """Damage: a consumer that reads as the page says finds something else."""
    kinds: dict[str, tuple[str, pa.DataType, Any, Any]] = {
        "s": ("string", pa.string(), 'ä"\n\0', 'ä"\n\0'),
        "f": ("double", pa.float64(), -0.0, 0),
        "nan": ("double", pa.float64(), math.nan, "NaN"),
        "small": ("float", pa.float32(), 0.1, 0.1),
        "n": ("bigint", pa.int64(), 2**63 - 1, 2**63 - 1),
        "d": ("decimal(10,2)", pa.decimal128(10, 2), Decimal("1.50"), "1.50"),
        "b": ("binary", pa.binary(), b"\0", "AA=="),
        "at": (
            "timestamp",
            pa.timestamp("us", "UTC"),
            dt.datetime(2024, 1, 2, tzinfo=dt.UTC),
            "2024-01-02T00:00:00.000000Z",
        ),
        "day": ("date", pa.date32(), dt.date(2024, 1, 2), "2024-01-02"),
        "list": ("array<struct<x:int>>", pa.list_(pa.struct([("x", pa.int32())])), [{"x": 1}, None], [{"x": 1}, None]),
        "none": ("boolean", pa.bool_(), None, None),
    }
    schema = Schema(tuple(Column(name, kind) for name, (kind, _, _, _) in kinds.items()))
    keyed = Binding("v", "keyed", ("f", "s"), schema, delta=True)
    timed = Binding("w", "timed", (), schema, delta=True, times=True, diffs=True)
    spec = MaterializationSpec("m", (keyed, timed))
    row = {name: pa.array([value], kind) for name, (_, kind, value, _) in kinds.items()}
    flags = {EXISTS: pa.array([False]), DELETE: pa.array([False])}
    further = {TIME: pa.array([7], pa.int64()), DIFF: pa.array([-2], pa.int64())}

    async def body() -> None:
        session, _ = await opened(topics, spec=spec)
        await store(session, pa.table({**row, **flags}), pa.table({**row, **flags, DELETE: pa.array([True])}))
        await session.send(Store(1, pa.table({**row, **further, **flags})))
        await session.send(StartCommit(NOTHING.advance(spec.state_keys, 5)))
        await session.close()

    asyncio.run(body())
    value = {name: shown for name, (_, _, _, shown) in kinds.items()}
    stored, gone = topics.pushed("keyed")
    (change,) = topics.pushed("timed")
    assert (stored.key, stored.value, stored.identity) == ({"f": 0, "s": 'ä"\n\0'}, value, ("m", 1, 0))
    assert list(stored.key or ()) == ["f", "s"], "in the order of KEY"
    assert (gone.key, gone.value, gone.identity) == (stored.key, None, ("m", 1, 1))
    assert (change.key, change.value, change.identity) == (None, {**value, TIME: 7, DIFF: -2}, ("m", 1, 2))
    first, second = topics.messages("keyed")
    assert first.key() == second.key() == b'{"f":0,"s":"\xc3\xa4\\"\\n\\u0000"}'


@pytest.mark.parametrize(
    ("first", "second"),
    [(WHOLE, WHOLE), (WHOLE, HALF), (HALF, STRADDLING), (HALF, WHOLE), (STRADDLING, REST)],
    ids=["exact", "split from its parent", "straddling", "covered child", "straddled"],
)
def test_a_session_whose_range_overlaps_is_fenced(first: KeyRange, second: KeyRange, topics: Topics) -> None:
    """Damage: two processes push the same keys, and neither knows."""

    async def body() -> None:
        older, _ = await opened(topics, first)
        await store(older, rows(1))
        newer, begun = await opened(topics, second)
        assert begun == NOTHING
        with pytest.raises(FencedError, match="fenced off by another"):
            await older.send(StartCommit(NOTHING.advance(SPEC.state_keys, 5)))
        await older.close()
        await commit(newer, 5, rows(2))
        await newer.close()
        assert keys(topics) == [2]

    asyncio.run(body())


def test_sessions_of_disjoint_ranges_and_of_other_tasks_leave_each_other_alone(topics: Topics) -> None:
    """Damage: the splits of a task fence each other for ever, and nothing is ever committed."""

    async def body() -> None:
        other = replace(SPEC, name="other")
        left, _ = await opened(topics, HALF)
        right, _ = await opened(topics, REST)
        apart, _ = await opened(topics, WHOLE, other)
        for session, key in ((left, 1), (right, 2), (apart, 3)):
            await commit(session, 5 + key, rows(key))
        for session in (left, right, apart):
            await session.close()
        assert keys(topics) == [1, 2, 3]
        again, begun = await opened(topics, REST)
        assert begun == Checkpoint((("t.v0", 7),))
        await again.close()

    asyncio.run(body())


def test_a_split_goes_on_from_its_parents_checkpoint_and_later_from_its_own(topics: Topics) -> None:
    """Damage: a split repeats, or skips, what its parent did."""

    async def body() -> None:
        parent, _ = await opened(topics)
        await commit(parent, 5, rows(1))
        child, base = await opened(topics, HALF)
        assert base == Checkpoint((("t.v0", 5),))
        await commit(child, 9, rows(2))
        await child.close()
        again, base = await opened(topics, HALF)
        assert base == Checkpoint((("t.v0", 9),))
        await again.close()
        await parent.close()
        with pytest.raises(DefinitionError, match="has no single checkpoint"):
            await opened(topics, STRADDLING)

    asyncio.run(body())


def test_a_checkpoint_behind_a_transaction_of_another_task_is_waited_for(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Damage: a task begins from an older checkpoint than it has committed, and pushes the changes since then again."""
    producer = topics.server.producer(transactional_id="another task")

    producer.init_transactions()

    async def body() -> None:
        first, _ = await opened(topics)
        begin(producer, topics.options.checkpoints)
        await commit(first, 5, rows(1))
        await first.close()
        waits = asyncio.create_task(opened(topics))  # noqa: TID251 - a test's own
        await SystemClock().sleep(0.3)
        assert not waits.done()
        producer.commit_transaction()
        second, begun = await waits
        assert begun == Checkpoint((("t.v0", 5),))
        await second.close()
        begin(producer, topics.options.checkpoints)
        monkeypatch.setattr(client, "SETTLED_SECONDS_MAX", 1)
        with pytest.raises(Unavailable, match="holds transactions open in topic 'checkpoints'"):
            await opened(topics)
        producer.abort_transaction()

    asyncio.run(body())


def begin(producer: Producer, topic: str) -> None:
    """Leave a transaction open in a topic."""
    producer.begin_transaction()
    producer.produce(topic, b"{}", key=b'{"task":"x","begin":0,"end":1,"kind":"opened"}', partition=0)
    producer.flush()


@pytest.mark.time_limit(400)
def test_a_transaction_that_took_too_long_is_begun_again_and_no_session_is_blamed(topics: Topics) -> None:
    """Damage: a task stops for good because one transaction was slow."""
    patient = topics.options
    topics.options = replace(patient, transaction_timeout=5_000)

    async def body() -> None:
        session, _ = await opened(topics)
        await store(session, rows(1))
        for _ in range(1500):  # brokers look for such transactions every ten seconds
            await SystemClock().sleep(0.1)
            if topics.ended("t"):
                break
        with pytest.raises(Unavailable):
            await session.send(StartCommit(NOTHING.advance(SPEC.state_keys, 5)))
        await session.close()
        topics.options = patient
        again, begun = await opened(topics)
        assert begun == NOTHING
        await commit(again, 5, rows(2))
        await again.close()
        assert keys(topics) == [2]

    asyncio.run(body())


def test_a_cancelled_commit_is_whole_or_not_there(topics: Topics) -> None:
    """Damage: a task that was stopped commits later, behind the back of its successor."""

    async def body() -> None:
        session, _ = await opened(topics)
        await store(session, rows(*range(2_000)))
        sending = asyncio.create_task(session.send(StartCommit(NOTHING.advance(SPEC.state_keys, 5))))  # noqa: TID251
        await SystemClock().sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        await session.close()
        seen = topics.checkpoint("m"), len(keys(topics))
        assert seen in {(NOTHING, 0), (Checkpoint((("t.v0", 5),)), 2_000)}
        again, begun = await opened(topics)
        assert (begun, len(keys(topics))) == seen
        await again.close()

    asyncio.run(body())


def test_a_topic_that_is_gone_is_filled_again_only_by_a_backfill(topics: Topics) -> None:
    """Damage: consumers of a new topic get the newest changes, and never what was before."""

    async def body() -> None:
        session, _ = await opened(topics)
        await commit(session, 5, rows(1))
        await session.close()
        topics.server.drop_topic("t")
        with pytest.raises(
            DefinitionError,
            match="topic 't' is gone, though it was filled from 'v'; fill it again: strandline backfill",
        ):
            await topics.driver().apply(SPEC, {})
        anew = MaterializationSpec("m", (replace(SPEC.bindings[0], backfill=1),))
        assert (await topics.driver().apply(anew, {})).action == "created topic 't'"

    asyncio.run(body())


def test_a_topic_of_checkpoints_that_forgets_them_is_refused(topics: Topics) -> None:
    """Damage: after a week the task begins from nothing, and pushes everything again."""
    topics.server.make_topic("checkpoints", cleanup_policy="delete")
    with pytest.raises(
        ConfigError, match="'checkpoints' with cleanup.policy = delete.*change it there: cleanup.policy = compact"
    ):
        asyncio.run(topics.driver().apply(SPEC, {}))


def test_a_row_that_is_too_large_is_named_with_its_topic(topics: Topics) -> None:
    """Damage: a task fails for ever, and no one knows at which topic."""

    async def body() -> None:
        session, _ = await opened(topics)
        with pytest.raises(DefinitionError, match="did not take a message of topic 't': .*[Ss]ize too large"):
            await store(session, rows(1, s="x" * 1_000_001))
        await session.close()

    asyncio.run(body())


@pytest.mark.parametrize("compression", Compression)
def test_batches_are_compressed_as_an_option_says(compression: Compression, topics: Topics) -> None:
    """Damage: an option has no effect, or the messages cannot be read."""
    topics.options = replace(topics.options, compression=compression)

    async def body() -> None:
        session, _ = await opened(topics)
        await commit(session, 5, rows(*range(500)))
        await session.close()
        assert keys(topics) == list(range(500))

    asyncio.run(body())


def test_a_guarded_cluster_lets_in_who_has_the_password_and_shows_none(topics: Topics) -> None:
    """Damage: a password is in a log, a status or an error; or the options of a source do not work for an endpoint."""
    guarded: dict[str, Any] = {
        "servers": topics.server.guarded,
        "tls": True,
        "tls_ca": topics.server.certificate.read_text(),
        "sasl": Sasl.SCRAM_256,
        "user": USER,
    }
    plain = topics.options

    async def body() -> None:
        topics.options = replace(plain, **guarded, password=Secret(PASSWORD))
        session, _ = await opened(topics)
        await commit(session, 5, rows(1))
        await session.close()
        assert keys(topics) == [1]
        topics.options = replace(plain, **guarded, password=Secret("hunter2"))
        with pytest.raises(Unavailable) as raised:
            await topics.driver().apply(SPEC, {})
        for text in (str(raised.value), repr(raised.value), repr(raised.value.__cause__), repr(topics.options)):
            assert "hunter2" not in text

    asyncio.run(body())


def test_names_that_are_no_topics_are_refused(topics: Topics) -> None:
    """Damage: a materialization is made whose topic can never be."""
    for name, said in (
        ("a b", "cannot be a topic"),
        ("..", "cannot be a topic"),
        ("checkpoints", "its checkpoints there"),
    ):
        with pytest.raises(DefinitionError, match=said):
            spec = MaterializationSpec("m", (replace(SPEC.bindings[0], resource=name),))
            asyncio.run(topics.driver().validate(spec))


def test_a_topic_is_neither_read_back_nor_asked(topics: Topics) -> None:
    """Damage: a verification compares a view with what a topic happens to hold still."""

    async def body() -> None:
        with pytest.raises(InvalidUsage, match="cannot be compared with the collection"):
            await topics.driver().contents("m", SPEC.bindings[0])
        session, _ = await opened(topics)
        with pytest.raises(ProtocolViolation, match="can only be pushed to"):
            await session.send(Load(0, rows(1).select(["k"])))
        await session.close()

    asyncio.run(body())


def test_a_broker_that_is_not_there_is_named_at_once(topics: Topics) -> None:
    """Damage: a wrong address looks like a task that is slow."""
    topics.options = replace(topics.options, servers="127.0.0.1:1")
    with pytest.raises(Unavailable, match="Kafka at 127.0.0.1:1 does not answer"):
        asyncio.run(topics.driver().apply(SPEC, {}))


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ({"transaction_timeout": "10ms"}, "must be 5s at least"),
        ({"partitions": "0"}, "'partitions' must be 1 at least"),
        ({"compression": "rar"}, "it can be none, gzip, snappy, lz4, zstd"),
        ({"user": "me"}, "go together"),
    ],
)
def test_options_that_do_not_go_together_are_refused(texts: dict[str, str], said: str) -> None:
    """Damage: a materialization is made that can never push anything."""
    with pytest.raises(DefinitionError, match=said):
        understood("endpoint kafka", KafkaEndpoint, {"servers": "k:9092", **texts})
