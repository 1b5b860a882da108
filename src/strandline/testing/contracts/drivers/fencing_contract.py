"""Every order of two sessions that fence each other: who commits is decided by who opened last, and by nothing else.

For the drivers of endpoints that keep a checkpoint.  Subclass it as `driver_contract.DriverContract`.

Law: M3.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import combinations
from typing import Final

import pyarrow as pa

from strandline.algebra.schema import Column, Schema
from strandline.errors import FencedError
from strandline.materialize.driver import Session
from strandline.materialize.protocol.messages import (
    DELETE,
    EXISTS,
    Acknowledge,
    Acknowledged,
    Flush,
    Flushed,
    Open,
    Opened,
    Response,
    StartCommit,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import NOTHING, WHOLE, Binding, KeyRange, MaterializationSpec
from strandline.testing.contracts.drivers.world import EndpointUnderTest, MakeEndpoint

TRANSACTIONS: Final = 3
SCHEMA: Final = Schema((Column("k", "bigint"), Column("who", "string")))
SPEC: Final = MaterializationSpec("m", (Binding("v", "fenced", ("k",), SCHEMA),))


def orders() -> Iterator[str]:
    """Yield every order in which two sessions, ``a`` and ``b``, open and then commit `TRANSACTIONS` times.

    >>> len(list(orders())), next(orders())
    (70, 'aaaabbbb')
    """
    steps = TRANSACTIONS + 1
    for firsts in combinations(range(2 * steps), steps):
        yield "".join("a" if place in firsts else "b" for place in range(2 * steps))


class _Speaker:
    """One session, which says what a runtime would."""

    def __init__(self, session: Session, name: str, range_: KeyRange) -> None:
        self._session = session
        self._name = name
        self._range = range_
        self.opened = False

    async def open(self) -> None:
        await self._session.send(Open(SPEC, "1", self._range, {}))
        await self._until(Opened)
        await self._session.send(Acknowledge())
        await self._until(Acknowledged)
        self.opened = True

    async def commit(self, number: int) -> None:
        """Store one row, and commit it.  Raises `FencedError` if this is not the newest session."""
        await self._session.send(Flush())
        await self._until(Flushed)
        row = {"k": pa.array([number], pa.int64()), "who": [self._name], EXISTS: [False], DELETE: [False]}
        await self._session.send(Store(0, pa.table(row)))
        await self._session.send(StartCommit(NOTHING.advance(SPEC.state_keys, number)))
        await self._until(StartedCommit)
        await self._session.send(Acknowledge())
        await self._until(Acknowledged)

    async def close(self) -> None:
        await self._session.close()

    async def _until(self, kind: type[Response]) -> None:
        assert isinstance(await self._session.receive(), kind)


async def every_order(make_endpoint: MakeEndpoint, ranges: tuple[KeyRange, KeyRange]) -> None:
    """Let two sessions, each with its key range, take turns in every order."""
    endpoint = make_endpoint()
    await endpoint.driver().apply(SPEC, {})
    expected: list[tuple[int, str]] = []
    for count, order in enumerate(orders()):
        expected += await _one_order(endpoint, order, count * len(order), ranges)
        found = sorted((row["k"], row["who"]) for row in endpoint.rows("fenced"))
        assert found == sorted(expected), (order, ranges)


async def _one_order(
    endpoint: EndpointUnderTest, order: str, base: int, ranges: tuple[KeyRange, KeyRange]
) -> list[tuple[int, str]]:
    """Return the rows that are committed."""
    driver = endpoint.driver()
    speakers = {name: _Speaker(await driver.open(), name, range_) for name, range_ in zip("ab", ranges, strict=True)}
    newest, fenced, committed = "", set[str](), list[tuple[int, str]]()
    for number, name in enumerate(order, base + 1):
        speaker = speakers[name]
        if not speaker.opened:
            await speaker.open()
            newest = name
        elif name not in fenced:
            try:
                await speaker.commit(number)
            except FencedError:
                assert name != newest, (order, "the newest session was refused")
                fenced.add(name)
            else:
                assert name == newest, (order, "a session has committed that was fenced off")
                committed.append((number, name))
    for speaker in speakers.values():
        await speaker.close()
    return committed


class FencingContract:
    """The tests."""

    def test_the_session_that_opened_last_commits_and_no_other(self, make_endpoint: MakeEndpoint) -> None:
        """Damage: two processes write to one table, each over the other's rows."""
        asyncio.run(every_order(make_endpoint, (WHOLE, WHOLE)))
