"""Conversations with a Kafka endpoint, message by message."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from tests.materialize.drivers.kafka.topics_under_test import Topics

from strandline.algebra.schema import Column, Schema
from strandline.materialize.protocol.messages import (
    DELETE,
    EXISTS,
    Acknowledge,
    Acknowledged,
    Flush,
    Flushed,
    Open,
    Opened,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, Checkpoint, KeyRange, MaterializationSpec

SCHEMA = Schema((Column("k", "bigint"), Column("s", "string")))
SPEC = MaterializationSpec("m", (Binding("v", "t", ("k",), SCHEMA, delta=True),))


def rows(*keys: int, s: str = "row", gone: bool = False) -> pa.Table:
    """Return rows of `SPEC`."""
    return pa.table(
        {
            "k": pa.array(keys, pa.int64()),
            "s": pa.array([s] * len(keys), pa.string()),
            EXISTS: [False] * len(keys),
            DELETE: [gone] * len(keys),
        }
    )


async def opened(
    topics: Topics, range_: KeyRange = WHOLE, spec: MaterializationSpec = SPEC
) -> tuple[Any, Checkpoint | None]:
    """Return a session that is open, and the checkpoint from which it goes on."""
    driver = topics.driver()
    await driver.apply(spec, {})
    session = await driver.open()
    await session.send(Open(spec, "1", range_, {}))
    answer = await session.receive()
    assert isinstance(answer, Opened)
    assert isinstance(await session.receive(), Acknowledged)
    await session.send(Acknowledge())
    return session, answer.checkpoint


async def store(session: Any, *tables: pa.Table) -> None:
    """Push rows."""
    await session.send(Flush())
    assert isinstance(await session.receive(), Flushed)
    for table in tables:
        await session.send(Store(0, table))


async def commit(session: Any, time: int, *tables: pa.Table, spec: MaterializationSpec = SPEC) -> None:
    """Take one transaction through."""
    await store(session, *tables)
    await session.send(StartCommit(NOTHING.advance(spec.state_keys, time)))
    assert isinstance(await session.receive(), StartedCommit)
    assert isinstance(await session.receive(), Acknowledged)
    await session.send(Acknowledge())


def keys(topics: Topics, topic: str = "t") -> list[Any]:
    """Return the keys of what was pushed."""
    return [record.key["k"] for record in topics.pushed(topic) if record.key is not None]
