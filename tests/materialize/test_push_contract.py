"""The contract of pushes: endpoints in memory keep it, and planted defects do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

import pyarrow.compute as pc
import pytest
from tests.materialize.push_endpoints import (
    RepeatingSession,
    StreamDriver,
    StreamEndpoint,
    StreamSession,
    TransactionalSession,
)

from strandline.algebra.schema import DIFF
from strandline.errors import StrandlineError
from strandline.materialize.driver import Validated
from strandline.materialize.drivers.rows import push_only
from strandline.materialize.protocol.messages import (
    DELETE,
    Acknowledge,
    Acknowledged,
    Open,
    Opened,
    Request,
    StartedCommit,
    Store,
)
from strandline.materialize.protocol.task import Binding, Checkpoint, MaterializationSpec
from strandline.testing.contracts.drivers.push_contract import (
    PushContract,
    backfill,
    come_and_go,
    crash_everywhere,
    empty_everywhere,
    follow,
    previewed,
    put_back,
    refused,
    replaced,
    zombie_everywhere,
)


class TestATransactionalStream(PushContract):
    @pytest.fixture
    def make_endpoint(self) -> Callable[[], StreamEndpoint]:
        """Return endpoints whose transactions are whole."""
        return StreamEndpoint


class TestARepeatingStream(PushContract):
    @pytest.fixture
    def make_endpoint(self) -> Callable[[], StreamEndpoint]:
        """Return endpoints that may get a transaction again."""
        return lambda: StreamEndpoint(RepeatingSession)


class Numbered(TransactionalSession):
    """Numbers its transactions from 1 in each session: consumers drop new records as repetitions."""

    def opened(self, message: Open) -> Opened:
        answer = super().opened(message)
        self.transaction = 0
        return answer


class Unfenced(TransactionalSession):
    """Commits whatever session has been opened since."""

    def refuse_if_fenced(self) -> None:
        pass


class Early(TransactionalSession):
    """Lets consumers see records before they are committed."""

    def store(self, binding: Binding, message: Store) -> None:
        super().store(binding, message)
        self.stream.records += self.pushed
        self.pushed = []


class Forgetful(TransactionalSession):
    """Commits records, and their checkpoint only afterwards, if it comes to that."""

    def commit(self, checkpoint: Checkpoint) -> None:
        self.say(StartedCommit())
        self.refuse_if_fenced()
        self.stream.records += self.pushed
        self.transaction, self.pushed = self.transaction + 1, []
        self.later = self.transaction, checkpoint
        self.say(Acknowledged())

    async def send(self, message: Request) -> None:
        if isinstance(message, Acknowledge) and (later := getattr(self, "later", None)) is not None:
            self.stream.checkpoints[self.task] = later
        await super().send(message)


class Keeping(TransactionalSession):
    """Says nothing of keys that are gone."""

    def store(self, binding: Binding, message: Store) -> None:
        rows = message.rows
        super().store(binding, Store(message.binding, rows.filter(pc.invert(rows[DELETE]))))


class Anonymous(RepeatingSession):
    """Gives what comes again another number."""

    drawn = count()

    def identity(self, binding: Binding, ordinal: int) -> tuple[Any, ...]:
        return (self.task, self.transaction + 1, next(self.drawn))


class Shuffled(RepeatingSession):
    """Numbers what comes in any order, so a replay gives other records the same numbers."""

    opens = count()

    def store(self, binding: Binding, message: Store) -> None:
        before = len(self.pushed)
        StreamSession.store(self, binding, message)
        new = self.pushed[before:]
        if self.session % 2:
            numbers = [record.identity for _, record in new]
            new = [(of, replace(r, identity=number)) for (of, r), number in zip(new[::-1], numbers, strict=True)]
        self.pushed[before:] = new
        self.stream.records += new

    def opened(self, message: Open) -> Opened:
        self.session = next(self.opens)
        return super().opened(message)


class Lossy(RepeatingSession):
    """Has the log commit before the records are there."""

    def store(self, binding: Binding, message: Store) -> None:
        StreamSession.store(self, binding, message)

    def commit(self, checkpoint: Checkpoint) -> None:
        self.waiting = self.pushed
        super().commit(checkpoint)

    async def send(self, message: Request) -> None:
        if isinstance(message, Acknowledge):
            self.stream.records += getattr(self, "waiting", [])
            self.waiting = []
        await super().send(message)


class Doubling(TransactionalSession):
    """Pushes each record twice, under one number."""

    def store(self, binding: Binding, message: Store) -> None:
        before = len(self.pushed)
        super().store(binding, message)
        self.pushed += self.pushed[before:]


class Halving(TransactionalSession):
    """Leaves out the diffs of changes, as if each were one row that came."""

    def store(self, binding: Binding, message: Store) -> None:
        before = len(self.pushed)
        super().store(binding, message)
        for place, (of, record) in enumerate(self.pushed[before:], before):
            if record.value is not None and DIFF in record.value:
                self.pushed[place] = (of, replace(record, value={**record.value, DIFF: 1}))


class Standing(StreamDriver):
    """Takes contents that it cannot keep."""

    async def validate(self, spec: MaterializationSpec) -> tuple[Validated, ...]:
        return tuple(push_only(replace(binding, delta=True), "a stream") for binding in spec.bindings)


class StandingEndpoint(StreamEndpoint):
    """An endpoint of it."""

    def driver(self) -> StreamDriver:
        return Standing(self._stream, self._session)


SCENARIOS = (
    refused,
    previewed,
    follow,
    put_back,
    backfill,
    replaced,
    empty_everywhere,
    zombie_everywhere,
    crash_everywhere,
    come_and_go,
)
PLANTED: tuple[Callable[[], Any], ...] = (
    *(partial(StreamEndpoint, each) for each in (Numbered, Unfenced, Early, Forgetful, Keeping, Doubling, Halving)),
    *(partial(StreamEndpoint, each) for each in (Anonymous, Shuffled, Lossy)),
    StandingEndpoint,
)


@pytest.mark.parametrize("make", PLANTED, ids=lambda make: getattr(make, "args", (make,))[0].__name__)
def test_a_planted_defect_is_caught(make: Callable[[], Any]) -> None:
    """Damage: an author's endpoint passes, and loses or repeats changes."""
    for scenario in SCENARIOS:
        try:
            asyncio.run(scenario(make()))
        except (AssertionError, StrandlineError, pytest.fail.Exception):
            return
    pytest.fail("no scenario fails")
